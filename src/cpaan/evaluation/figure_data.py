"""Draws the sample that a run keeps for its figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.named import CPAAN
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.evaluation.cell import cell_seed
from cpaan.evaluation.sample import REAL, Features, Indices, MadeSample, RealSample, part_path, write_part
from cpaan.math.prototypes import prototypes
from cpaan.threads import limited_threads

MOST_CLASSES = 8  # as many as can be told apart in a figure
MOST_EXAMPLES, FEWEST_EXAMPLES = 40, 4
MOST_NUMBERS = 2**18  # of a file: half a megabyte in half precision
NEAREST, BASE_EXAMPLES = 3, 20
ALPHA_ROWS, ALPHA_LENDERS = 40, 3


@dataclass(frozen=True)
class Drawer:
    """Draws samples of a benchmark: of the first trial, with the fewest shots of the run.

    Attributes
    ----------
    folder : of the run
    data : normalised as the run asks
    shots : number of shots K
    seed : of the run
    """

    folder: Path
    data: BenchmarkData
    shots: int
    seed: int

    def missing(self, methods: Mapping[str, Any]) -> list[str]:
        """List those of some methods that have no sample yet."""
        return [name for name in methods if not part_path(self.folder, name).exists()]

    def draw(self, augmenters: Mapping[str, BaseAugmenter | None]) -> None:
        """Write what is missing of the sample."""
        with limited_threads(1):
            shots = self.data.shots(0, self.shots)
            if not part_path(self.folder, REAL).exists():
                write_part(self.folder, REAL, real_sample(self.data, shots, self.shots))
            for name in self.missing(augmenters):
                augmenter = augmenters[name]
                if augmenter is not None:
                    write_part(self.folder, name, self._made(augmenter, shots))

    def _made(self, augmenter: BaseAugmenter, shots: FeatureSet) -> MadeSample:
        places = shown_classes(shots.n_classes)
        known = shots.select([shots.classes[place] for place in places])
        augmenter.random_state = cell_seed(self.seed, 0, self.shots)
        number = _per_class(len(places), shots.dimension, MOST_EXAMPLES)
        names = [("novel", int(label)) for label in known.labels]
        made, made_names = augmenter.augment(known.features, names, per_class=number)
        labels = np.array([name[1] for name in made_names], dtype=np.int64)
        return MadeSample(np.asarray(made), labels, *_alpha(augmenter, shots, self.data.base_classes))


def real_sample(data: BenchmarkData, shots: FeatureSet, shots_per_class: int) -> RealSample:
    """Take a few real examples of some novel classes and of their nearest base classes."""
    places = shown_classes(shots.n_classes)
    number = _per_class(len(places), shots.dimension, MOST_EXAMPLES)
    real_rows, real_labels, real_places = _some_of_each(data.novel_test.labels, places, number)
    known = [np.flatnonzero(shots.labels == place) for place in places]
    base_means = _means(data.base_train)
    nearest, distances = _nearest(_means(shots)[places], base_means)
    shown, inverse = np.unique(nearest, return_inverse=True)
    base_number = _per_class(len(shown), shots.dimension, BASE_EXAMPLES)
    base_rows, base_labels, _ = _some_of_each(data.base_train.labels, shown, base_number)
    return RealSample(
        classes=tuple(str(data.novel_classes[place]) for place in places),
        base_classes=tuple(str(data.base_classes[place]) for place in shown),
        shots_per_class=shots_per_class,
        real=data.novel_test.features[real_rows],
        real_labels=real_labels,
        real_places=real_places,
        real_counts=data.novel_test.counts[places],
        shots=shots.features[np.concatenate(known)],
        shot_labels=np.repeat(np.arange(len(places)), [len(rows) for rows in known]),
        base=data.base_train.features[base_rows],
        base_labels=base_labels,
        nearest=inverse.reshape(nearest.shape),
        distances=distances,
    )


def shown_classes(n_classes: int, most: int = MOST_CLASSES) -> Indices:
    """Choose classes evenly spread over all.

    >>> shown_classes(100, most=3)
    array([ 0, 50, 99])
    """
    return np.unique(np.linspace(0, n_classes - 1, most).round().astype(np.int64))


def _per_class(n_classes: int, dimension: int, most: int) -> int:
    return int(np.clip(MOST_NUMBERS // (n_classes * dimension), FEWEST_EXAMPLES, most))


def _some_of_each(labels: Indices, classes: Indices, number: int) -> tuple[Indices, Indices, Indices]:
    """Give rows of some classes, evenly spread; the index of the class of each; and its place among all of it."""
    rows, indices, places = [], [], []
    for index, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        chosen = np.unique(np.linspace(0, len(members) - 1, number).round().astype(np.int64))
        rows.append(members[chosen])
        indices.append(np.full(len(chosen), index))
        places.append(chosen)
    return np.concatenate(rows), np.concatenate(indices), np.concatenate(places)


def _means(examples: FeatureSet) -> NDArray[np.float64]:
    sums = np.zeros((examples.n_classes, examples.dimension))
    np.add.at(sums, examples.labels, examples.features)
    means: NDArray[np.float64] = sums / examples.counts[:, None]
    return means


def _nearest(novel: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[Indices, Features]:
    squared = (novel**2).sum(1)[:, None] + (base**2).sum(1) - 2 * novel @ base.T
    distances = np.sqrt(np.maximum(squared, 0))
    order = np.argsort(distances, axis=1, kind="stable")[:, :NEAREST]
    return order, np.take_along_axis(distances, order, axis=1)


def _alpha(
    augmenter: BaseAugmenter, shots: FeatureSet, base_classes: tuple[Any, ...]
) -> tuple[Features, tuple[str, ...], tuple[str, ...]]:
    """Give the neighbourhood of an augmenter that has one: some novel classes, and the base classes that lend most."""
    if not isinstance(augmenter, CPAAN):
        return np.empty((0, 0), np.float32), (), ()
    base = augmenter.model_.base
    features, labels = shots.to_torch()
    centroids = prototypes(augmenter.units_.apply(features.double()), labels, shots.n_classes).float()
    alpha = augmenter.model_.neighborhood.similarity(centroids.to(base.prototypes.device), base.prototypes)
    rows = shown_classes(shots.n_classes, ALPHA_ROWS)
    found = alpha.float().cpu().numpy()[rows]
    columns = np.unique(np.argsort(-found, axis=1, kind="stable")[:, :ALPHA_LENDERS])
    novel, lenders = (shots.classes[row] for row in rows), (base_classes[column] for column in columns)
    return found[:, columns], tuple(map(str, novel)), tuple(map(str, lenders))
