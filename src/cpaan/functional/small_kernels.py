"""Kernels for many small symmetric matrices at once on a CUDA device: a program a matrix, kept in its registers.

What they replace is a long sequence of launches (two hundred Jacobi steps of a dozen operations each), or library calls
that look at the host. They need Triton, which comes with torch where it knows CUDA.

References
----------
G. H. Golub and C. F. Van Loan, "Matrix Computations", section 8.5.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 64  # columns; what a program keeps in its registers grows with their square
SWEEPS = 6


@triton.jit  # type: ignore[untyped-decorator]
def _jacobi(matrices, values, vectors, q: tl.constexpr, size: tl.constexpr, sweeps, epsilon):  # type: ignore[no-untyped-def]
    """Decompose a matrix by rotations of the pairs (i, i xor k), k = 1, 2, …; eigenvalues by falling absolute value."""
    number = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, size)
    row, column = index[:, None], index[None, :]
    inside = (row < q) & (column < q)
    A = tl.load(matrices + number * q * q + row * q + column, mask=inside, other=0.0)
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
def _inverse_factor(grams, inverses, q: tl.constexpr, size: tl.constexpr, shift):  # type: ignore[no-untyped-def]
    """Give T = N⁻¹ L⁻ᵀ where N⁻¹ G N⁻¹ + shift I = L Lᵀ, eliminating column after column."""
    number = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, size)
    row, column = index[:, None], index[None, :]
    inside = (row < q) & (column < q)
    G = tl.load(grams + number * q * q + row * q + column, mask=inside, other=0.0)
    by_row = tl.sqrt(tl.maximum(tl.sum(tl.where(row == column, G, 0.0), 1), 1e-37))
    by_column = tl.sqrt(tl.maximum(tl.sum(tl.where(row == column, G, 0.0), 0), 1e-37))
    A = G / by_row[:, None] / by_column[None, :] + tl.where(row == column, shift, 0.0)
    A = tl.where(inside, A, tl.where(row == column, 1.0, 0.0))
    X = tl.where(row == column, 1.0, 0.0)
    for j in range(0, q):
        pivot = tl.maximum(tl.sum(tl.sum(tl.where((row == j) & (column == j), A, 0.0), 1), 0), shift)
        root = 1.0 / tl.sqrt(pivot)
        below = tl.sum(tl.where(column == j, A, 0.0), 1) * root  # column j of L, by rows
        beside = tl.sum(tl.where(row == j, A, 0.0), 0) * root  # the same, by columns
        below = tl.where(index > j, below, 0.0)
        beside = tl.where(index > j, beside, 0.0)
        A = A - below[:, None] * beside[None, :]
        pivot_row = tl.sum(tl.where(row == j, X, 0.0), 0) * root
        X = tl.where(row == j, pivot_row[None, :], X - below[:, None] * pivot_row[None, :])
    transposed = X / by_column[None, :]
    tl.store(inverses + number * q * q + column * q + row, transposed, mask=inside)


def eigh_by_size(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose symmetric float32 matrices (…, q, q); eigenvalues by falling absolute value, eigenvectors as columns."""
    flat = matrices.reshape(-1, *matrices.shape[-2:]).contiguous()
    q = flat.shape[-1]
    values, vectors = flat.new_empty(flat.shape[:2]), torch.empty_like(flat)
    epsilon = torch.finfo(torch.float32).eps
    if len(flat):
        _jacobi[(len(flat),)](flat, values, vectors, q, _padded(q), SWEEPS, epsilon, num_warps=1)
    return values.reshape(matrices.shape[:-1]), vectors.reshape(matrices.shape)


def inverse_factor(grams: Tensor, shift: float) -> Tensor:
    """Give T such that Y T is orthonormal where YᵀY is a Gram matrix (…, q, q), as `shifted_cholesky` would."""
    flat = grams.reshape(-1, *grams.shape[-2:]).contiguous()
    inverses = torch.empty_like(flat)
    q = flat.shape[-1]
    if len(flat):
        _inverse_factor[(len(flat),)](flat, inverses, q, _padded(q), shift, num_warps=1)
    return inverses.reshape(grams.shape)


def _padded(q: int) -> int:
    return max(16, 1 << (q - 1).bit_length())
