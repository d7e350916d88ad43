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
    """Load the images of an index in batches, in any order.

    Parameters
    ----------
    index : ImageIndex
        The images.
    size : int
        Side of the decoded images.
    workers : int, default=0
        Processes that decode, started at the first pass and kept until `close`; 0 decodes in this process.
    on_bad : {"refuse", "skip"}, default="refuse"
        Raise an InputError that names an unreadable image, or leave it out and note it in `skipped`.
    decode : callable, optional
        Turns the bytes of an image file into something other than pixels of `size`: tensors of one shape are stacked,
        anything else becomes a list. With workers it must be picklable.

    Attributes
    ----------
    skipped : dict
        Name of each image that was left out so far, and the reason.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> from cpaan.representations.images import index_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "oak").mkdir()
    ...     Image.new("RGB", (9, 8), (255, 0, 0)).save(Path(folder, "oak", "1.png"))
    ...     _ = Path(folder, "oak", "2.png").write_bytes(b"no image")
    ...     loader = ImageLoader(index_images(folder), size=8, on_bad="skip")
    ...     for batch in loader.batches([0, 1], batch_size=2):
    ...         print(batch.pixels.shape, batch.rows)
    torch.Size([1, 3, 8, 8]) tensor([0])
    >>> loader.skipped
    {'oak/2.png': 'not an image of a known format (JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM)'}
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
            batch_sampler=batch_rows,
            num_workers=self.workers,
            collate_fn=collate,
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


class Decoded(NamedTuple):
    """One image, or the reason why it cannot be read."""

    row: int
    pixels: Any
    reason: str | None


class ImageDataset(Dataset[Decoded]):
    """The part of loading that runs in worker processes: from a row to pixels, or to the reason why there are none."""

    def __init__(self, index: ImageIndex, size: int, decode: Decode | None = None) -> None:
        self.size, self.decode = size, decode
        # Every worker holds this. Plain buffers are quick to send to a new process, and forked processes share them,
        # whereas reading a million Python objects copies them, because it changes their reference counts.
        paths = [os.fsencode(entry.file) for entry in index.entries]
        self._paths = b"".join(paths)
        self._ends = np.cumsum([0, *map(len, paths)])
        self._offsets = _as_array([entry.offset for entry in index.entries])
        self._sizes = _as_array([entry.size for entry in index.entries])

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, row: int) -> Decoded:
        try:
            content = self._entry(row).read()
            if self.decode is not None:
                return Decoded(row, self.decode(content), None)
            return Decoded(row, torch.from_numpy(decode_image(content, self.size)), None)
        except TransformFailed:
            raise
        # The file may be gone or too large, and a user's `decode` may raise anything.
        except Exception as error:
            return Decoded(row, None, str(error) or type(error).__name__)

    def _entry(self, row: int) -> ImageEntry:
        file = Path(os.fsdecode(self._paths[self._ends[row] : self._ends[row + 1]]))
        offset, size = int(self._offsets[row]), int(self._sizes[row])
        in_tar = offset != _NONE
        return ImageEntry(file, file.name, offset if in_tar else None, size if in_tar else None, 0, False)


def _as_array(values: list[int | None]) -> npt.NDArray[np.int64]:
    return np.array([_NONE if value is None else value for value in values], dtype=np.int64)


def collate(decoded: Sequence[Decoded]) -> Batch:
    """Combine images to a batch, stacking tensors of one shape and type."""
    good = [one for one in decoded if one.reason is None]
    bad = [(one.row, one.reason) for one in decoded if one.reason is not None]
    pixels: Any = [one.pixels for one in good]
    kinds = {(one.shape, one.dtype) if isinstance(one, Tensor) else None for one in pixels}
    if len(kinds) == 1 and None not in kinds:
        pixels = torch.stack(pixels)
    return Batch(pixels, torch.tensor([one.row for one in good], dtype=torch.int64), bad)


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
