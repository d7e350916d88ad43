"""Leading eigenvectors of what few rows make up, as combinations of these rows.

Everything here runs a fixed sequence of tensor operations: no shape and no branch depends on a value, so that
a training step that contains it can be captured as one CUDA graph.
"""

from functools import lru_cache

import torch
from torch import Tensor

from cpaan.functional.eigen import fixed_block
from cpaan.functional.small_matrices import kernels_for, rounding_of_gram, whitening

STEPS = 4
ROUNDINGS = 8  # a bound on those of cᵀ S c, with tensor cores that multiply in three parts, in the trace of S


def leading_combinations(gram: Tensor, positive: int, count: int, steps: int = STEPS) -> Tensor:
    r"""Find which combinations of given rows are the leading eigenvectors of what the rows make up.

    Rows W of which the first p count as they are and the others negatively make up

    .. math:: M = W^T J W, \qquad J = \mathrm{diag}(1, \dots, 1, -1, \dots, -1).

    With u = Wᵀc, M u = Wᵀ (J S c) and ⟨u, u'⟩ = cᵀ S c' for the Gram matrix S = W Wᵀ, so that subspace iteration,
    c ← J S c made orthonormal, needs no row.

    Parameters
    ----------
    gram : Tensor of shape (…, k, k)
        S.
    positive : int
        p.
    count : int
        q, the number of eigenvectors, up to k. Those of the smaller eigenvalues among them have not converged.
    steps : int
        Products with S. The number is fixed: nothing is measured.

    Returns
    -------
    Tensor of shape (…, k, q)
        C, with Wᵀ C all but orthogonal and as long as the longest row; where S has a lower rank than q, some columns
        may be zero or shorter.

    Examples
    --------
    >>> W = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
    >>> C = leading_combinations(W @ W.T, 2, 1)
    >>> (W.T @ C).abs().round(decimals=2).flatten()
    tensor([0., 0., 4.])
    """
    C, J = _start_of_combinations(gram.shape[-1], positive, count, gram.dtype, gram.device)
    kernels = kernels_for(gram)
    if kernels is not None:
        found: Tensor = kernels.leading_combinations(
            gram, C, positive, steps, rounding_of_gram(count, gram.dtype), ROUNDINGS * torch.finfo(gram.dtype).eps
        )
        return found
    S = gram / gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(torch.finfo(gram.dtype).tiny)[..., None, None]
    # More than rounding makes of cᵀ S c for a c of length one: with it, no square of a length falls below zero.
    rounding = ROUNDINGS * torch.finfo(S.dtype).eps * S.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    C, SC = _orthonormal_combinations(C.expand(*S.shape[:-1], count), S @ C, rounding)
    for _ in range(steps):
        once = J * SC
        S_once = S @ once
        c_squared = (once * S_once).sum(-2, keepdim=True).amin(-1, keepdim=True)
        C = J * S_once - C * (c_squared / 2)
        C, SC = _orthonormal_combinations(C, S @ C, rounding)
    return C


def _orthonormal_combinations(C: Tensor, SC: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    added = (rounding * C.square().sum(-2)).clamp_min(torch.finfo(C.dtype).tiny)
    T = whitening(C.mT @ SC + torch.diag_embed(added))
    return C @ T, SC @ T


@lru_cache(maxsize=64)
def _start_of_combinations(
    rows: int, positive: int, count: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Begin at the first of the positive rows and at mixtures of the negative ones, with a trace of everything."""
    axes = min(count // 2, positive) if positive < rows else count
    start = torch.finfo(dtype).eps ** 0.25 * fixed_block(rows, count, dtype, device)
    start[:axes, :axes] += torch.eye(axes, dtype=dtype, device=device)
    if positive < rows:
        start[positive:, axes:] += fixed_block(rows - positive, count - axes, dtype, device)
    signs = torch.ones(rows, 1, dtype=dtype, device=device)
    signs[positive:] = -1
    return start, signs
