"""Where training takes its pixels from: held on the device where there is room, or else decoded again and again.

All images of a loader at once, on a device.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cpaan.data.feature_set import IndexArray
from cpaan.errors import InputError
from cpaan.representations.images import ImageIndex
from cpaan.representations.loading import ImageLoader
from cpaan.representations.order import Part

_BATCH = 256
# The label and the row are 64-bit numbers.
_BYTES_BESIDE_PIXELS = 16


class PixelCache:
    """All images of a loader, decoded once and held on a device as bytes.

    Parameters
    ----------
    pixels : Tensor of uint8 of shape (n, 3, S, S)
        The images.
    labels : Tensor of int64 of shape (n,)
        Class indices.
    rows : Tensor of int64 of shape (n,)
        Which entries of the index these are: all of them, but for those that were skipped.

    Examples
    --------
    >>> cache = PixelCache(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]), torch.arange(4))
    >>> pixels, labels = cache.batch(torch.tensor([3, 0]))
    >>> pixels.shape, labels
    (torch.Size([2, 3, 8, 8]), tensor([1, 0]))
    """

    def __init__(self, pixels: Tensor, labels: Tensor, rows: Tensor) -> None:
        self.pixels = pixels
        self.labels = labels
        self.rows = rows

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def load(
        cls, loader: ImageLoader, device: torch.device | str, tell: Callable[[int, int], None] | None = None
    ) -> "PixelCache":
        """Decode all images of a loader's index, in its order.

        Parameters
        ----------
        loader : ImageLoader
            Gives the images; it must decode to pixels.
        device : torch.device or str
            Where to hold them; `cache_bytes` tells how much room they take.
        tell : callable, optional
            Called with the number of images done and that of all, now and then.

        Returns
        -------
        PixelCache
            Without the images that the loader skipped.

        Raises
        ------
        InputError
            Where an image cannot be read and is to be refused, or none can be read.
        """
        total = len(loader.index)
        pixels = torch.empty((total, 3, loader.size, loader.size), dtype=torch.uint8, device=device)
        kept: list[Tensor] = []
        filled = 0
        for batch in loader.batches(np.arange(total), _BATCH):
            if not len(batch):
                continue
            if not _are_pixels(batch.pixels, loader.size):
                raise InputError("a cache holds pixels only; give a loader without a decode of its own")
            pixels[filled : filled + len(batch)].copy_(batch.pixels, non_blocking=True)
            filled += len(batch)
            kept.append(batch.rows)
            if tell is not None:
                tell(int(batch.rows[-1]) + 1, total)
        loader.require_readable(filled)
        rows = torch.cat(kept)
        labels = torch.from_numpy(loader.index.labels[rows.numpy()])
        return cls(pixels[:filled], labels.to(device), rows.to(device))

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Give some images.

        Parameters
        ----------
        rows : Tensor of int64 on the same device
            Positions in this cache, from 0 to `len(cache) - 1`. They are rows of the index unless images were skipped.

        Returns
        -------
        pixels : Tensor of uint8 of shape (len(rows), 3, S, S)
            The images.
        labels : Tensor of int64 of shape (len(rows),)
            Class indices.
        """
        return self.pixels[rows], self.labels[rows]


def cache_bytes(index: ImageIndex, size: int) -> int:
    """Tell how much memory a cache of all images takes.

    Parameters
    ----------
    index : ImageIndex
        The images.
    size : int
        Sides of the decoded images.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> cache_bytes(ImageIndex(("oak",), ()), size=64)
    0
    """
    return len(index) * (3 * size * size + _BYTES_BESIDE_PIXELS)


def _are_pixels(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.shape[1:] == (3, size, size)


CACHES = ("auto", "always", "never")
SHARE_OF_MEMORY = {"cuda": 0.7, "cpu": 0.3}  # the rest is for the network, or for what else the machine does


class Pixels(Protocol):
    """Decoded images of known classes."""

    @property
    def labels(self) -> IndexArray:
        """Class index of each image."""

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Tensor]]:
        """Give each part with its pixels on the device; a part has lost the images that cannot be read."""

    def close(self) -> None:
        """Let go of what was started to read them."""


@dataclass(frozen=True)
class HeldPixels:
    """Pixels that lie on the device, n × 3 × S × S bytes."""

    cache: PixelCache

    @property
    def labels(self) -> IndexArray:
        """Class index of each image."""
        found: IndexArray = self.cache.labels.cpu().numpy()
        return found

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Tensor]]:
        """Give each part with its pixels."""
        device = self.cache.pixels.device
        for part in parts:
            yield part, self.cache.pixels[torch.from_numpy(part.rows).to(device, non_blocking=True)]

    def close(self) -> None:
        """Do nothing: nothing was started."""


@dataclass(frozen=True)
class StreamedPixels:
    """Pixels that workers decode a few batches ahead."""

    loader: ImageLoader
    device: torch.device

    @property
    def labels(self) -> IndexArray:
        """Class index of each image."""
        return self.loader.index.labels

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Tensor]]:
        """Give each part with its pixels; parts are of one size."""
        ahead, wanted = tee(parts)
        first = next(ahead, None)
        if first is None:
            return
        order = np.concatenate([part.rows for part in chain([first], ahead)])
        batches = self.loader.batches(order, len(first.rows))
        for part, batch in zip(wanted, batches, strict=True):
            rows = batch.rows.numpy()
            if not len(rows):
                name, reason = list(self.loader.skipped.items())[-1]
                raise InputError(
                    f"none of the {len(part.rows)} images of a batch can be read, such as {name}: {reason}; mend or "
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


def open_pixels(
    loader: ImageLoader, device: torch.device, cache: str, tell: Callable[[int, int], None] | None = None
) -> Pixels:
    """Hold all pixels on the device if they leave enough of its memory, or else stream them.

    Parameters
    ----------
    loader : gives the images
    device : where they are wanted
    cache : ``"auto"``, ``"always"`` or ``"never"``
    tell : called with the number of images decoded and that of all, where they are held
    """
    if cache not in CACHES:
        raise InputError(f"cache must be one of {', '.join(CACHES)}, not {cache!r}")
    share = SHARE_OF_MEMORY["cuda" if device.type == "cuda" else "cpu"]
    fits = cache_bytes(loader.index, loader.size) <= share * memory_of(device)
    if cache == "never" or (cache == "auto" and not fits):
        return StreamedPixels(loader, device)
    held = PixelCache.load(loader, device, tell)
    loader.close()
    return HeldPixels(held)


def memory_of(device: torch.device) -> int:
    """Give the free memory of a GPU, or this process's share of the machine's memory, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text()))
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
