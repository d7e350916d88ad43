"""The distance that the covariance loss is made of: between covariances that are known and those of samples.

A base class has its covariance as a factor F with orthogonal rows, its principal axes times their deviations; the
synthetic examples of a novel class have theirs as a factor G, their own deviations. Differences are never built.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpaan.functional.eigen import OVERSAMPLING, fixed_block, leading_eigenvectors, signs_beyond_rounding

SHORTEST = 1e-3  # of the longest row
ITERATIONS = 2  # one less than from nowhere: the iteration begins at the leading axes of both covariances


def covariance_distance(base: Tensor, samples: Tensor, m: int) -> Tensor:
    r"""Give the Ky Fan m-norm of every difference of a base class's covariance and that of a novel class's samples.

    .. math:: d_{np} = \|[F_{np}^T F_{np} - G_n^T G_n]_m\|_* = \sum_{i=1}^m |\lambda_i|, \qquad
        \frac{\partial d_{np}}{\partial G_n} = -2\, G_n \sum_{i=1}^m \mathrm{sign}(\lambda_i)\, u_i u_i^T

    over the m eigenpairs of largest absolute eigenvalue, which are found without derivatives.

    Parameters
    ----------
    base : Tensor of shape (N or 1, P, r, D)
        F, with orthogonal rows, the longest first. No gradient flows to it.
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
        theta, U = eigenpairs_of_difference(base, samples, m)
        signs = signs_beyond_rounding(theta)
        ctx.save_for_backward(samples, signs, U)
        return (signs * theta).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, None]:
        # NOTE[paper]: reading notes, row 11: U Vᵀ itself, no derivative through the decomposition.
        samples, signs, U = ctx.saved_tensors
        weights = (-2 * grad_output.unsqueeze(-1) * signs).flatten(1).unsqueeze(1)  # (N, 1, P m)
        axes = U.mT.flatten(1, 2)  # (N, P m, D)
        return None, ((samples @ axes.mT) * weights) @ axes, None


def eigenpairs_of_difference(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Find the m eigenvalues of largest absolute value, (N, P, m), and their eigenvectors, (N, P, D, m)."""
    few = 2 * (base.shape[-2] + samples.shape[-2]) <= samples.shape[-1]
    # A GPU does large products sooner than a sequence of small steps.
    find = _eigenpairs_among_rows if few and not samples.is_cuda else _eigenpairs_among_features
    return find(base, samples, m)


def _eigenpairs_among_features(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Find them in D dimensions."""
    (classes, D), P = samples.shape[::2], base.shape[1]
    covariance = samples.mT @ samples

    def apply(Y: Tensor) -> Tensor:
        of_base = _base_times(base, Y)
        side_by_side = Y.transpose(1, 2).flatten(2)  # (N, D, P q): one large product instead of P small ones
        of_samples = (covariance @ side_by_side).unflatten(2, (P, Y.shape[-1]))
        difference: Tensor = of_base - of_samples.transpose(1, 2)
        return difference

    count = min(m + OVERSAMPLING, D)
    known = min(count // 2, base.shape[-2])
    start = torch.cat(
        (
            _unit_rows(base[..., :known, :]).mT.expand(classes, P, D, known),
            _mixed(samples, count - known).unsqueeze(1).expand(classes, P, D, count - known),
        ),
        dim=-1,
    )
    return leading_eigenvectors(
        apply, D, (classes, P), m, dtype=samples.dtype, device=samples.device, iterations=ITERATIONS, start=start
    )


def _base_times(base: Tensor, Y: Tensor) -> Tensor:
    """Multiply FᵀF with blocks (N, P, D, q); factors that novel classes share are not copied for each of them."""
    if len(base) == len(Y):
        return base.mT @ (base @ Y)
    F, blocks = base[0], Y.permute(1, 2, 0, 3)  # (P, r, D) and (P, D, N, q)
    product: Tensor = (F.mT @ (F @ blocks.flatten(2))).reshape(blocks.shape).permute(2, 0, 1, 3)
    return product


def _eigenpairs_among_rows(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    r"""Find them in r + s dimensions, where that is less.

    With V the unit rows of F = diag(σ) V, and G = A V + L Q where A = G Vᵀ and Q has orthonormal rows of its own,

    .. math:: F^T F - G^T G = \begin{pmatrix} V \\ Q \end{pmatrix}^T
        \big(\mathrm{diag}(\sigma^2, 0) - C^T C\big) \begin{pmatrix} V \\ Q \end{pmatrix}, \qquad C = (A, L).

    L Lᵀ = G Gᵀ − A Aᵀ gives L; Q = L⁻¹ (G − A V) is never built.
    """
    s, r = samples.shape[-2], base.shape[-2]
    dtype, device = samples.dtype, samples.device
    sigma = torch.linalg.vector_norm(base, dim=-1)
    # Rows that are this short carry next to no variance, and their directions are rounding: not orthogonal.
    sigma = sigma * (sigma > SHORTEST * sigma.amax(-1, keepdim=True))
    inverse = 1 / sigma.clamp_min(torch.finfo(dtype).tiny) * (sigma > 0)
    # einsum, which unlike matmul copies nothing to broadcast it
    A = torch.einsum("nsd,nprd->npsr", samples, base) * inverse.unsqueeze(-2)
    L, shift = _cholesky_of_rest(samples @ samples.mT, A)
    C = torch.cat((A, L), dim=-1)
    squares = torch.nn.functional.pad(sigma.square(), (0, s)).unsqueeze(-1)

    count = min(m + OVERSAMPLING, r + s)
    known = min(count // 2, r)
    axes = torch.eye(r + s, known, dtype=dtype, device=device).expand(*C.shape[:-2], -1, -1)
    _, W = leading_eigenvectors(
        lambda Y: torch.addcmul(-(C.mT @ (C @ Y)), squares, Y),
        r + s,
        tuple(C.shape[:-2]),
        m,
        dtype=dtype,
        device=device,
        iterations=ITERATIONS,
        start=torch.cat((axes, _mixed(C, count - known)), dim=-1),
    )
    of_axes = W[..., :r, :]
    X: Tensor = torch.linalg.solve_triangular(L.mT, W[..., r:, :], upper=True)
    # Of the vectors as they are: the shift makes Q Qᵀ = I − shift L⁻¹ L⁻ᵀ, so that G U = C W − shift X.
    theta = (squares[..., :r, :] * of_axes.square()).sum(-2) - (C @ W - shift * X).square().sum(-2)
    Y = (of_axes - A.mT @ X) * inverse.unsqueeze(-1)
    return theta, base.mT @ Y + torch.einsum("nsd,npsm->npdm", samples, X)


def _cholesky_of_rest(gram: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Factorise G Gᵀ − A Aᵀ + shift I, the shift exceeding rounding errors; nothing is reported to the host."""
    s, info = gram.shape[-1], torch.finfo(gram.dtype)
    size = gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(info.tiny)[..., None, None, None]
    eye = torch.eye(s, dtype=gram.dtype, device=gram.device)
    relative = 16 * s * info.eps
    L, failed = torch.linalg.cholesky_ex((gram.unsqueeze(1) - A @ A.mT) / size + relative * eye)
    return torch.where((failed == 0)[..., None, None], L, s**0.5 * eye) * size.sqrt(), relative * size


def _mixed(rows: Tensor, count: int) -> Tensor:
    """Mix rows (…, s, D) to columns (…, D, count) that point where the rows point most."""
    return rows.mT @ fixed_block(rows.shape[-2], count, rows.dtype, rows.device)


def _unit_rows(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=-1, eps=torch.finfo(rows.dtype).tiny)
