"""Where training takes its pixels from: held on the device where there is room, or else decoded again and again."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cpaan.data.class_names import IndexArray
from cpaan.errors import InputError
from cpaan.representations.loading import ImageLoader
from cpaan.representations.order import Part
from cpaan.representations.pixel_cache import PixelCache, cache_bytes

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
