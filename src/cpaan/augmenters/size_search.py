"""How large novel classes are made, in average sizes of base classes, chosen on base classes held out as if novel.

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

from cpaan.augmenters.model import moved_to
from cpaan.centers.class_center import (
    PERPLEXITY,
    CenterConstants,
    center_noise,
    class_centers,
    fit_center_model,
    lengths_about,
)
from cpaan.centers.held_out import FEWEST_QUERIES, affordable_rounds
from cpaan.classifiers.linear import LinearClassifier
from cpaan.math.linear_gaussian import class_moments
from cpaan.math.neighborhood import calibrated_temperature

LARGEST = 4
# Twice the examples must gain so many points, and more than Student's t gives to chance, one-sided.
LEAST_GAIN, CONFIDENCE = 0.25, 0.95
SHOTS = (1, 5)
# Every FOLDS-th class is held out, as often as there are DRAWS; bounds on what a draw takes.
FOLDS, DRAWS = 4, 3
FEWEST_CLASSES, MOST_CLASSES, MOST_EXAMPLES, MOST_QUERIES = 20, 80, 60, 30
MOST_WORK = 2e8  # examples × features × classes


@dataclass(frozen=True)
class _Task:
    """Some classes held out, numbered after those that remain, and what is known of them.

    Attributes
    ----------
    features, labels : examples of the remaining classes, and K shots of the others
    n_base : number of remaining classes
    size : average number of their examples
    k : K
    centers : (N, D), estimated of the held-out classes
    deviations : of the remaining classes' examples from their means
    noise : size of the noise that deviations get beside
    queries, query_labels : of all classes
    """

    features: Tensor
    labels: Tensor
    n_base: int
    size: int
    k: int
    centers: Tensor
    deviations: Tensor
    noise: float
    queries: Tensor
    query_labels: Tensor


def choose_size(
    sample: Sequence[Tensor], constants: CenterConstants, *, factor: float, noise: float, generator: torch.Generator
) -> int:
    """Choose the multiple of the average size of a base class that novel classes are filled up to.

    Parameters
    ----------
    sample : examples of each base class, see `cpaan.centers.held_out.class_sample`
    constants : of the estimate of centres
    factor : what the user's features were multiplied with, since the classifier will see those
    noise : what the noise about centres is multiplied with
    generator : decides every random draw
    """
    large = [examples for examples in sample if len(examples) >= 2 * (max(SHOTS) + FEWEST_QUERIES)]
    if len(large) < FEWEST_CLASSES or not constants.shots or affordable_rounds(DRAWS, large[0].shape[1]) < DRAWS:
        return 1
    tasks = [list(_draw_tasks(large, constants, noise, generator)) for _ in range(DRAWS)]
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


def _draw_tasks(
    sample: Sequence[Tensor], constants: CenterConstants, noise: float, generator: torch.Generator
) -> Iterator[_Task]:
    """Hold some classes out, and give a task for each number of shots."""
    order = torch.randperm(len(sample), generator=generator)[: _most_classes(sample[0].shape[1])].tolist()
    n_held = len(order) // FOLDS
    n_base = len(order) - n_held
    known, queries = [], []
    for c in order:
        examples = sample[c][torch.randperm(len(sample[c]), generator=generator)]
        n_queries = min(MOST_QUERIES, len(examples) // 2)
        queries.append(examples[:n_queries])
        known.append(examples[n_queries:][:MOST_EXAMPLES])
    base, base_labels = torch.cat(known[:n_base]), _labels(known[:n_base])
    moments = class_moments(base, base_labels, n_base)
    length = float(lengths_about(base, moments.means.mean(0)).mean())
    model = fit_center_model(moments, length, constants, calibrated_temperature(moments.means, PERPLEXITY))
    for k in SHOTS:
        held_out = [examples[:k] for examples in known[n_base:]]
        shots, shot_labels = torch.cat(held_out), _labels(held_out)
        yield _Task(
            features=torch.cat([base, shots]),
            labels=torch.cat([base_labels, n_base + shot_labels]),
            n_base=n_base,
            size=round(len(base) / n_base),
            k=k,
            centers=class_centers(model, shots, shot_labels, n_held),
            deviations=base - moments.means[base_labels],
            noise=noise * float(center_noise(model, torch.tensor([k]))),
            queries=torch.cat(queries),
            query_labels=_labels(queries),
        )


def _most_classes(dimension: int) -> int:
    affordable = int((MOST_WORK / (MOST_EXAMPLES * dimension)) ** 0.5)
    return max(FEWEST_CLASSES, min(MOST_CLASSES, affordable))


def _labels(parts: Sequence[Tensor]) -> Tensor:
    return torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))


def _accuracies(
    draws: Sequence[Sequence[_Task]], multiple: int, decay: float, generator: torch.Generator
) -> NDArray[np.float64]:
    """Give the accuracy of each draw with classes of a size, the mean over its tasks."""
    found = [[_accuracy(task, multiple * task.size - task.k, decay, generator) for task in tasks] for tasks in draws]
    accuracies: NDArray[np.float64] = np.array(found).mean(1)
    return accuracies


def _accuracy(task: _Task, number: int, decay: float, generator: torch.Generator) -> float:
    """Give the mean of LSL and GLSL accuracy, in percent, with so many examples made of each held-out class."""
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
