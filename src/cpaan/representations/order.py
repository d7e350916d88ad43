"""Which images a step of training sees.

The images of a step are those of its parts. A process takes some of the parts, all of them where it is alone, and
normalises each on its own; so many processes with one part each do what one process with many parts does. What a part
holds follows from the seed, the step and the part alone, so training can go on from any step.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from cpaan.data.feature_set import IndexArray
from cpaan.errors import InputError
from cpaan.representations.recipe import BackboneRecipe


@dataclass(frozen=True)
class Part:
    """Images that are normalised together.

    Attributes
    ----------
    rows : which images
    n_support : how many of them, from the first, are the support of a task; 0 for a plain batch
    seed : of their augmentation
    """

    rows: IndexArray
    n_support: int
    seed: int


class Order(Protocol):
    """Gives the parts of every step."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in which about as many images are seen as there are."""

    def part(self, step: int, index: int) -> Part:
        """Give one part of a step."""


@dataclass(frozen=True)
class ShuffledOrder:
    """Every image once in an epoch, but for the few that do not fill a batch.

    >>> order = ShuffledOrder(n_images=10, batch_size=4, parts=2, seed=0)
    >>> order.steps_per_epoch, len(order.part(0, 1).rows)
    (2, 2)
    """

    n_images: int
    batch_size: int
    parts: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size % self.parts:
            raise InputError(
                f"a batch of {self.batch_size} images cannot be split into {self.parts} equal parts; give a batch_size "
                "that is a multiple of processes × accumulate"
            )
        if self.n_images < self.batch_size:
            raise InputError(
                f"there are {self.n_images} training images, fewer than a batch of {self.batch_size}; give a smaller "
                "batch_size"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches."""
        return self.n_images // self.batch_size

    def part(self, step: int, index: int) -> Part:
        """Give one part of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        shuffled = _shuffled(self.n_images, self.seed, epoch)
        size = self.batch_size // self.parts
        start = place * self.batch_size + index * size
        return Part(shuffled[start : start + size], 0, _seed(self.seed, step, index))


@lru_cache(maxsize=2)
def _shuffled(n_images: int, seed: int, epoch: int) -> IndexArray:
    return np.random.default_rng([seed, epoch]).permutation(n_images)


@dataclass(frozen=True, eq=False)
class TaskOrder:
    """Tasks of `ways` classes with `shots` support images and `queries` further ones of each; a part is a task.

    >>> order = TaskOrder(np.array([0, 0, 0, 1, 1, 1]), ways=2, shots=1, queries=2, parts=1, seed=0)
    >>> task = order.part(0, 0)
    >>> task.n_support, sorted(task.rows.tolist())
    (2, [0, 1, 2, 3, 4, 5])
    """

    labels: IndexArray
    ways: int
    shots: int
    queries: int
    parts: int
    seed: int

    def __post_init__(self) -> None:
        counts = np.bincount(self.labels)
        if len(counts) < self.ways:
            raise InputError(f"a task has {self.ways} classes, and there are {len(counts)}; give fewer ways")
        if counts.min() < self.shots + self.queries:
            raise InputError(
                f"a task takes {self.shots} + {self.queries} images of a class, and the smallest class has "
                f"{counts.min()}; give fewer shots or queries, or more images"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that see as many images as there are."""
        return max(1, len(self.labels) // (self.parts * self.ways * (self.shots + self.queries)))

    def part(self, step: int, index: int) -> Part:
        """Give one task of a step."""
        rng = np.random.default_rng([self.seed, step, index])
        classes = rng.permutation(len(self._members))[: self.ways]
        drawn = [rng.choice(self._members[c], self.shots + self.queries, replace=False) for c in classes]
        support = [rows[: self.shots] for rows in drawn]
        queries = [rows[self.shots :] for rows in drawn]
        rows = np.concatenate([*support, *queries])
        return Part(rows, self.ways * self.shots, _seed(self.seed, step, index))

    @cached_property
    def _members(self) -> list[IndexArray]:
        return [np.flatnonzero(self.labels == label) for label in range(int(self.labels.max()) + 1)]


def make_order(kind: str, labels: IndexArray, recipe: BackboneRecipe, parts: int, seed: int) -> Order:
    """Make the order in which a kind of backbone sees images of given classes."""
    if kind == "resnet10":
        return ShuffledOrder(len(labels), recipe.batch_size, parts, seed)
    return TaskOrder(labels, recipe.ways, recipe.shots, recipe.queries, parts, seed)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
