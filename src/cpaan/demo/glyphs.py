"""The glyph part of the demonstration: imagined letters, and what they are worth to a classifier."""

import copy
import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from cpaan.augmenters.named import CPAAN
from cpaan.centers import ShotMean
from cpaan.classifiers.linear import LinearClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import draw_shots
from cpaan.data.toys import glyph_split, load_glyphs
from cpaan.evaluation.realism import diversity, spread
from cpaan.evaluation.scores import evaluate_low_shot
from cpaan.methods import set_numbers
from cpaan.training.progress import Bars

# Variants that are shown, and what they change. c-GAN is shown as in the paper alone: no centre is estimated.
CHANGES: dict[str, dict[str, Any]] = {"c-gan": {"center": "shots"}, "ccov-gan": {}}
SHOTS = (1, 5)
TRIALS = 5
# Fewer episodes than the recipe has, so that the demonstration takes one to two minutes.
GLYPHS: dict[str, Any] = {"episodes": 700}
# A hundred times the classifier's own, which takes half the steps: every accuracy is the same.
TOLERANCE = 1e-5
TRAINING_FONTS = 12  # of each base character; the other fonts are for testing
SHOWN, IMAGINED = tuple("ARSgke5&"), 6


@dataclass(frozen=True)
class GlyphTask:
    """Base characters in training and test fonts, and novel characters."""

    base: FeatureSet
    base_test: FeatureSet
    novel: FeatureSet


def glyph_task(seed: int) -> GlyphTask:
    """Split the glyphs into base and novel characters, and base characters into fonts."""
    glyphs = load_glyphs()
    base, novel = glyph_split()
    training, test = draw_shots(glyphs.select(base), TRAINING_FONTS, seed)
    return GlyphTask(training, test, glyphs.select(novel))


def fit_glyphs(variant: str, seed: int, bars: Bars) -> bytes:
    """Meta-train a variant on the base characters; what comes back is pickled, for other processes to take."""
    base = glyph_task(seed).base
    settings = GLYPHS | CHANGES[variant]
    augmenter = CPAAN(variant=variant, recipe="quick", random_state=seed, tell=bars(f"glyphs, {variant}"))
    set_numbers(augmenter, settings).fit(base.features, base.names).tell = None
    # By pickle itself: torch's own way between processes would leave tensors in the memory of a process that may end.
    return pickle.dumps(augmenter)


def as_in_the_paper(augmenter: CPAAN) -> CPAAN:
    """Give one with the same networks that puts a class at the mean of its shots."""
    twin = copy.copy(augmenter)
    twin.center_ = ShotMean()
    return twin


def imagined(task: GlyphTask, augmenters: dict[str, CPAAN], seed: int) -> tuple[FeatureSet, dict[str, FeatureSet]]:
    """Give the one shot of each shown character, and what each variant makes of it."""
    shots, _ = draw_shots(task.novel.select(SHOWN), 1, seed)
    made = {}
    for variant, augmenter in augmenters.items():
        images, labels = augmenter.augment(shots.features, shots.names, per_class=IMAGINED)
        made[variant] = FeatureSet(images, labels)
    return shots, made


@dataclass(frozen=True)
class Figures:
    """What one method reached: percentages by setting and shots, and how its examples vary."""

    accuracy: dict[tuple[str, int], list[float]]
    diversity: float
    covariance_distance: float


def measure(title: str, pickled: bytes | None, seed: int, bars: Bars) -> Figures:
    """Train the final classifier on base, shots and synthetic examples, for all shots and trials."""
    task = glyph_task(seed)
    augmenter: CPAAN | None = None if pickled is None else pickle.loads(pickled)
    tell, total = bars.count(f"classifying, {title}", "classifiers"), len(SHOTS) * TRIALS
    accuracy: dict[tuple[str, int], list[float]] = {}
    spreads: list[tuple[float, float]] = []
    for done, (shots, trial) in enumerate(product(SHOTS, range(TRIALS))):
        tell(done, total)
        known, unseen = draw_shots(task.novel, shots, seed + trial)
        features = [task.base.features, known.features]
        labels = [task.base.names, known.names]
        if augmenter is not None:
            made, names = augmenter.augment(known.features, known.names)
            features, labels = [*features, made], [*labels, names]
            found = spread(made, names, task.novel.features, task.novel.names)
            spreads.append((found.diversity, found.covariance_distance))
        scores = _score(task, unseen, np.concatenate(features), np.concatenate(labels))
        for setting, percent in scores.items():
            accuracy.setdefault((setting, shots), []).append(percent)
    tell(total, total)
    if augmenter is None:
        return Figures(accuracy, diversity(task.novel.features, task.novel.names), 0.0)
    mean_diversity, distance = np.mean(spreads, axis=0)
    return Figures(accuracy, float(mean_diversity), float(distance))


def _score(task: GlyphTask, unseen: FeatureSet, X: Any, y: Any) -> dict[str, float]:
    classifier = LinearClassifier(tolerance=TOLERANCE).fit(X, y)
    novel: tuple[Hashable, ...] = task.novel.classes
    X_test = np.concatenate([task.base_test.features, unseen.features])
    y_test = np.concatenate([task.base_test.names, unseen.names])
    scores = evaluate_low_shot(classifier, X_test, y_test, novel, k=(1,))
    return {"LSL": scores.lsl[1], "GLSL": scores.glsl[1]}
