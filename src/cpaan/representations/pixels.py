"""Which images each training step sees, and where their pixels come from.

A step consists of parts, each normalised on its own. Every process takes some of them, or all if it is alone, so many
processes with one part each compute what one process with many parts does. A part depends on the seed, the step and its
index alone, so training can resume at any step.

Pixels stay in the device's memory if they fit, or else are decoded again in every epoch.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cpaan.data.feature_set import IndexArray
from cpaan.errors import InputError
from cpaan.representations.loading import ImageLoader
from cpaan.representations.recipe import BackboneRecipe

SHARE_OF_MEMORY = {"cuda": 0.7, "cpu": 0.3}  # the rest is for the network, or for other programs
_BATCH = 256


@dataclass(frozen=True)
class Part:
    """Images that are normalised together."""

    rows: IndexArray
    n_support: int  # the first images, which are the support of a task; 0 for a plain batch
    seed: int  # of their augmentation


@dataclass(frozen=True)
class ShuffledOrder:
    """Every image once per epoch, except the few that do not fill a batch."""

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
        """Return one part of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        size = self.batch_size // self.parts
        start = place * self.batch_size + index * size
        rows = _shuffled(self.n_images, self.seed, epoch)[start : start + size]
        return Part(rows, 0, _seed(self.seed, step, index))


@lru_cache(maxsize=2)
def _shuffled(n_images: int, seed: int, epoch: int) -> IndexArray:
    return np.random.default_rng([seed, epoch]).permutation(n_images)


@dataclass(frozen=True, eq=False)
class TaskOrder:
    """Tasks of `ways` classes with `shots` support images and `queries` others of each; every part is a task."""

    labels: IndexArray
    ways: int
    shots: int
    queries: int
    parts: int
    seed: int

    def __post_init__(self) -> None:
        there = int(self.labels.max()) + 1
        if there < self.ways:
            raise InputError(f"a task needs {self.ways} classes, but there are only {there}; give fewer ways")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that see as many images as there are."""
        return max(1, len(self.labels) // (self.parts * self.ways * (self.shots + self.queries)))

    def part(self, step: int, index: int) -> Part:
        """Return one task of a step."""
        rng = np.random.default_rng([self.seed, step, index])
        classes = rng.permutation(len(self._members))[: self.ways]
        drawn = [rng.choice(self._members[c], self.shots + self.queries, replace=False) for c in classes]
        rows = np.concatenate([rows[: self.shots] for rows in drawn] + [rows[self.shots :] for rows in drawn])
        return Part(rows, self.ways * self.shots, _seed(self.seed, step, index))

    @cached_property
    def _members(self) -> list[IndexArray]:
        return [np.flatnonzero(self.labels == label) for label in range(int(self.labels.max()) + 1)]


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_order(
    kind: str, labels: IndexArray, recipe: BackboneRecipe, parts: int, seed: int
) -> ShuffledOrder | TaskOrder:
    """Choose the order in which a kind of backbone sees images of the given classes."""
    if kind == "resnet10":
        return ShuffledOrder(len(labels), recipe.batch_size, parts, seed)
    return TaskOrder(labels, recipe.ways, recipe.shots, recipe.queries, parts, seed)


@dataclass(frozen=True)
class PixelCache:
    """All readable images of a loader, decoded once and held on a device as n × 3 × S × S bytes."""

    pixels: Tensor
    labels: IndexArray

    @classmethod
    def load(
        cls, loader: ImageLoader, device: torch.device | str, tell: Callable[[int, int], None] | None = None
    ) -> "PixelCache":
        """Decode all images; `tell` is called with the number done and the total."""
        if loader.decode is not None:
            raise InputError("a cache holds only pixels; give a loader without decode")
        total = len(loader.index)
        pixels = torch.empty((total, 3, loader.size, loader.size), dtype=torch.uint8, device=device)
        rows: list[int] = []
        for batch in loader.batches(np.arange(total), _BATCH):
            if len(batch.rows):
                pixels[len(rows) : len(rows) + len(batch.rows)].copy_(batch.pixels, non_blocking=True)
                rows += batch.rows.tolist()
                if tell is not None:
                    tell(rows[-1] + 1, total)
        loader.require_readable(len(rows))
        return cls(pixels[: len(rows)], loader.index.labels[rows])

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Tensor]]:
        """Return each part with its pixels."""
        for part in parts:
            yield part, self.pixels[torch.from_numpy(part.rows).to(self.pixels.device, non_blocking=True)]

    def close(self) -> None:
        """Do nothing: a cache has no processes."""


@dataclass(frozen=True)
class StreamedPixels:
    """Images that workers decode a few batches ahead."""

    loader: ImageLoader
    device: torch.device

    @property
    def labels(self) -> IndexArray:
        """Class index of each image."""
        return self.loader.index.labels

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Tensor]]:
        """Return each part, without unreadable images, and its pixels; all parts but the last have one size."""
        parts = list(parts)
        order = np.concatenate([part.rows for part in parts])
        for part, batch in zip(parts, self.loader.batches(order, len(parts[0].rows)), strict=True):
            rows = batch.rows.numpy()
            if not len(rows):
                name, reason = list(self.loader.skipped.items())[-1]
                raise InputError(
                    f"none of the {len(part.rows)} images of a batch can be read, such as {name}: {reason}; repair or "
                    "remove them"
                )
            yield _without_missing(part, rows), batch.pixels.to(self.device, non_blocking=True)

    def close(self) -> None:
        """End the processes that decode."""
        self.loader.close()


def _without_missing(part: Part, rows: IndexArray) -> Part:
    if len(rows) == len(part.rows):
        return part
    return Part(rows, int(np.isin(rows, part.rows[: part.n_support]).sum()), part.seed)


Pixels: TypeAlias = PixelCache | StreamedPixels


def open_pixels(
    loader: ImageLoader, device: torch.device, cache: str, tell: Callable[[int, int], None] | None = None
) -> Pixels:
    """Hold all pixels on the device if they leave enough of its memory, or else stream them."""
    share = SHARE_OF_MEMORY["cuda" if device.type == "cuda" else "cpu"]
    fits = len(loader.index) * 3 * loader.size**2 <= share * _memory(device)
    if cache == "never" or (cache == "auto" and not fits):
        return StreamedPixels(loader, device)
    held = PixelCache.load(loader, device, tell)
    loader.close()
    return held


def _memory(device: torch.device) -> int:
    """Free memory of a GPU, or this process's share of the machine's memory, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text()))
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
