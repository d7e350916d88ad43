"""Population covariances, and factors F with Fᵀ F = Σ that stand for them.

A class of n examples in D dimensions has a covariance of rank below n, so the factor of n rows (or fewer) is
smaller than the D × D matrix, is all that the covariance loss needs, and samples the class's Gaussian.

Reference: N. Halko, P.-G. Martinsson and J. A. Tropp, "Finding structure with randomness: probabilistic algorithms
for constructing approximate matrix decompositions", SIAM Review 2011.
"""

import math

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cpaan.math.ky_fan_cuda import orthonormal

# Columns beyond the rank, and products with the Gram matrix: they leave out less than a thousandth of the variance
# that exact factors of that rank have, where eigenvalues fall at least as 1 / i.
OVERSAMPLING, PRODUCTS = 14, 6


def covariance(examples: Tensor) -> Tensor:
    """Compute the population covariance of the rows, about their mean; leading dimensions are batches.

    Σ = Σ_i (x_i − x̄)(x_i − x̄)ᵀ / n

    >>> covariance(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    # NOTE[paper]: 1/n and not 1/(n − 1), as printed.
    factor = deviation_factor(examples)
    return factor.mT @ factor


def deviation_factor(examples: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return F, (…, n, D), with Fᵀ F the population covariance of the rows, or the one under weights (…, n).

    F holds the deviations from the mean. Only ratios of weights matter; all zero give a zero factor. No gradient flows
    through the mean: a function of Fᵀ F gets its whole gradient all the same, because deviations add up to zero, and so
    would what they pass on to the mean.
    """
    if weights is None:
        return (examples - examples.detach().mean(-2, keepdim=True)) / math.sqrt(examples.shape[-2])
    total = weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    shares = (weights / total).unsqueeze(-1)
    mean = shares.mT @ examples.detach()
    return shares.sqrt() * (examples - mean)


def truncated_factor(examples: Tensor, rank: int) -> Tensor:
    """Factorise the best approximation, of at most the given rank, to the covariance of the rows.

    Always `rank` rows, orthogonal and the longest first; a covariance of lower rank is padded with zeros.
    """
    factor = leading_rows(deviation_factor(examples), rank)
    return torch.nn.functional.pad(factor, (0, 0, 0, rank - factor.shape[0]))


def quick_truncated_factors(classes: list[Tensor], rank: int) -> Tensor:
    """Factorise the covariance of each class, (n, D), all but as well as the best factor of that rank: (C, rank, D).

    With G the smaller Gram matrix of deviations, by randomised subspace iteration: Q ← orth(G Q), then the
    eigenvectors of QᵀGQ. Costs products with G instead of its decomposition.
    """
    # Rows of zeros, which make classes equally long, change no covariance.
    factors = pad_sequence([deviation_factor(examples) for examples in classes], batch_first=True)
    n, dimension = factors.shape[1:]
    gram = factors @ factors.mT if n <= dimension else factors.mT @ factors
    values, vectors = _leading_eigenpairs(gram, min(rank, len(gram[0])))
    rows = vectors.mT @ factors if n <= dimension else (values.clamp_min(0).sqrt().unsqueeze(1) * vectors).mT
    return torch.nn.functional.pad(rows, (0, 0, 0, rank - rows.shape[1]))


def _leading_eigenpairs(gram: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Find eigenpairs (B, number) and (B, s, number) of positive semidefinite matrices (B, s, s), largest first."""
    size = gram.shape[-1]
    start = torch.randn(size, min(number + OVERSAMPLING, size), generator=torch.Generator().manual_seed(0))
    block = start.to(gram).expand(len(gram), -1, -1)
    for _ in range(PRODUCTS - 1):
        block = orthonormal(gram @ block)
    block = torch.linalg.qr(gram @ block).Q
    values, vectors = torch.linalg.eigh(block.mT @ (gram @ block))
    return values[:, -number:].flip(1), block @ vectors[:, :, -number:].flip(2)


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
