"""All images of a loader at once, on a device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.representations.image_index import ImageIndex
from cpaan.representations.loading import ImageLoader

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
