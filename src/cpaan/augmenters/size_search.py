"""Choose how many examples to synthesise per class, by cross-validation over base classes.

A classifier that is trained on all classes at once finds too few examples of those that it can hardly tell from others,
and more synthetic examples may make up for it. From the average size of a base class on, the size is doubled as long as
that gains on held-out classes by more than chance, with the linear classifier and in the mean of both settings. No
networks are needed for it: examples are estimated centres and deviations of the classes that remain. With few base
classes there is nothing but chance, and with more than a thousand features or so it would take too long.

Less than the average size is not tried. Features that were trained on the base classes tell held-out ones so well apart
that half the size seems to be enough, and novel classes then lose points.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from cpaan.centers.calibrated import Calibrated
from cpaan.centers.cross_validation import (
    FEWEST_QUERIES,
    affordable_rounds,
    class_sample,
    draw_folds,
    draw_trial,
    part_labels,
)
from cpaan.classifiers.linear import LinearClassifier
from cpaan.deviations.base import moved_to
from cpaan.training.bank import ClassBank

LARGEST = 4
# Twice the examples must gain so many points, and more than Student's t gives to chance, one-sided.
LEAST_GAIN, CONFIDENCE = 0.25, 0.95
SHOTS = (1, 5)
# One fold is held out in each of DRAWS rounds; bounds on what a round takes.
DRAWS = 3
FEWEST_CLASSES, MOST_CLASSES, MOST_EXAMPLES, MOST_QUERIES = 20, 80, 60, 30
MOST_WORK = 2e8  # examples × features × classes


@dataclass(frozen=True)
class _Task:
    """A fold and K shots of its held-out classes, which are numbered after those that remain."""

    features: Tensor  # of the remaining classes, then the shots
    labels: Tensor
    n_base: int
    size: int  # average number of examples of a remaining class
    k: int
    centers: Tensor  # (N, D), estimated of the held-out classes
    deviations: Tensor  # of the remaining classes' examples from their means
    noise: float  # standard deviation of the noise about a centre
    queries: Tensor  # of all classes
    query_labels: Tensor


def choose_size(bank: ClassBank, center: Calibrated, *, factor: float, seed: int) -> int:
    """Choose the multiple of the average size of a base class that novel classes are filled up to.

    `factor` is what the user's features were multiplied with: the classifier will see those.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = class_sample(bank, generator)
    large = [examples for examples in sample if len(examples) >= 2 * (max(SHOTS) + FEWEST_QUERIES)]
    if len(large) < FEWEST_CLASSES or not center.constants_.shots or affordable_rounds(DRAWS, bank.dimension) < DRAWS:
        return 1
    tasks = [list(_draw_tasks(large, center, generator)) for _ in range(DRAWS)]
    decay = LinearClassifier().weight_decay * factor**2  # the same penalty as on features in the user's units
    chosen, accuracies = 1, _accuracies(tasks, 1, decay, generator)
    while chosen < LARGEST:
        of_larger = _accuracies(tasks, 2 * chosen, decay, generator)
        gains = of_larger - accuracies
        by_chance = float(student.ppf(CONFIDENCE, DRAWS - 1)) * gains.std(ddof=1) / DRAWS**0.5
        if gains.mean() < max(LEAST_GAIN, by_chance):
            break
        chosen, accuracies = 2 * chosen, of_larger
    return chosen


def _draw_tasks(sample: Sequence[Tensor], center: Calibrated, generator: torch.Generator) -> Iterator[_Task]:
    """Hold a fold out, and return a task for each number of shots; queries of all classes are kept apart."""
    order = torch.randperm(len(sample), generator=generator)[: _most_classes(sample[0].shape[1])].tolist()
    mixed = [sample[c][torch.randperm(len(sample[c]), generator=generator)] for c in order]
    queries = [examples[: min(MOST_QUERIES, len(examples) // 2)] for examples in mixed]
    known = [x[len(q) :][:MOST_EXAMPLES] for x, q in zip(mixed, queries, strict=True)]
    fold = next(draw_folds(known, 1, generator, turns=1, queries=queries))
    model, n_base = center.refit(fold.bank), len(fold.rest)
    base, base_labels = torch.cat(fold.rest), part_labels(fold.rest)
    for k in SHOTS:
        trial = draw_trial(fold, k, generator)
        assert trial is not None  # every class is large enough
        n_held = len(trial.shots)
        shots, shot_labels = trial.shots.flatten(0, 1) + fold.mean, torch.arange(n_held).repeat_interleave(k)
        yield _Task(
            features=torch.cat([base, shots]),
            labels=torch.cat([base_labels, n_base + shot_labels]),
            n_base=n_base,
            size=round(len(base) / n_base),
            k=k,
            centers=model.estimate(shots, shot_labels, n_held),
            deviations=base - fold.moments.means[base_labels],
            noise=float(model.uncertainty(torch.tensor([k])).sizes),
            queries=trial.queries + fold.mean,
            query_labels=torch.cat([n_base + trial.labels, fold.query_labels]),
        )


def _most_classes(dimension: int) -> int:
    affordable = int((MOST_WORK / (MOST_EXAMPLES * dimension)) ** 0.5)
    return max(FEWEST_CLASSES, min(MOST_CLASSES, affordable))


def _accuracies(
    draws: Sequence[Sequence[_Task]], multiple: int, decay: float, generator: torch.Generator
) -> NDArray[np.float64]:
    """Return the accuracy of each draw with classes of a size, the mean over its tasks."""
    found = [[_accuracy(task, multiple * task.size - task.k, decay, generator) for task in tasks] for tasks in draws]
    accuracies: NDArray[np.float64] = np.array(found).mean(1)
    return accuracies


def _accuracy(task: _Task, number: int, decay: float, generator: torch.Generator) -> float:
    """Return the mean of LSL and GLSL accuracy, in percent, with so many examples made of each held-out class."""
    n_held, dimension = task.centers.shape
    made_labels = torch.arange(n_held).repeat_interleave(number)
    drawn = task.deviations[torch.randint(len(task.deviations), (len(made_labels),), generator=generator)]
    noise = torch.randn((len(made_labels), dimension), generator=generator, dtype=drawn.dtype)
    made = moved_to(drawn + task.noise * noise, made_labels, task.centers)
    X = torch.cat([task.features, made]).float().numpy()
    y = torch.cat([task.labels, task.n_base + made_labels]).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # close enough to compare sizes
        classifier = LinearClassifier(weight_decay=decay, precision="single").fit(X, y)
    scores = torch.as_tensor(classifier.decision_function(task.queries.numpy()))
    of_all = (scores.argmax(1) == task.query_labels).double().mean()
    novel = task.query_labels >= task.n_base
    of_novel = (scores[novel][:, task.n_base :].argmax(1) == task.query_labels[novel] - task.n_base).double().mean()
    return 50 * float(of_all + of_novel)
