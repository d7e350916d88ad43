"""Rows of numbers that need not be in memory all at once."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

# Up to this many numbers (a gigabyte in single precision) are held and summed in one go, as any tensor is.
MOST_NUMBERS_AT_ONCE = 2**28
NUMBERS_IN_BLOCK = 2**20


class Rows(Protocol):
    """A tensor of shape (n, D), or an object that reads rows of one on demand."""

    @property
    def shape(self) -> Sequence[int]:
        """(n, D)."""

    @property
    def device(self) -> torch.device:
        """Device of the rows that are read."""

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        """Read rows, indexed by any shape (…), as a Tensor of shape (…, D)."""


def is_large(rows: Rows) -> bool:
    """Whether rows are too many to hold in memory at once."""
    n, dimension = rows.shape
    return n * dimension > MOST_NUMBERS_AT_ONCE


def row_blocks(rows: Rows) -> Iterator[slice]:
    """Split rows into blocks of about a million numbers.

    >>> list(row_blocks(torch.zeros(1025, 2048)))
    [slice(0, 512, None), slice(512, 1024, None), slice(1024, 1536, None)]
    """
    n, dimension = rows.shape
    size = max(1, NUMBERS_IN_BLOCK // dimension)
    for start in range(0, n, size):
        yield slice(start, start + size)


def row_mean(rows: Rows) -> Tensor:
    """Average all rows: in one go where they fit in memory, or else block by block, with other rounding errors."""
    if not is_large(rows):
        return rows[:].mean(0)
    total = torch.zeros_like(rows[:1][0])
    for block in row_blocks(rows):
        total += rows[block].sum(0)
    return total / rows.shape[0]


def largest_absolute(rows: Rows) -> float:
    """Return the largest absolute value."""
    return max(float(rows[block].abs().max()) for block in row_blocks(rows))
