"""Images to batches of pixels, decoded in worker processes.

A worker never raises: it gives the reason why an image cannot be read, and the loader refuses or skips that image as
its caller chose, always by name.

The half of image loading that runs in worker processes: bytes to pixels, or to the reason why there are none.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cpaan.data.arguments import as_whole_number
from cpaan.errors import InputError
from cpaan.representations.decoding import as_sides, decode_image
from cpaan.representations.images import ImageEntry, ImageIndex

Decode: TypeAlias = Callable[[bytes], Any]

_NONE = -1


class TransformFailed(InputError):  # noqa: N818 - it says what failed
    """A caller's own transform failed, which is no fault of the image."""


class Decoded(NamedTuple):
    """What became of one image: its pixels, or the reason why there are none."""

    row: int
    pixels: Any
    reason: str | None


class Collected(NamedTuple):
    """A batch as it comes from a worker: what could be read, and the row and reason of what could not."""

    pixels: Any
    rows: Tensor
    bad: list[tuple[int, str]]


class ImageDataset(Dataset[Decoded]):
    """Decoded images of an index; one that cannot be read gives the reason in place of its pixels.

    Parameters
    ----------
    index : ImageIndex
        The images.
    size : int
        Sides of the decoded images.
    resize : int, optional
        Length of the shorter side before the centre is cut out; `size` by default.
    decode : callable, optional
        Makes something else of an image file's bytes, in place of pixels of `size`.

    Examples
    --------
    >>> missing = ImageEntry(Path("missing.jpg"), "missing.jpg", None, None, label=0, is_test=False)
    >>> ImageDataset(ImageIndex(("oak",), (missing,)), size=8)[0].reason
    'there is no file missing.jpg'
    """

    def __init__(self, index: ImageIndex, size: int, *, resize: int | None = None, decode: Decode | None = None):
        self.size, self.resize = as_sides(size, resize)
        self.decode = decode
        # Every worker has this: three plain buffers are quick to send to a new process, and forked processes share
        # them, whereas reading a million Python objects copies them, for it changes their reference counts.
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
            return Decoded(row, torch.from_numpy(decode_image(content, self.size, self.resize)), None)
        except TransformFailed:
            raise
        # A file can be gone or too large to hold, and what a caller's own `decode` raises is anyone's guess.
        except Exception as error:
            return Decoded(row, None, str(error) or type(error).__name__)

    def _entry(self, row: int) -> ImageEntry:
        file = Path(os.fsdecode(self._paths[self._ends[row] : self._ends[row + 1]]))
        offset, size = int(self._offsets[row]), int(self._sizes[row])
        in_tar = offset != _NONE
        return ImageEntry(file, file.name, offset if in_tar else None, size if in_tar else None, 0, False)


def collate(decoded: Sequence[Decoded]) -> Collected:
    """Put images together to a batch.

    Parameters
    ----------
    decoded : sequence of Decoded
        The images.

    Returns
    -------
    Collected
        Tensors of one shape stacked, all else as a list.

    Examples
    --------
    >>> collate([Decoded(7, torch.tensor([1, 2]), None), Decoded(3, None, "truncated")])
    Collected(pixels=tensor([[1, 2]]), rows=tensor([7]), bad=[(3, 'truncated')])
    """
    good = [one for one in decoded if one.reason is None]
    bad = [(one.row, one.reason) for one in decoded if one.reason is not None]
    pixels: Any = [one.pixels for one in good]
    rows = torch.tensor([one.row for one in good], dtype=torch.int64)
    kinds = {(one.shape, one.dtype) if isinstance(one, Tensor) else None for one in pixels}
    if len(kinds) == 1 and None not in kinds:
        pixels = torch.stack(pixels)
    return Collected(pixels, rows, bad)


def _as_array(values: list[int | None]) -> npt.NDArray[np.int64]:
    return np.array([_NONE if value is None else value for value in values], dtype=np.int64)


__all__ = ["Batch", "ImageDataset", "ImageLoader"]

_POLICIES = ("refuse", "skip")
_PREFETCHED = 2
_SECONDS_TO_OUTLIVE = 15


@dataclass(frozen=True)
class Batch:
    """Some images.

    Parameters
    ----------
    pixels : Tensor of uint8 of shape (n, 3, S, S)
        With a `decode` of the caller's own: its tensors stacked, or a list of what else it gave.
    labels : Tensor of int64 of shape (n,)
        Class indices.
    rows : Tensor of int64 of shape (n,)
        Which entries of the index these are.

    Examples
    --------
    >>> batch = Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), torch.tensor([5, 3]))
    >>> len(batch)
    2
    """

    pixels: Any
    labels: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class _Chosen(Sampler[list[int]]):
    """Tells a data loader which rows make up each batch; changed before each pass, so that workers can stay."""

    def __init__(self) -> None:
        self.order: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.batch_size = 1

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.order), self.batch_size):
            yield self.order[start : start + self.batch_size].tolist()


class ImageLoader:
    """Gives batches of decoded images in any order asked for.

    Parameters
    ----------
    index : ImageIndex
        The images.
    size : int
        Sides of the decoded images.
    resize : int, optional
        Length of the shorter side before the centre is cut out; `size` by default.
    workers : int, default=0
        Processes that decode; 0 decodes in this one. They are started at the first pass and kept until `close`.
    on_bad : {"refuse", "skip"}, default="refuse"
        What to do with an image that cannot be read: stop with its name, or leave it out and note it in `skipped`.
    decode : callable, optional
        Makes something else of an image file's bytes, in place of pixels of `size`: tensors of one shape are stacked,
        all else comes as a list. With workers it must be a function that can be pickled.

    Attributes
    ----------
    skipped : dict
        Name of each image that was left out so far, and the reason.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
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
    {'oak/2.png': 'no image of a known format (JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM)'}
    """

    def __init__(
        self,
        index: ImageIndex,
        size: int,
        *,
        resize: int | None = None,
        workers: int = 0,
        on_bad: str = "refuse",
        decode: Decode | None = None,
    ) -> None:
        if on_bad not in _POLICIES:
            raise InputError(f"on_bad is {on_bad!r}; give 'refuse' or 'skip'")
        if not len(index):
            raise InputError("the index has no images; give one with images")
        self.index = index
        self.size = as_sides(size, resize)[0]
        self.workers = as_whole_number(workers, "workers", minimum=0)
        self.on_bad = on_bad
        self.skipped: dict[str, str] = {}
        self._dataset = ImageDataset(index, size, resize=resize, decode=decode)
        self._labels = torch.from_numpy(index.labels.copy())
        self._idle: list[tuple[DataLoader[Any], _Chosen]] = []

    def batches(self, order: Sequence[int] | npt.NDArray[np.integer[Any]], batch_size: int) -> Iterator[Batch]:
        """Give images in an order.

        Passes may be left before their end, and one may be made while another is under way.

        Parameters
        ----------
        order : sequence of int
            Rows of the index; a row may occur more than once.
        batch_size : int
            Images in a batch; the last one may have fewer, as may those from which bad images were left out.

        Yields
        ------
        Batch
            The next images; none at all where none of its images can be read.

        Raises
        ------
        InputError
            Where there is no such row, an image cannot be read and is to be refused, or a worker process ends.
        """
        rows = np.asarray(order)
        number = as_whole_number(batch_size, "batch_size", minimum=1)
        if rows.size == 0:
            return iter(())
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(self.index):
            raise InputError(f"order must be row numbers from 0 to {len(self.index) - 1}")
        return self._pass(rows.astype(np.int64), number)

    def close(self) -> None:
        """End the worker processes; a later pass starts new ones."""
        self._idle.clear()

    def _pass(self, rows: npt.NDArray[np.int64], number: int) -> Iterator[Batch]:
        lent = self._idle.pop() if self._idle else self._new_loader()
        loader, chosen = lent
        chosen.order, chosen.batch_size = rows, number
        try:
            for pixels, kept, bad in _collected(loader):
                self._note(bad)
                yield Batch(pixels, self._labels[kept], kept)
        except GeneratorExit:
            # The caller has seen enough. After an error, on the other hand, workers may be gone: they are not kept.
            self._idle.append(lent)
            raise
        self._idle.append(lent)

    def require_readable(self, kept: int) -> None:
        """Refuse to go on where not a single image could be read."""
        if not kept:
            name, reason = next(iter(self.skipped.items()))
            raise InputError(f"none of the {len(self.index)} images can be read; the first is {name}: {reason}")

    def _new_loader(self) -> tuple[DataLoader[Any], _Chosen]:
        chosen = _Chosen()
        loader = DataLoader(
            self._dataset,
            batch_sampler=chosen,
            num_workers=self.workers,
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
            # Of its own, for otherwise each pass would draw a number from the generator that all share.
            generator=torch.Generator().manual_seed(0),
            persistent_workers=self.workers > 0,
            prefetch_factor=_PREFETCHED if self.workers else None,
            worker_init_fn=_outlive_signals,
        )
        return loader, chosen

    def _note(self, bad: Sequence[tuple[int, str]]) -> None:
        for row, reason in bad:
            entry = self.index.entries[row]
            if self.on_bad == "refuse":
                raise InputError(
                    f"{entry.place} cannot be read: {reason}; mend or remove it, or leave out such images with "
                    "--on-bad skip (on_bad='skip')"
                )
            self.skipped.setdefault(entry.name, reason)


def _collected(loader: DataLoader[Any]) -> Iterator[Collected]:
    """Pass on what workers give, with InputErrors in place of what they die of."""
    try:
        for collected in loader:
            if isinstance(collected.pixels, list) and any(isinstance(one, Tensor) for one in collected.pixels):
                found = ", ".join(sorted({_describe(one) for one in collected.pixels}))
                raise InputError(f"decode gave {found} in one batch; give tensors of one shape and type")
            yield collected
    except TransformFailed as error:
        # From a worker it comes with the lines of code that it went through.
        raise InputError(str(error).strip().splitlines()[-1].rpartition("TransformFailed: ")[2]) from error
    except InputError:
        raise
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"decode cannot be sent to worker processes: {error}; give a function that is defined at the top of a "
            "module, or decode in this process (workers=0)"
        ) from error
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"a process that decodes images has ended: {str(error).strip()}; usually memory or shared memory "
            "(/dev/shm) is short: use fewer workers, smaller batches or none (workers=0)"
        ) from error


def _outlive_signals(worker: int) -> None:
    """Let a worker go on when its whole group of processes is told to end, so that the parent can end in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # For a while only: the parent may be gone, or may mean this worker alone.
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_SECONDS_TO_OUTLIVE))


def _describe(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
