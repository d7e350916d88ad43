"""Rows of numbers that need not be in memory all at once."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

# Up to this many numbers (a gigabyte in single precision) are held and added up in one go, as any tensor is.
MOST_NUMBERS_AT_ONCE = 2**28
NUMBERS_IN_BLOCK = 2**20


class Rows(Protocol):
    """A tensor of shape (n, D), or whatever gives rows of one when they are asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """Give (n, D)."""

    @property
    def device(self) -> torch.device:
        """Tell where rows are given."""

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        """Give some rows, of any shape (…), as a Tensor of shape (…, D)."""


def is_large(rows: Rows) -> bool:
    """Tell whether rows are too many to be held in memory all at once.

    >>> is_large(torch.zeros(2, 3))
    False
    """
    n, dimension = rows.shape
    return n * dimension > MOST_NUMBERS_AT_ONCE


def row_blocks(rows: Rows) -> Iterator[slice]:
    """Part rows into blocks of about a million numbers.

    >>> list(row_blocks(torch.zeros(1025, 2048)))
    [slice(0, 512, None), slice(512, 1024, None), slice(1024, 1536, None)]
    """
    n, dimension = rows.shape
    size = max(1, NUMBERS_IN_BLOCK // dimension)
    for start in range(0, n, size):
        yield slice(start, start + size)


def row_mean(rows: Rows) -> Tensor:
    """Average all rows.

    Rows that fit in memory are added up in one go; more of them block by block, which may round otherwise.

    >>> row_mean(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    tensor([1., 3.])
    """
    if not is_large(rows):
        return rows[:].mean(0)
    total = torch.zeros_like(rows[:1][0])
    for block in row_blocks(rows):
        total += rows[block].sum(0)
    return total / rows.shape[0]


def largest_absolute(rows: Rows) -> float:
    """Give the largest absolute value.

    >>> largest_absolute(torch.tensor([[1.0, -3.0], [2.0, 0.0]]))
    3.0
    """
    return max(float(rows[block].abs().max()) for block in row_blocks(rows))
