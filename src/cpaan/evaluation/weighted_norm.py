"""Ky Fan norms of large symmetric matrices that are a weighted sum of few products x xᵀ."""

import torch
from torch import Tensor

from cpaan.functional.krylov import block_width, krylov_eigenvectors

# The error of a sum of eigenvalues is about the square of the residuals', both in parts of the largest one.
MOST_RESIDUAL = 2e-3
_SURPLUS = 32  # features for each column of a block, from which the search is faster than a decomposition


def weighted_ky_fan_norm(rows: Tensor, weights: Tensor, m: int) -> float:
    """Give the sum of the m largest absolute eigenvalues of Σ_i w_i x_i x_iᵀ.

    By a search where that is faster and what it finds proves to be eigenvalues, or else by a decomposition.

    Parameters
    ----------
    rows : Tensor of shape (n, D), in double precision
    weights : Tensor of shape (n, 1), of any sign, not all of them zero
    m : int
        With D or more, all eigenvalues are added up.

    Examples
    --------
    >>> rows = torch.tensor([[3.0, 0.0], [0.0, 2.0]]).double()
    >>> round(weighted_ky_fan_norm(rows, torch.tensor([[1.0], [-1.0]]).double(), 2), 6)
    13.0
    """
    size = float(rows.norm()) or 1.0  # so that no square leaves the range of its type
    return size**2 * _norm_of_scaled(rows / size, weights, m)


def _norm_of_scaled(rows: Tensor, weights: Tensor, m: int) -> float:
    dimension = rows.shape[1]
    if dimension >= _SURPLUS * block_width(m):
        values, residuals = _eigenvalues_among(_leading_directions(rows, weights, m), rows, weights)
        if residuals.max() <= MOST_RESIDUAL * values.abs().max():
            return float(values.abs().sum())
    # Slower by far, but a figure that is reported is worth it; eigenvalues without vectors take a third of the time.
    values = torch.linalg.eigvalsh((weights * rows).mT @ rows).abs()
    return float(values.topk(min(m, dimension)).values.sum())


def _leading_directions(rows: Tensor, weights: Tensor, m: int) -> Tensor:
    """Give about the m leading eigenvectors as rows; single precision is enough to find them."""
    single, signs = rows.float(), (weights / weights.abs().max()).float().mT

    def apply(vectors: Tensor) -> Tensor:
        return (vectors @ single.mT * signs) @ single

    return krylov_eigenvectors(apply, rows.shape[1], m, dtype=torch.float32, tolerance=MOST_RESIDUAL / 2)


def _eigenvalues_among(vectors: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Give the eigenvalues of the matrix within the span of some vectors, and the residual of each."""
    basis = torch.linalg.qr(vectors.to(rows.dtype).mT).Q
    parts = rows @ basis
    values, rotation = torch.linalg.eigh(parts.mT @ (weights * parts))
    images = rows.mT @ (weights * (parts @ rotation))
    return values, (images - values * (basis @ rotation)).norm(dim=0)
