"""Arrays that lie in a file, read without keeping in memory what was read.

Pages of a memory map count as resident memory once they were touched. They are let go of after every quarter of a
gigabyte; the file is then read again where they are needed again, out of the system's cache if it still has them.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.errors import InputError

BLOCK_BYTES = 2**22
KEPT_BYTES = 2**28
# A system maps what lies around a page that was asked for, if it has it at hand: on Linux up to a large page.
TOUCHED_AROUND = 2**21


class RowReader:
    """Reads rows of an array.

    Parameters
    ----------
    array : ndarray of shape (n, D)
        In memory, or a view of a map that was opened for reading alone.

    Examples
    --------
    >>> RowReader(np.eye(3)).read(np.array([2, 0]))
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._map = _map_of(array)
        self._touched = 0

    def read(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read some rows: a copy, or a view where a slice is asked for.

        Raises
        ------
        InputError
            Where the file has become shorter since it was mapped.
        """
        if self._map is None:
            found: npt.NDArray[Any] = self.array[rows]
            return found
        self._map.require_whole()
        if isinstance(rows, slice):
            found = self.array[rows]
            self._touch(found.nbytes)
            return found
        found = np.empty((rows.size, *self.array.shape[1:]), self.array.dtype)
        at_once = max(1, KEPT_BYTES // TOUCHED_AROUND)
        for start in range(0, rows.size, at_once):
            part = rows.flat[start : start + at_once]
            found[start : start + at_once] = self.array[part]
            self._touch(TOUCHED_AROUND * len(part))
        return found.reshape(*rows.shape, *self.array.shape[1:])

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Give all rows in blocks of some megabytes, each with the number of its first row."""
        size = max(1, BLOCK_BYTES // max(1, self.array[:1].nbytes))
        for start in range(0, len(self.array), size):
            yield start, self.read(slice(start, start + size))
        self.let_go()

    def _touch(self, size: int) -> None:
        self._touched += size
        if self._touched >= KEPT_BYTES:
            self.let_go()

    def let_go(self) -> None:
        """Let go of pages of the map that were read; without effect where the system has no way to say so."""
        self._touched = 0
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.pages.madvise(mmap.MADV_DONTNEED)


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array is a view of a file that was mapped for reading alone.

    >>> is_mapped(np.eye(2))
    False
    """
    return _map_of(array) is not None


@dataclass(frozen=True)
class _Map:
    """A mapped file, and up to which of its bytes it is needed."""

    pages: mmap.mmap
    end: int
    name: object

    def require_whole(self) -> None:
        # Touching a page beyond the end of the file would end the process.
        size = self.pages.size()
        if size < self.end:
            name = self.name or "the mapped file"
            raise InputError(f"{name} has {size} bytes, but had {self.end} or more when it was mapped; map it again")


def _map_of(array: npt.NDArray[Any]) -> _Map | None:
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    # Other modes hold changes in memory, which would be lost with the pages.
    if not isinstance(owner, np.memmap) or owner.mode != "r" or not isinstance(owner.base, mmap.mmap):
        return None
    return _Map(owner.base, owner.offset + owner.nbytes, owner.filename)
