"""The half of image loading that runs in worker processes: bytes to pixels, or to the reason why there are none."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpaan.errors import InputError
from cpaan.representations.decoding import as_sides, decode_image
from cpaan.representations.image_index import ImageEntry, ImageIndex

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
