"""Read arrays that lie in a file without keeping in memory what was read.

Pages of a memory map count as resident memory once they were touched. They are released after every quarter of a
gigabyte; a page that is needed again is read again, from the system's cache if it is still there.
"""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.errors import InputError

BLOCK_BYTES = 2**22
KEPT_BYTES = 2**28
# A system maps what lies around a page that was asked for, if it has it at hand: on Linux up to a large page.
TOUCHED_AROUND = 2**21


class RowReader:
    """Read rows of an array in memory, or of a view of a map that was opened for reading alone."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._map: Any = _map_of(array)
        self._touched = 0

    def read(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Give a copy of some rows, or a view of a slice."""
        if self._map is None:
            found: npt.NDArray[Any] = self.array[rows]
            return found
        _require_whole(self._map)
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
        """Iterate over all rows in blocks of some megabytes, each with the number of its first row."""
        size = max(1, BLOCK_BYTES // max(1, self.array[:1].nbytes))
        for start in range(0, len(self.array), size):
            yield start, self.read(slice(start, start + size))
        self.release()

    def _touch(self, size: int) -> None:
        self._touched += size
        if self._touched >= KEPT_BYTES:
            self.release()

    def release(self) -> None:
        """Release the pages that were read, if the system has a way to."""
        self._touched = 0
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.base.madvise(mmap.MADV_DONTNEED)


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array is a view of a file that was mapped for reading alone."""
    return _map_of(array) is not None


def _map_of(array: npt.NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """Find the map that was opened for reading alone, of which an array is a view."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    # Other modes hold changes in memory, which would be lost with the pages.
    if not isinstance(owner, np.memmap) or owner.mode != "r" or not isinstance(owner.base, mmap.mmap):
        return None
    return owner


def _require_whole(owner: Any) -> None:
    # Touching a page beyond the end of the file would end the process.
    size, end = owner.base.size(), owner.offset + owner.nbytes
    if size < end:
        name = owner.filename or "the mapped file"
        raise InputError(f"{name} has {size} bytes, but had {end} or more when it was mapped; map it again")
