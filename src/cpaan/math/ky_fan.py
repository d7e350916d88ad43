"""The Ky Fan m-norm of covariance differences, with the sub-gradient of the paper's appendix.

Σ_x - Σ_G is symmetric, so that its singular values are the absolute eigenvalues; the eigenvectors are found
once, without derivatives, and both the value and the sub-gradient follow from them by matrix products. Training never
builds these matrices: see `cpaan.math.ky_fan`.

References
----------
H. Gao, Z. Shou, A. Zareian, H. Zhang and S.-F. Chang, "Low-shot learning via covariance-preserving
adversarial augmentation networks", NeurIPS 2018.

The distance that the covariance loss is made of: between covariances that are known and those of samples.

A base class has its covariance as a factor F, its principal axes times their deviations, the longest first; the
synthetic examples of a novel class have theirs as a factor G, their own deviations. Differences are never built.
"""

import operator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpaan.errors import InputError
from cpaan.math.ky_fan_cuda import (
    OVERSAMPLING,
    eigh_by_size,
    fixed_block,
    full_precision,
    leading_combinations,
    leading_eigenvectors,
    orthonormal,
    signs_beyond_rounding,
    whitening,
)

__all__ = ["ky_fan_norm"]

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
        `cpaan.math.ky_fan_cuda.leading_eigenvectors`). "auto" takes the faster one.

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


ROWS = 64  # of both factors together that are looked at first
WHOLE, LEADING = 40, 32  # made examples that are taken as they are, and directions that stand for more of them
PRODUCTS = 4  # that find those
EXTRA_DIRECTIONS = 6
SHORT = 0.03  # square of the length that a row has left where what it adds to others is hardly more than rounding
PAIRS_IN_CACHE = 200  # that a processor takes at a time


def covariance_distance(base: Tensor, samples: Tensor, m: int) -> Tensor:
    r"""Give the Ky Fan m-norm of every difference of a base class's covariance and that of a novel class's samples.

    .. math:: d_{np} = \|[F_{np}^T F_{np} - G_n^T G_n]_m\|_* = \sum_{i=1}^m |\lambda_i|, \qquad
        \frac{\partial d_{np}}{\partial G_n} = -2\, G_n \sum_{i=1}^m \mathrm{sign}(\lambda_i)\, u_i u_i^T

    over the m eigenpairs of largest absolute eigenvalue, which are found without derivatives.

    Parameters
    ----------
    base : Tensor of shape (N or 1, P, r, D)
        F, the longest rows first. No gradient flows to it.
    samples : Tensor of shape (N, s, D)
        G: the deviations of s examples from their mean, divided by √s.
    m : int
        How many singular values count.

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
    distance: Tensor = _CovarianceDistance.apply(base, samples, m)  # type: ignore[no-untyped-call]
    return distance


class _CovarianceDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, base: Tensor, samples: Tensor, m: int) -> Tensor:
        theta, axes = eigenpairs_of_difference(base, samples, m)
        signs = signs_beyond_rounding(theta)
        ctx.save_for_backward(samples, signs, axes)
        return (signs * theta).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, None]:
        # NOTE[paper]: reading notes, row 11: U Vᵀ itself, no derivative through the decomposition.
        samples, signs, axes = ctx.saved_tensors
        weights = (-2 * grad_output.unsqueeze(-1) * signs).flatten(1)  # (N, P m)
        axes = axes.flatten(1, 2)  # (N, P m, D)
        if samples.shape[1] > samples.shape[2]:  # the sum over pairs is smaller than what it is multiplied with
            return None, samples @ (axes.mT @ (weights.unsqueeze(2) * axes)), None
        return None, ((samples @ axes.mT) * weights.unsqueeze(1)) @ axes, None


def eigenpairs_of_difference(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    r"""Find the m eigenvalues of largest absolute value, (N, P, m), and their eigenvectors as rows, (N, P, m, D).

    Few rows of both factors come first. With W these rows one below the other,

    .. math:: F'^T F' - G'^T G' = W^T J W, \qquad J = \mathrm{diag}(1, \dots, 1, -1, \dots, -1),

    has its leading eigenvectors among combinations of them, which `leading_combinations` finds from the Gram matrix
    W Wᵀ. Where rows were left out, a product with the whole difference follows. Last, Rayleigh–Ritz: the eigenvalues
    of the whole difference among the vectors found, whose sum is too small by less than 1e-3 on real features.
    """
    at_a_time = len(samples) if samples.is_cuda else max(1, PAIRS_IN_CACHE // base.shape[1])
    if at_a_time >= len(samples):
        return _pairs_of_factors(base, samples, m)
    bases = base.split(at_a_time) if len(base) == len(samples) else repeat(base)
    found = [_pairs_of_factors(*part, m) for part in zip(bases, samples.split(at_a_time), strict=False)]
    theta, axes = (torch.cat(parts) for parts in zip(*found, strict=True))
    return theta, axes


def _pairs_of_factors(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    made = _leading_directions(samples)
    few = base if base.shape[-2] <= ROWS - made.shape[-2] else base[..., : ROWS - made.shape[-2], :]
    count = min(m + EXTRA_DIRECTIONS, few.shape[-2] + made.shape[-2], samples.shape[-1])
    combinations = leading_combinations(_gram_of_both(few, made), few.shape[-2], count).mT
    of_base, of_made = combinations.split([few.shape[-2], made.shape[-2]], dim=-1)
    rows = _times_samples(of_made, made) + _times_base(of_base, few)
    difference = _Difference(base, samples)
    if few is not base or made is not samples:
        rows = difference.times(rows)
    with full_precision():
        gram = rows @ rows.mT
    rows = whitening(gram).mT @ rows
    among = difference.among(rows)
    with full_precision():
        # Again: where one eigenvalue dwarfs the others, rows were all but parallel, and are not quite orthonormal yet.
        T = _whitening_of_long(rows @ rows.mT)
        theta, W = eigh_by_size(T.mT @ among @ T)
        return theta[..., :m], (T @ W[..., :m]).mT @ rows


def _whitening_of_long(gram: Tensor) -> Tensor:
    """Make rows orthonormal that are all but so, without the short ones: they depend on others but for rounding."""
    is_long = gram.diagonal(dim1=-2, dim2=-1) > SHORT
    both = is_long.unsqueeze(-1) & is_long.unsqueeze(-2)
    return whitening(gram * both) * both


def _leading_directions(samples: Tensor) -> Tensor:
    """Give few rows that carry most of GᵀG."""
    if samples.shape[-2] <= WHOLE:
        return samples
    covariance = samples.mT @ samples
    directions = fixed_block(samples.shape[-1], min(LEADING, samples.shape[-1]), samples.dtype, samples.device)
    for _ in range(PRODUCTS):
        directions = orthonormal(covariance @ directions)
    with full_precision():
        along = samples @ directions
        gram = along.mT @ along
        rows: Tensor = (gram @ whitening(gram)).mT @ directions.mT
    return rows


def _gram_of_both(few: Tensor, made: Tensor) -> Tensor:
    """Give W Wᵀ for W = (F', G'), (N, P, k, k), in full precision.

    Where the two covariances are nearly equal, leading combinations nearly vanish: with products of eleven digits their
    squared lengths would come out negative.
    """
    with full_precision():
        across = torch.einsum("nprd,nsd->nprs", few, made)  # which unlike matmul copies nothing to broadcast it
        of_base, of_made = few @ few.mT, (made @ made.mT).unsqueeze(1)
    shape = across.shape[:2]
    above = torch.cat((of_base.expand(*shape, -1, -1), across), dim=-1)
    return torch.cat((above, torch.cat((across.mT, of_made.expand(*shape, -1, -1)), dim=-1)), dim=-2)


class _Difference:
    """FᵀF − GᵀG of every pair, which is never built."""

    def __init__(self, base: Tensor, samples: Tensor) -> None:
        self.base, self.samples = base, samples
        many = samples.shape[-2] > samples.shape[-1]
        self.covariance = samples.mT @ samples if many else None

    def times(self, rows: Tensor) -> Tensor:
        """Multiply rows (N, P, q, D) with the difference, and with −1.

        On a GPU in half precision: what it turns a row by, a thousandth, changes an eigenvalue by the square of that.
        """
        coarse = torch.bfloat16 if rows.is_cuda and rows.dtype == torch.float32 else rows.dtype
        whole = self.samples if self.covariance is None else self.covariance
        rows, base, whole = rows.to(coarse), self.base.to(coarse), whole.to(coarse)
        if self.covariance is None:
            of_samples = _times_samples(_times_samples(rows, whole.mT), whole)
        else:
            of_samples = _times_samples(rows, whole)
        return (of_samples - _times_base(_times_base(rows, base.mT), base)).to(self.base.dtype)

    def among(self, rows: Tensor) -> Tensor:
        """Give the difference between rows (N, P, q, D), as matrices (N, P, q, q)."""
        of_base = _squares(_times_base(rows, self.base.mT))
        if self.covariance is None:
            return of_base - _squares(_times_samples(rows, self.samples.mT))
        difference: Tensor = of_base - _times_samples(rows, self.covariance) @ rows.mT
        return difference


def _times_samples(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply rows (N, P, q, ·) with a matrix (N, ·, ·) for each novel class, all pairs at once."""
    product: Tensor = (rows.flatten(1, 2) @ matrices).unflatten(1, rows.shape[1:3])
    return product


def _times_base(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply rows (N, P, q, ·) with matrices (N or 1, P, ·, ·), which are not copied for each novel class."""
    if len(matrices) == len(rows):
        return rows @ matrices
    side_by_side = rows.transpose(0, 1).flatten(1, 2)  # (P, N q, ·)
    product: Tensor = (side_by_side @ matrices[0]).unflatten(1, (len(rows), -1)).transpose(0, 1)
    return product


def _squares(rows: Tensor) -> Tensor:
    """Give all products of two rows, in the order in which they lie in memory."""
    if rows.stride(0) < rows.stride(1):
        return _squares(rows.transpose(0, 1)).transpose(0, 1)
    return rows @ rows.mT
