"""One cell of the grid: a method, a number of shots and a trial, evaluated in both settings.

How features are normalised, alike for every method of a run.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.evaluation.fitted_methods import Learned
from cpaan.evaluation.realism import spread
from cpaan.evaluation.scores import LowShotScores, evaluate_low_shot
from cpaan.threads import limited_threads

TOP = (1, 5)
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What to evaluate.

    Attributes
    ----------
    method : name, for the record
    classifier : name of the final classifier
    shots, trial : K, and which draw of the shots
    seed : of the run; with the trial it decides what is generated
    """

    method: str
    classifier: str
    shots: int
    trial: int
    seed: int


def run_cell(data: BenchmarkData, learned: Learned, cell: Cell) -> list[Row]:
    """Train the final classifier and test it; gives a row for LSL and one for GLSL."""
    start = time.perf_counter()
    with limited_threads(1):
        shots = data.shots(cell.trial, cell.shots)
        made, made_labels = _augment(learned.augmenters[cell.method], shots, cell)
        classifier = learned.classifier(cell.method, cell.classifier)
        scores = _score(data, shots, made, made_labels, classifier)
        figures = _spread(data, made, made_labels)
    common = {"classifier": cell.classifier, "seed": cell.seed, **figures}
    seconds = round(time.perf_counter() - start, 3)
    return [
        {
            "method": cell.method,
            "setting": setting,
            "shots": cell.shots,
            "trial": cell.trial,
            **accuracies,
            **common,
            "seconds": seconds,
        }
        for setting, accuracies in (("LSL", _lsl(scores)), ("GLSL", _glsl(scores)))
    ]


def cell_seed(seed: int, trial: int, shots: int) -> int:
    """Give one seed for each cell: not to depend on which cells were done before, and by whom."""
    return int(np.random.SeedSequence([seed, trial, shots]).generate_state(1)[0] >> 1)


def _augment(augmenter: BaseAugmenter | None, shots: FeatureSet, cell: Cell) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if augmenter is None:
        return np.empty((0, shots.dimension), np.float32), np.empty(0, np.int64)
    augmenter.random_state = cell_seed(cell.seed, cell.trial, cell.shots)
    names = [("novel", int(label)) for label in shots.labels]
    made, made_names = augmenter.augment(shots.features, names)
    return np.asarray(made), np.array([name[1] for name in made_names], dtype=np.int64)


def _score(
    data: BenchmarkData, shots: FeatureSet, made: NDArray[Any], made_labels: NDArray[np.int64], classifier: Any
) -> LowShotScores:
    """Test with numbered classes, base first: names may be of types that cannot be sorted together."""
    n_base = data.base_train.n_classes
    X = np.concatenate([data.base_train.features, shots.features, made.astype(np.float32, copy=False)])
    y = np.concatenate([data.base_train.labels, n_base + shots.labels, n_base + made_labels])
    X_test = np.concatenate([data.base_test.features, data.novel_test.features])
    y_test = np.concatenate([data.base_test.labels, n_base + data.novel_test.labels])
    return evaluate_low_shot(classifier.fit(X, y), X_test, y_test, n_base + np.arange(shots.n_classes), TOP)


def _spread(data: BenchmarkData, made: NDArray[Any], made_labels: NDArray[np.int64]) -> dict[str, float | None]:
    if not len(made):
        return {"diversity": None, "real_diversity": None, "covariance_distance": None}
    return asdict(spread(made, made_labels, data.novel_test.features, data.novel_test.labels))


def _lsl(scores: LowShotScores) -> dict[str, float | None]:
    parts = ("base", "novel", "harmonic")
    empty: dict[str, float | None] = {f"{part}_top{k}": None for part in parts for k in TOP}
    return {**{f"top{k}": scores.lsl[k] for k in TOP}, **empty}


def _glsl(scores: LowShotScores) -> dict[str, float | None]:
    parts = {"base": scores.glsl_base, "novel": scores.glsl_novel, "harmonic": scores.glsl_harmonic}
    return {
        **{f"top{k}": scores.glsl[k] for k in TOP},
        **{f"{part}_top{k}": values[k] for part, values in parts.items() for k in TOP},
    }


NORMALIZATIONS = ("none", "l2", "center-l2")


@dataclass(frozen=True, eq=False)
class Normalization:
    """``none``; ``l2``, x / ‖x‖; or ``center-l2``, (x − μ) / ‖x − μ‖ with μ the mean of the base examples.

    >>> base = FeatureSet([[3.0, 4.0], [0.0, 2.0]], ["a", "b"])
    >>> Normalization.fitted("l2", base).apply(base).features.tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 1.0]]
    """

    kind: str
    mean: NDArray[Any] | None

    @classmethod
    def fitted(cls, kind: str, base: FeatureSet) -> "Normalization":
        """Choose a normalisation by name and learn what it needs from base examples."""
        if kind not in NORMALIZATIONS:
            raise InputError(f"unknown normalization {kind!r}; choose one of {', '.join(NORMALIZATIONS)}")
        mean = base.features.mean(axis=0, dtype=np.float64) if kind == "center-l2" else None
        return cls(kind, mean)

    def apply(self, feature_set: FeatureSet) -> FeatureSet:
        """Normalise features, in single precision; an example of length zero stays as it is."""
        if self.kind == "none":
            features = feature_set.features.astype(np.float32)
        else:
            centred = feature_set.features.astype(np.float64) - (0.0 if self.mean is None else self.mean)
            lengths = np.linalg.norm(centred, axis=1, keepdims=True)
            features = (centred / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)
        return FeatureSet(features, feature_set.labels, feature_set.classes)
