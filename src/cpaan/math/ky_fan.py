r"""Ky Fan m-norms of covariance differences, and the sub-gradient of the paper's appendix.

.. math:: \|[M]_m\|_* = \sum_{i=1}^m |\lambda_i| = \langle S, M \rangle, \qquad
    S = U V^T = \sum_{i=1}^m \mathrm{sign}(\lambda_i)\, u_i u_i^T

over the m eigenvalues of largest absolute value: M = Σ_x − Σ_G is symmetric, so its singular values are the absolute
eigenvalues. S is the sub-gradient, and nothing is differentiated through the decomposition.

Reference: H. Gao, Z. Shou, A. Zareian, H. Zhang and S.-F. Chang, "Low-shot learning via covariance-preserving
adversarial augmentation networks", NeurIPS 2018.
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpaan.errors import InputError
from cpaan.math import ky_fan_cuda

__all__ = ["covariance_distance", "ky_fan_norm"]

SOLVERS = ("auto", "exact", "iterative")
# Rows up to which a CPU decomposes a symmetric matrix faster than it iterates (benchmarks/ky_fan.py).
SMALL = 32


def covariance_distance(base: Tensor, samples: Tensor, m: int, solver: str = "auto") -> Tensor:
    r"""Measure how far the covariance of a novel class's samples is from that of each of its base classes.

    Covariances are given as factors, Σ_x = FᵀF and Σ_G = GᵀG, and the D × D difference is never built:

    .. math:: d_{np} = \|[F_{np}^T F_{np} - G_n^T G_n]_m\|_*, \qquad
        \frac{\partial d_{np}}{\partial G_n} = -2\, G_n S_{np}

    Parameters
    ----------
    base : Tensor of shape (N or 1, P, r, D)
        F, the longest rows first. No gradient flows to it.
    samples : Tensor of shape (N, s, D)
        G: the deviations of s examples from their mean, divided by √s.
    m : int
        Number of singular values.
    solver : {"auto", "exact", "iterative"}
        "exact" decomposes, "iterative" multiplies matrices alone (see `cpaan.math.ky_fan_cuda`) and gives a lower
        bound, within 1e-3 on real features. "auto" takes the faster one; a GPU always iterates.

    Returns
    -------
    Tensor of shape (N, P)

    Examples
    --------
    >>> base = torch.tensor([[[[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]])
    >>> samples = torch.tensor([[[0.0, 0.0, 3.0]], [[2.0, 0.0, 0.0]]])
    >>> covariance_distance(base, samples, 2).round(decimals=3)
    tensor([[13.],
            [ 1.]])
    """
    distance: Tensor = _CovarianceDistance.apply(base, samples, m, solver)  # type: ignore[no-untyped-call]
    return distance


class _CovarianceDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, base: Tensor, samples: Tensor, m: int, solver: str) -> Tensor:
        theta, axes = eigenpairs_of_difference(base, samples, m, solver)
        signs = signs_beyond_rounding(theta)
        ctx.save_for_backward(samples, signs, axes)
        return (signs * theta).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, None, None]:
        # NOTE[paper]: reading notes, row 11: U Vᵀ itself, no derivative through the decomposition.
        samples, signs, axes = ctx.saved_tensors
        weights = (-2 * grad_output.unsqueeze(-1) * signs).flatten(1)  # (N, P m)
        axes = axes.flatten(1, 2)  # (N, P m, D)
        if samples.shape[1] > samples.shape[2]:  # ΣS, (N, D, D), is smaller than the products with every axis
            return None, samples @ (axes.mT @ (weights.unsqueeze(2) * axes)), None, None
        return None, ((samples @ axes.mT) * weights.unsqueeze(1)) @ axes, None, None


def eigenpairs_of_difference(base: Tensor, samples: Tensor, m: int, solver: str = "auto") -> tuple[Tensor, Tensor]:
    """Find the m eigenvalues of largest absolute value, (N, P, m), and their eigenvectors as rows, (N, P, m, D)."""
    rows, dimension = base.shape[-2] + samples.shape[-2], samples.shape[-1]
    if not _is_exact(solver, min(rows, dimension), samples.device):
        return ky_fan_cuda.eigenpairs_of_difference(base, samples, m)
    if rows > dimension:
        theta, U = _leading_eigenpairs(base.mT @ base - (samples.mT @ samples).unsqueeze(1), m)
        return theta, U.mT
    # W = (F, G) and J = diag(1, …, −1, …): with Wᵀ = Q R, WᵀJW = Q (R J Rᵀ) Qᵀ, and R J Rᵀ is small.
    N, P = len(samples), base.shape[1]
    W = torch.cat((base.expand(N, -1, -1, -1), samples.unsqueeze(1).expand(-1, P, -1, -1)), dim=-2)
    Q, R = torch.linalg.qr(W.mT)
    of_base, of_samples = R.split([base.shape[-2], samples.shape[-2]], dim=-1)
    theta, U = _leading_eigenpairs(of_base @ of_base.mT - of_samples @ of_samples.mT, m)
    return theta, (Q @ U).mT


def ky_fan_norm(matrices: Tensor, m: int, solver: str = "auto") -> Tensor:
    """Sum the m largest singular values of symmetric matrices, with the sub-gradient S.

    Parameters
    ----------
    matrices : Tensor of shape (…, D, D)
        Replaced by (M + Mᵀ) / 2. Half precision is computed in single precision.
    m : int
        Number of singular values; D or more give the nuclear norm.
    solver : {"auto", "exact", "iterative"}
        As for `covariance_distance`.

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
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2] or matrices.shape[-1] == 0:  # noqa: PLR2004
        raise InputError(f"matrices must have shape (…, D, D) with D of 1 or more; got {tuple(matrices.shape)}.")
    if matrices.dtype not in (torch.float32, torch.float64):
        matrices = matrices.to(torch.float32)
    exact = _is_exact(solver, matrices.shape[-1], matrices.device)
    norm: Tensor = _KyFanNorm.apply(matrices, _count(m), exact)  # type: ignore[no-untyped-call]
    return norm


class _KyFanNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor, m: int, exact: bool) -> Tensor:
        solve = _leading_eigenpairs if exact else ky_fan_cuda.leading_eigenvectors
        theta, U = solve((matrices + matrices.mT) / 2, m)
        signs = signs_beyond_rounding(theta)
        ctx.save_for_backward(signs, U)
        return (signs * theta).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        signs, U = ctx.saved_tensors
        weights = signs * grad_output.unsqueeze(-1)
        return (U * weights.unsqueeze(-2)) @ U.mT, None, None


def _leading_eigenpairs(M: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Decompose symmetric matrices; give m eigenvalues by falling absolute value, and eigenvectors as columns."""
    # Entries far below rounding are set to zero: LAPACK fails on some matrices of rank one that have subnormal ones.
    info = torch.finfo(M.dtype)
    size = torch.linalg.vector_norm(M, float("inf"), dim=(-2, -1), keepdim=True).clamp_min(info.tiny)
    values, vectors = torch.linalg.eigh(torch.nn.functional.hardshrink(M / size, info.eps**2))
    values = values * size.squeeze(-1)
    order = values.abs().argsort(dim=-1, descending=True, stable=True)[..., :m]
    return values.gather(-1, order), vectors.gather(-1, order.unsqueeze(-2).expand(*M.shape[:-1], -1))


def signs_beyond_rounding(theta: Tensor) -> Tensor:
    """Return sign(λ) of eigenvalues (…, m), with 0 for what differs from zero by rounding alone."""
    # NOTE[paper]: reading notes, row 11: sign(0) = 0, the shortest of the sub-gradients.
    size = theta.abs()
    rounding = 10 * torch.finfo(theta.dtype).eps * size.amax(-1, keepdim=True)
    return theta.sign() * (size > rounding)


def _is_exact(solver: str, size: int, device: torch.device) -> bool:
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(map(repr, SOLVERS))}; got {solver!r}.")
    # Not on a GPU: torch.linalg.eigh would make it wait for the host, which a CUDA graph forbids.
    return solver == "exact" or (solver == "auto" and size <= SMALL and device.type != "cuda")


def _count(m: int) -> int:
    try:
        number = operator.index(m)
    except TypeError:
        number = 0
    if number < 1 or isinstance(m, bool):
        raise InputError(f"m must be an integer of 1 or more; got {m!r}.")
    return number
