"""Load images in batches of pixels, decoded in worker processes.

Workers never raise for an image: they report why it cannot be read, and the loader refuses or skips it by name, as its
caller chose.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cpaan.data.arguments import as_whole_number
from cpaan.errors import InputError
from cpaan.representations.decoding import decode_image
from cpaan.representations.images import ImageEntry, ImageIndex

Decode: TypeAlias = Callable[[bytes], Any]

_POLICIES = ("refuse", "skip")
_PREFETCHED = 2
_SECONDS_TO_OUTLIVE = 15
_NONE = -1


class TransformFailed(InputError):  # noqa: N818 - it says what failed
    """A user's transform failed; the image is not at fault."""


class Batch(NamedTuple):
    """Some images; a NamedTuple, so that DataLoader can pin its tensors."""

    pixels: Any  # n × 3 × S × S bytes; from a user's `decode`, its tensors stacked or a list of anything else
    rows: Tensor  # of the index
    bad: list[tuple[int, str]]  # row and reason of each image that cannot be read


class ImageLoader:
    """Load the images of an index in batches, in any order, as 3 × size × size bytes.

    Workers start at the first pass and stay until `close`. An unreadable image raises an InputError, or with
    ``on_bad="skip"`` is left out and noted in `skipped`, by name with the reason. A `decode` turns the bytes of a file
    into something other than pixels; with workers it must be picklable.
    """

    def __init__(
        self, index: ImageIndex, size: int, *, workers: int = 0, on_bad: str = "refuse", decode: Decode | None = None
    ) -> None:
        if on_bad not in _POLICIES:
            raise InputError(f"on_bad must be 'refuse' or 'skip', got {on_bad!r}")
        if not len(index):
            raise InputError("the index has no images; give one that has")
        self.index = index
        self.size = as_whole_number(size, "size", minimum=1)
        self.workers = as_whole_number(workers, "workers", minimum=0)
        self.on_bad, self.decode = on_bad, decode
        self.skipped: dict[str, str] = {}
        self._dataset = ImageDataset(index, self.size, decode)
        self._idle: list[tuple[DataLoader[Any], _BatchRows]] = []

    def batches(self, order: Sequence[int] | npt.NDArray[np.integer[Any]], batch_size: int) -> Iterator[Batch]:
        """Load rows of the index in the given order; passes may end early, or run inside another.

        The last batch may be smaller, and so may one with skipped images, down to none at all.
        """
        rows = np.asarray(order)
        number = as_whole_number(batch_size, "batch_size", minimum=1)
        if rows.size == 0:
            return iter(())
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(self.index):
            raise InputError(f"order must be row numbers from 0 to {len(self.index) - 1}")
        return self._pass(rows.astype(np.int64), number)

    def require_readable(self, n_read: int) -> None:
        """Raise an InputError if not a single image could be read."""
        if not n_read:
            name, reason = next(iter(self.skipped.items()))
            raise InputError(f"none of the {len(self.index)} images can be read; the first is {name}: {reason}")

    def close(self) -> None:
        """End the worker processes; a later pass starts new ones."""
        self._idle.clear()

    def _pass(self, rows: npt.NDArray[np.int64], number: int) -> Iterator[Batch]:
        lent = self._idle.pop() if self._idle else self._new_loader()
        loader, batch_rows = lent
        batch_rows.order, batch_rows.batch_size = rows, number
        try:
            for batch in _checked(loader):
                self._note(batch.bad)
                yield batch
        except GeneratorExit:
            # The caller has seen enough. After an error, in contrast, workers may be gone and are not kept.
            self._idle.append(lent)
            raise
        self._idle.append(lent)

    def _new_loader(self) -> "tuple[DataLoader[Any], _BatchRows]":
        batch_rows = _BatchRows()
        loader = DataLoader(
            self._dataset,
            batch_size=None,  # the dataset returns whole batches
            sampler=batch_rows,
            num_workers=self.workers,
            collate_fn=_as_is,
            pin_memory=torch.cuda.is_available(),
            # Without its own generator, each pass would draw from the global one.
            generator=torch.Generator().manual_seed(0),
            persistent_workers=self.workers > 0,
            prefetch_factor=_PREFETCHED if self.workers else None,
            worker_init_fn=_outlive_signals,
        )
        return loader, batch_rows

    def _note(self, bad: Sequence[tuple[int, str]]) -> None:
        for row, reason in bad:
            entry = self.index.entries[row]
            if self.on_bad == "refuse":
                raise InputError(
                    f"{entry.place} cannot be read: {reason}; repair or remove it, or leave out such images with "
                    "--on-bad skip (on_bad='skip')"
                )
            self.skipped.setdefault(entry.name, reason)


class ImageDataset(Dataset[Batch]):
    """The part of loading that runs in worker processes: from rows to their pixels."""

    def __init__(self, index: ImageIndex, size: int, decode: Decode | None = None) -> None:
        self.size, self.decode = size, decode
        # Every worker holds this. Plain buffers are quick to send to a new process, and forked processes share them,
        # whereas reading a million Python objects copies them, because it changes their reference counts.
        paths = [os.fsencode(entry.file) for entry in index.entries]
        self._paths = b"".join(paths)
        self._ends = np.cumsum([0, *map(len, paths)])
        self._offsets = _as_array([entry.offset for entry in index.entries])
        self._sizes = _as_array([entry.size for entry in index.entries])

    def __getitem__(self, rows: list[int]) -> Batch:
        found = [(row, *self._decoded(row)) for row in rows]
        pixels: Any = [one for _, one, reason in found if reason is None]
        kinds = {(one.shape, one.dtype) if isinstance(one, Tensor) else None for one in pixels}
        if len(kinds) == 1 and None not in kinds:
            pixels = torch.stack(pixels)
        good = torch.tensor([row for row, _, reason in found if reason is None], dtype=torch.int64)
        return Batch(pixels, good, [(row, reason) for row, _, reason in found if reason is not None])

    def _decoded(self, row: int) -> tuple[Any, str | None]:
        """Decode one image, or give the reason why it cannot be read."""
        file = Path(os.fsdecode(self._paths[self._ends[row] : self._ends[row + 1]]))
        offset, size = (None if number == _NONE else int(number) for number in (self._offsets[row], self._sizes[row]))
        try:
            content = ImageEntry(file, file.name, offset, size, 0, False).read()
            if self.decode is not None:
                return self.decode(content), None
            return torch.from_numpy(decode_image(content, self.size)), None
        except TransformFailed:
            raise
        # The file may be gone or too large, and a user's `decode` may raise anything.
        except Exception as error:
            return None, str(error) or type(error).__name__


def _as_array(values: list[int | None]) -> npt.NDArray[np.int64]:
    return np.array([_NONE if value is None else value for value in values], dtype=np.int64)


def _as_is(batch: Any) -> Any:
    return batch


class _BatchRows(Sampler[list[int]]):
    """The rows of each batch of a DataLoader; changed before each pass, so workers can stay."""

    def __init__(self) -> None:
        self.order: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.batch_size = 1

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.order), self.batch_size):
            yield self.order[start : start + self.batch_size].tolist()


def _checked(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Pass on the batches of workers, and turn what they die of into InputErrors."""
    try:
        for batch in loader:
            if isinstance(batch.pixels, list) and any(isinstance(one, Tensor) for one in batch.pixels):
                found = ", ".join(sorted({_describe(one) for one in batch.pixels}))
                raise InputError(f"decode gave {found} in one batch; give tensors of one shape and type")
            yield batch
    except TransformFailed as error:
        # A worker adds its traceback to the message.
        raise InputError(str(error).strip().splitlines()[-1].rpartition("TransformFailed: ")[2]) from error
    except InputError:
        raise
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"decode cannot be sent to worker processes: {error}; define it as a function at the top of a module, or "
            "decode in this process (workers=0)"
        ) from error
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"a process that decodes images died: {str(error).strip()}; usually memory or shared memory (/dev/shm) is "
            "short: use fewer workers, smaller batches or no workers (workers=0)"
        ) from error


def _describe(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _outlive_signals(worker: int) -> None:
    """Let a worker survive a signal to its whole process group, so that the parent can stop in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Only for a while: the parent may be gone, or the signal may be meant for this worker alone.
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_SECONDS_TO_OUTLIVE))
