"""What lies between the matrix products of a layer, in one pass over its values; for CUDA devices, needs Triton.

What Triton compiles has pointers and tiles for arguments, which have no types in Python: hence the remarks to mypy.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 64  # that a program takes at once
PARTS = 128  # at most, in which rows are added up first


@triton.jit  # type: ignore[untyped-decorator]
def _activate(values, bias, rows, columns, slope, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the bias and apply the leaky ReLU, in place."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = values + row[:, None] * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(place, tl.where(x > 0, x, slope * x), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _derivative(  # type: ignore[no-untyped-def]
    gradient, found, result, sums, rows, columns, slope, blocks, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Multiply some blocks of a gradient's rows with the leaky ReLU's derivative, and add up their columns."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for block in range(blocks):
        row = (tl.program_id(0).to(tl.int64) * blocks + block) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if slope != 1.0:
            g = tl.where(tl.load(found + place, mask=inside, other=0.0) > 0, g, slope * g)
            tl.store(result + place, g, mask=inside)
        total += tl.sum(g, 0)
    tl.store(sums + tl.program_id(0) * columns + column, total, mask=column < columns)


@triton.jit  # type: ignore[untyped-decorator]
def _add_up(sums, total, parts, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add up the sums of all parts."""
    part, column = tl.arange(0, PARTS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (part[:, None] < parts) & (column[None, :] < columns)
    values = tl.load(sums + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(total + column, tl.sum(values, 0), mask=column < columns)


def activate(values: Tensor, bias: Tensor, negative_slope: float) -> None:
    """Turn (rows, columns) into leaky_relu(values + bias), in place."""
    rows, columns = values.shape
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
    _activate[grid](values, bias, rows, columns, negative_slope, ROWS, COLUMNS)


def derivative(gradient: Tensor, found: Tensor, negative_slope: float) -> tuple[Tensor, Tensor]:
    """Give the gradients before the activation and of the bias.

    Columns are added up in parts that depend on the shape alone: the same bits every time.
    """
    rows, columns = found.shape
    blocks = triton.cdiv(rows, ROWS * PARTS)
    grid = (triton.cdiv(rows, ROWS * blocks), triton.cdiv(columns, COLUMNS))
    result = gradient if negative_slope == 1 else torch.empty_like(gradient)
    sums = gradient.new_empty((grid[0], columns), dtype=torch.float32)
    _derivative[grid](gradient, found, result, sums, rows, columns, negative_slope, blocks, ROWS, COLUMNS)
    total = gradient.new_empty(columns)
    _add_up[(triton.cdiv(columns, 16),)](sums, total, grid[0], columns, PARTS, 16)
    return result, total
