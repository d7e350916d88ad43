"""The Ky Fan m-norm of covariance differences, with the sub-gradient of the paper's appendix.

Σ_x - Σ_G is symmetric, so that its singular values are the absolute eigenvalues; the eigenvectors are found
once, without derivatives, and both the value and the sub-gradient follow from them by matrix products.

References
----------
H. Gao, Z. Shou, A. Zareian, H. Zhang and S.-F. Chang, "Low-shot learning via covariance-preserving
adversarial augmentation networks", NeurIPS 2018.
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpaan.errors import InputError
from cpaan.functional.eigen import OVERSAMPLING, leading_eigenvectors, shifted_cholesky, signs_beyond_rounding

__all__ = ["ky_fan_norm", "ky_fan_norm_of_difference"]

SOLVERS = ("auto", "exact", "iterative")
CHUNK_BYTES = 8 * 2**20
"""Matrices that a CPU takes at a time: what fits into its cache and is allocated without new memory pages."""


def ky_fan_norm(matrices: Tensor, m: int, solver: str = "auto") -> Tensor:
    r"""Sum the m largest singular values of symmetric matrices.

    .. math:: \|[M]_m\|_* = \langle S, M \rangle, \qquad
        S = U V^T = \sum_{i=1}^m \mathrm{sign}(\lambda_i)\, u_i u_i^T,

    over the m eigenvalues of largest absolute value; S is the sub-gradient that is propagated backwards.

    Parameters
    ----------
    matrices : Tensor of shape (…, D, D)
        Symmetric; what is not is replaced by (M + Mᵀ) / 2. Half precision is computed in single precision.
    m : int
        How many; D or more give the nuclear norm.
    solver : {"auto", "exact", "iterative"}
        "exact" decomposes the whole matrix, "iterative" finds the leading eigenvectors by matrix products:
        a lower bound, within 0.1 % of the norm on covariance differences of features (see
        `cpaan.functional.eigen.leading_eigenvectors`). "auto" takes the faster one.

    Returns
    -------
    Tensor of shape (…)

    Examples
    --------
    >>> M = torch.diag(torch.tensor([1.0, -5.0, 0.5, 3.0])).requires_grad_()
    >>> norm = ky_fan_norm(M, 2)
    >>> norm.item()
    8.0
    >>> norm.backward()
    >>> M.grad.diagonal().tolist()
    [0.0, -1.0, 0.0, 1.0]
    """
    m = _checked(m, solver)
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2] or matrices.shape[-1] == 0:  # noqa: PLR2004
        raise InputError(f"matrices must have shape (…, D, D) with D of 1 or more; got {tuple(matrices.shape)}.")
    if matrices.dtype not in (torch.float32, torch.float64):
        matrices = matrices.to(torch.float32)
    exact = _is_exact(solver, matrices.shape[-1], m, matrices.device)
    norm: Tensor = _KyFanNorm.apply(matrices, m, exact)  # type: ignore[no-untyped-call]
    return norm


def ky_fan_norm_of_difference(left: Tensor, right: Tensor, m: int, solver: str = "auto") -> Tensor:
    r"""Sum the m largest singular values of LᵀL - RᵀR without building these matrices.

    .. math:: \|[L^T L - R^T R]_m\|_* =
        \sum_{i=1}^m \mathrm{sign}(\lambda_i) \big(\|L u_i\|^2 - \|R u_i\|^2\big).

    With u and sign(λ) held constant the derivative of the right-hand side with respect to L and R is that of
    :math:`\langle S, L^T L - R^T R \rangle`, S the sub-gradient of `ky_fan_norm`.

    Parameters
    ----------
    left : Tensor of shape (…, r, D)
        For a covariance of n examples: the centred examples divided by √n, or a factor of its own.
    right : Tensor of shape (…, s, D)
        The same for the other covariance. The leading dimensions of the two broadcast.
    m, solver
        See `ky_fan_norm`.

    Returns
    -------
    Tensor
        Its shape is that of the leading dimensions, broadcast.

    Examples
    --------
    >>> left = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> right = torch.tensor([[[0.0, 0.0, 3.0]], [[2.0, 0.0, 0.0]]])
    >>> ky_fan_norm_of_difference(left, right, 2)
    tensor([13.,  1.])
    """
    m = _checked(m, solver)
    batch = _broadcast_batch(left, right)
    dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
    left, right = left.to(dtype), right.to(dtype)
    with torch.no_grad():
        theta, U = _eigenpairs_of_difference(left, right, batch, m, solver)
        signs = signs_beyond_rounding(theta)
    return (signs * (_times(left, U).square().sum(-2) - _times(right, U).square().sum(-2))).sum(-1)


class _KyFanNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor, m: int, exact: bool) -> Tensor:
        D = matrices.shape[-1]
        flat = matrices.reshape(-1, D, D)
        chunk = len(flat) if flat.is_cuda else max(1, CHUNK_BYTES // (flat.element_size() * D * D))
        parts = (flat[begin : begin + chunk] for begin in range(0, max(len(flat), 1), max(chunk, 1)))
        pairs = [_eigenpairs(M + M.mT, m, exact) for M in parts]
        theta = torch.cat([values for values, _ in pairs]) / 2
        U = torch.cat([vectors for _, vectors in pairs])
        signs = signs_beyond_rounding(theta)
        ctx.save_for_backward(signs, U)
        ctx.shape = matrices.shape
        return (signs * theta).sum(-1).reshape(matrices.shape[:-2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        # NOTE[paper]: reading notes, row 11: U Vᵀ itself, no derivative through the decomposition.
        signs, U = ctx.saved_tensors
        weights = signs * grad_output.reshape(-1, 1)
        return ((U * weights[:, None, :]) @ U.mT).reshape(ctx.shape), None, None


def _eigenpairs(M: Tensor, m: int, exact: bool) -> tuple[Tensor, Tensor]:
    """Return the m eigenpairs of largest absolute value of symmetric matrices (…, D, D)."""
    D = M.shape[-1]
    if not exact:
        # (YᵀM)ᵀ is MY, and a fifth faster on CPUs: the long, contiguous rows are those of M.
        return leading_eigenvectors(lambda Y: (Y.mT @ M).mT, D, tuple(M.shape[:-2]), m, dtype=M.dtype, device=M.device)
    values, vectors = torch.linalg.eigh(M)
    order = values.abs().argsort(dim=-1, descending=True, stable=True)[..., :m]
    columns = order[..., None, :].expand(*vectors.shape[:-1], order.shape[-1])
    return values.gather(-1, order), vectors.gather(-1, columns)


def _eigenpairs_of_difference(
    left: Tensor, right: Tensor, batch: tuple[int, ...], m: int, solver: str
) -> tuple[Tensor, Tensor]:
    """Return the m leading eigenpairs of LᵀL - RᵀR, in the space of the rows of L and R if that is small."""
    D, rows = left.shape[-1], left.shape[-2] + right.shape[-2]
    if 2 * rows <= D:
        return _eigenpairs_among_rows(left, right, batch, m, solver)
    if _is_exact(solver, D, m, left.device):
        return _eigenpairs(left.mT @ left - right.mT @ right, m, exact=True)

    def apply(Y: Tensor) -> Tensor:
        return _times(left.mT, _times(left, Y)) - _times(right.mT, _times(right, Y))

    return leading_eigenvectors(apply, D, batch, m, dtype=left.dtype, device=left.device)


def _eigenpairs_among_rows(
    left: Tensor, right: Tensor, batch: tuple[int, ...], m: int, solver: str
) -> tuple[Tensor, Tensor]:
    """Solve in r + s dimensions: C = [L; R] = B Q with B Bᵀ ≈ C Cᵀ, M = Qᵀ (Bᵀ J B) Q, J = diag(I, -I).

    B is square and triangular. If Bᵀ J B = W Θ Wᵀ, the eigenvectors of M are Qᵀ W = Cᵀ B⁻ᵀ W.
    """
    r, s = left.shape[-2], right.shape[-2]
    LR = _times(left, right.mT)
    G = torch.cat(
        (
            torch.cat(((left @ left.mT).expand(*batch, r, r), LR), dim=-1),
            torch.cat((LR.mT, (right @ right.mT).expand(*batch, s, s)), dim=-1),
        ),
        dim=-2,
    )
    factor, norms, _ = shifted_cholesky(G)
    B = factor * norms[..., None]
    top, bottom = B[..., :r, :], B[..., r:, :]
    K = top.mT @ top - bottom.mT @ bottom
    theta, W = _eigenpairs(K, m, _is_exact(solver, r + s, m, left.device))
    A = torch.linalg.solve_triangular(B.mT, W, upper=True)
    return theta, _times(left.mT, A[..., :r, :]) + _times(right.mT, A[..., r:, :])


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices whose leading dimensions broadcast; unlike matmul, einsum copies none for that."""
    return torch.einsum("...ij,...jk->...ik", a, b)


def _is_exact(solver: str, dimension: int, m: int, device: torch.device) -> bool:
    # A CUDA device is given the iterative solver always: the exact one waits for the host.
    small = device.type != "cuda" and dimension <= 2 * (m + OVERSAMPLING)
    return solver == "exact" or (solver == "auto" and small)


def _checked(m: int, solver: str) -> int:
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(map(repr, SOLVERS))}; got {solver!r}.")
    try:
        number = operator.index(m)
    except TypeError:
        number = 0
    if number < 1 or isinstance(m, bool):
        raise InputError(f"m must be an integer of 1 or more; got {m!r}.")
    return number


def _broadcast_batch(left: Tensor, right: Tensor) -> tuple[int, ...]:
    try:
        if min(left.ndim, right.ndim) < 2 or left.shape[-1] != right.shape[-1] or left.shape[-1] == 0:  # noqa: PLR2004
            raise RuntimeError
        return tuple(torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    except RuntimeError:
        raise InputError(
            "left and right must have shapes (…, r, D) and (…, s, D) with one D of 1 or more and leading "
            f"dimensions that broadcast; got {tuple(left.shape)} and {tuple(right.shape)}."
        ) from None
