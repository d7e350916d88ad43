"""Population covariances, and factors F with Fᵀ F = Σ that stand for them.

A class of n examples in D dimensions has a covariance of rank below n, so the factor of n rows (or fewer) is
smaller than the D × D matrix, is all that the covariance loss needs, and samples the class's Gaussian.
"""

import math

import torch
from torch import Tensor


def covariance(examples: Tensor) -> Tensor:
    """Give the population covariance of the rows, about their mean; leading dimensions are batches.

    Σ = Σ_i (x_i − x̄)(x_i − x̄)ᵀ / n

    >>> covariance(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    # NOTE[paper]: 1/n and not 1/(n − 1), as printed.
    factor = deviation_factor(examples)
    return factor.mT @ factor


def deviation_factor(examples: Tensor, weights: Tensor | None = None) -> Tensor:
    """Deviations from the (weighted) mean, scaled so that Fᵀ F is the (weighted) population covariance.

    Parameters
    ----------
    examples : Tensor of shape (…, n, D)
    weights : Tensor of shape (…, n), optional
        Non-negative; only their ratios matter, and all zero gives a zero factor. Equal by default.

    >>> F = deviation_factor(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]))
    >>> F.T @ F
    tensor([[1., 0.],
            [0., 0.]])
    """
    if weights is None:
        return (examples - examples.mean(-2, keepdim=True)) / math.sqrt(examples.shape[-2])
    total = weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    shares = (weights / total).unsqueeze(-1)
    mean = (shares * examples).sum(-2, keepdim=True)
    return shares.sqrt() * (examples - mean)


def truncated_factor(examples: Tensor, rank: int) -> Tensor:
    """Give the factor of the best approximation, of at most the given rank, to the covariance of the rows.

    Always `rank` rows; a covariance of lower rank fills up with zeros.

    >>> F = truncated_factor(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.3], [1.0, -0.3]]), 1)
    >>> F.T @ F
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    factor = deviation_factor(examples)
    if factor.shape[0] > rank:
        factor = leading_rows(factor, rank)
    return torch.nn.functional.pad(factor, (0, 0, 0, rank - factor.shape[0]))


def leading_rows(factor: Tensor, rank: int) -> Tensor:
    """Rotate a factor so that its first `rank` rows carry as much of Fᵀ F as that many rows can."""
    n, dimension = factor.shape
    if n <= dimension:  # the smaller of the two Gram matrices is decomposed
        _, vectors = torch.linalg.eigh((factor @ factor.T).double())
        leading: Tensor = vectors[:, -rank:].flip(1).to(factor.dtype).T @ factor
        return leading
    values, vectors = torch.linalg.eigh((factor.T @ factor).double())
    rows: Tensor = values[-rank:].clamp_min(0).sqrt() * vectors[:, -rank:]
    rows = rows.flip(1).to(factor.dtype).T
    return torch.nn.functional.pad(rows, (0, 0, 0, rank - rows.shape[0]))
