"""Triton kernels for CUDA devices: small symmetric matrices, and what lies between the matrix products of a layer.

They replace long sequences of launches (two hundred Jacobi steps of a dozen operations each) and library calls that
look at the host. Triton comes with torch where it knows CUDA. What it compiles has pointers and tiles for arguments,
which have no types in Python: hence the remarks to mypy.

Reference: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 8.5.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Many small matrices at once: a program a matrix, kept in its registers.
LARGEST = 64  # rows of a matrix that a program can keep in its registers
SMALL = 32  # rows that one warp keeps, and up to which rotations are fast and exact
SWEEPS = 6
WARPS = {16: 1, 32: 1, 64: 2}  # of a program that keeps a square matrix of so many rows


@triton.jit  # type: ignore[untyped-decorator]
def _jacobi(matrices, values, vectors, q: tl.constexpr, size: tl.constexpr, sweeps, epsilon):  # type: ignore[no-untyped-def]
    """Decompose a matrix by rotations of the pairs (i, i xor k), k = 1, 2, …; eigenvalues by falling absolute value."""
    number = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, size)
    row, column = index[:, None], index[None, :]
    inside = (row < q) & (column < q)
    # One triangle stands for both: where rounding makes them differ, rotations would not fit each other.
    lower = tl.maximum(row, column) * q + tl.minimum(row, column)
    A = tl.load(matrices + number * q * q + lower, mask=inside, other=0.0)
    scale = tl.maximum(tl.max(tl.max(tl.abs(A), 1), 0), 1e-37)
    A = A / scale
    V = tl.where(row == column, 1.0, 0.0)
    for _ in range(sweeps):
        for k in range(1, size):
            partner = index ^ k
            diagonal = tl.sum(tl.where(row == column, A, 0.0), 1)
            twice = 2.0 * tl.sum(tl.where(column == (row ^ k), A, 0.0), 1)
            difference = tl.sum(tl.where(column == (row ^ k), diagonal[None, :], 0.0), 1) - diagonal
            twice = tl.where(tl.abs(twice) > epsilon, twice, 0.0)  # rounding calls for no rotation
            upper = (difference > 0) | ((difference == 0) & (index < partner))
            tangent = twice / tl.maximum(tl.abs(difference) + tl.sqrt(difference * difference + twice * twice), 1e-37)
            tangent = tl.where(upper, tangent, -tangent)
            cosine = 1.0 / tl.sqrt(1.0 + tangent * tangent)
            sine = cosine * tangent
            across = tl.broadcast_to(partner[None, :], (size, size))
            A = A * cosine[None, :] - tl.gather(A, across, 1) * sine[None, :]
            V = V * cosine[None, :] - tl.gather(V, across, 1) * sine[None, :]
            down = tl.broadcast_to(partner[:, None], (size, size))
            A = A * cosine[:, None] - tl.gather(A, down, 0) * sine[:, None]
    found = tl.sum(tl.where(row == column, A, 0.0), 0)
    weight = tl.where(index < q, tl.abs(found), -1.0)
    of_row = tl.sum(tl.where(row == column, weight[None, :], 0.0), 1)
    before = (of_row[:, None] > weight[None, :]) | ((of_row[:, None] == weight[None, :]) & (row < column))
    place = tl.sum(before.to(tl.int32), 0)
    tl.store(values + number * q + place, found * scale, mask=index < q)
    tl.store(vectors + number * q * q + row * q + place[None, :], V, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _inverse_root(G, q, size: tl.constexpr, shift):  # type: ignore[no-untyped-def]
    """Give T = N⁻¹ L⁻ᵀ where N⁻¹ G N⁻¹ + shift I = L Lᵀ, eliminating column after column.

    A pivot below the shift shows a G that is not positive semidefinite: T is zero in that column.
    """
    index = tl.arange(0, size)
    row, column = index[:, None], index[None, :]
    by_row = tl.sqrt(tl.maximum(tl.sum(tl.where(row == column, G, 0.0), 1), 1e-37))
    by_column = tl.sqrt(tl.maximum(tl.sum(tl.where(row == column, G, 0.0), 0), 1e-37))
    A = G / by_row[:, None] / by_column[None, :] + tl.where(row == column, shift, 0.0)
    A = tl.where((row < q) & (column < q), A, tl.where(row == column, 1.0, 0.0))
    X = tl.where(row == column, 1.0, 0.0)
    for j in range(0, q):
        below = tl.sum(tl.where(column == j, A, 0.0), 1)  # column j, by rows
        beside = tl.sum(tl.where(row == j, A, 0.0), 0)  # the same, by columns
        pivot = tl.sum(tl.where(index == j, beside, 0.0), 0)
        root = tl.where(pivot > shift / 2, 1.0 / tl.sqrt(tl.maximum(pivot, shift / 2)), 0.0)
        below = tl.where(index > j, below * root, 0.0)
        beside = tl.where(index > j, beside * root, 0.0)
        A = A - below[:, None] * beside[None, :]
        pivot_row = tl.sum(tl.where(row == j, X, 0.0), 0) * root
        X = tl.where(row == j, pivot_row[None, :], X - below[:, None] * pivot_row[None, :])
    return tl.trans(X / by_column[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _whitening(grams, found, q: tl.constexpr, size: tl.constexpr, shift):  # type: ignore[no-untyped-def]
    """Load a Gram matrix, store its T."""
    number = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, size)
    row, column = index[:, None], index[None, :]
    inside = (row < q) & (column < q)
    G = tl.load(grams + number * q * q + row * q + column, mask=inside, other=0.0)
    tl.store(found + number * q * q + row * q + column, _inverse_root(G, q, size, shift), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _orthonormal(C, SC, q, columns: tl.constexpr, shift, rounding):  # type: ignore[no-untyped-def]
    """Make combinations orthonormal; see `cpaan.math.ky_fan_cuda.leading_combinations`."""
    index = tl.arange(0, columns)
    added = tl.maximum(rounding * tl.sum(C * C, 0), 1e-37)
    gram = tl.dot(tl.trans(C), SC, input_precision="tf32x3")
    gram += tl.where(index[:, None] == index[None, :], added[None, :], 0.0)
    T = _inverse_root(gram, q, columns, shift)
    return tl.dot(C, T, input_precision="tf32x3"), tl.dot(SC, T, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _combinations(  # type: ignore[no-untyped-def]
    grams, start, found, k, positive, q, steps, shift, rounding, size: tl.constexpr, columns: tl.constexpr
):
    """Do all of `cpaan.math.ky_fan_cuda.leading_combinations` for one Gram matrix."""
    number = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, size), tl.arange(0, columns)
    across = (row[:, None] < k) & (row[None, :] < k)
    S = tl.load(grams + number * k * k + row[:, None] * k + row[None, :], mask=across, other=0.0)
    diagonal = tl.sum(tl.where(row[:, None] == row[None, :], S, 0.0), 1)
    largest = tl.maximum(tl.max(diagonal, 0), 1e-37)
    S, rounding = S / largest, rounding * (tl.sum(diagonal, 0) / largest)
    place, inside = row[:, None] * q + column[None, :], (row[:, None] < k) & (column[None, :] < q)
    C = tl.load(start + place, mask=inside, other=0.0)
    J = tl.where(row < positive, 1.0, -1.0)[:, None]
    C, SC = _orthonormal(C, tl.dot(S, C, input_precision="tf32x3"), q, columns, shift, rounding)
    for _ in range(steps):
        once = J * SC
        S_once = tl.dot(S, once, input_precision="tf32x3")
        squares = tl.where(column < q, tl.sum(once * S_once, 0), float("inf"))
        C = J * S_once - C * (tl.min(squares, 0) / 2)
        C, SC = _orthonormal(C, tl.dot(S, C, input_precision="tf32x3"), q, columns, shift, rounding)
    tl.store(found + number * k * q + place, C, mask=inside)


def eigh_by_size(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose symmetric matrices (…, q, q), q up to 32: eigenvalues by falling size, eigenvectors as columns."""
    flat = matrices.reshape(-1, *matrices.shape[-2:]).contiguous()
    q = flat.shape[-1]
    values, vectors = flat.new_empty(flat.shape[:2]), torch.empty_like(flat)
    epsilon = torch.finfo(torch.float32).eps
    if len(flat):
        _jacobi[(len(flat),)](flat, values, vectors, q, _padded(q), SWEEPS, epsilon, num_warps=1)
    return values.reshape(matrices.shape[:-1]), vectors.reshape(matrices.shape)


def whitening(grams: Tensor, shift: float) -> Tensor:
    """Give T such that Y T is orthonormal where YᵀY is a Gram matrix (…, q, q), as `shifted_cholesky` would."""
    flat = grams.reshape(-1, *grams.shape[-2:]).contiguous()
    found = torch.empty_like(flat)
    q = flat.shape[-1]
    if len(flat):
        _whitening[(len(flat),)](flat, found, q, _padded(q), shift, num_warps=1 if q <= SMALL else 4)
    return found.reshape(grams.shape)


def leading_combinations(
    grams: Tensor, start: Tensor, positive: int, steps: int, shift: float, rounding: float
) -> Tensor:
    """Do what `cpaan.math.ky_fan_cuda.leading_combinations` says, from Gram matrices (…, k, k)."""
    flat = grams.reshape(-1, *grams.shape[-2:]).contiguous()
    k, q = start.shape
    found = flat.new_empty(len(flat), k, q)
    size, columns = _padded(k), _padded(q)
    if len(flat):
        numbers = (k, positive, q, steps, shift, rounding, size, columns)
        _combinations[(len(flat),)](flat, start.contiguous(), found, *numbers, num_warps=WARPS[size])
    return found.reshape(*grams.shape[:-1], q)


def _padded(q: int) -> int:
    return max(16, 1 << (q - 1).bit_length())


# Leaky ReLU layers, in one pass over their values.
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
