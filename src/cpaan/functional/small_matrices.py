"""Many small symmetric matrices at once, decomposed or factorised without waiting for the host.

Everything here runs a fixed sequence of tensor operations, or one kernel, so that a training step that contains it can
be captured as one CUDA graph.

Reference: T. Fukaya, R. Kannan, Y. Nakatsukasa, Y. Yamamoto and Y. Yanagisawa, "Shifted Cholesky QR for computing the
QR factorization of ill-conditioned matrices", SIAM Journal on Scientific Computing, 2020.
"""

from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from cpaan.functional.kernels import find_kernels
from cpaan.functional.precision import full_precision


def eigh_by_size(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose small symmetric matrices, M = V diag(λ) Vᵀ, without making the host wait for the device.

    ``torch.linalg.eigh`` looks at its error code on the host, which forbids the capture of a CUDA graph, so that a
    CUDA device runs a kernel of its own, or where there is no Triton `jacobi_eigh`.

    Parameters
    ----------
    matrices : Tensor of shape (…, q, q)
        Symmetric, q up to about 64.

    Returns
    -------
    eigenvalues : Tensor of shape (…, q)
        By falling absolute value.
    eigenvectors : Tensor of shape (…, q, q)
        As columns.

    Examples
    --------
    >>> values, _ = eigh_by_size(torch.tensor([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 5.0]]))
    >>> [round(value, 3) for value in values.abs().tolist()]
    [5.0, 2.0, 2.0]
    """
    kernels = kernels_for(matrices)
    if kernels is not None and matrices.shape[-1] <= kernels.SMALL:
        found: tuple[Tensor, Tensor] = kernels.eigh_by_size(matrices)
        return found
    values, vectors = jacobi_eigh(matrices) if matrices.is_cuda else torch.linalg.eigh(matrices)
    order = values.abs().argsort(dim=-1, descending=True, stable=True)
    return values.gather(-1, order), vectors.gather(-1, order[..., None, :].expand(vectors.shape))


def jacobi_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    r"""Decompose small symmetric matrices by cyclic Jacobi rotations, all disjoint ones of a step at once.

    .. math:: A \leftarrow J^T A J, \quad V \leftarrow V J, \qquad
        t = \frac{2 a_{ij}\, \mathrm{sgn}\, d}{|d| + \sqrt{d^2 + 4 a_{ij}^2}}, \quad d = a_{jj} - a_{ii},

    J rotating every pair (i, j) of a step by the angle whose tangent is t. The pairs of a step are always
    (i, i + n/2): a fixed permutation, folded into J, lets every two indices meet once in a sweep of n - 1
    steps, as the players of a round-robin tournament do.

    Parameters
    ----------
    matrices : Tensor of shape (…, q, q)
        Symmetric.

    Returns
    -------
    eigenvalues : Tensor of shape (…, q)
        Rising.
    eigenvectors : Tensor of shape (…, q, q)
        As columns.

    Examples
    --------
    >>> values, vectors = jacobi_eigh(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    >>> [round(value, 5) for value in values.tolist()]
    [-2.0, 2.0]
    """
    q, dtype = matrices.shape[-1], matrices.dtype
    n = q + q % 2
    scale = matrices.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(dtype).tiny)
    # An odd q gets one more row and column of zeros: its rotations are by the angle 0, it stays apart.
    A = torch.nn.functional.pad(matrices / scale, (0, n - q, 0, n - q))
    V = torch.eye(n, dtype=dtype, device=A.device).expand(A.shape)[..., :q, :]
    keep, turn = _round_robin(n, dtype, A.device)
    sweeps = 12 if dtype == torch.float64 else 7  # enough for q up to 64
    for _ in range(sweeps * (n - 1)):
        c, s = _rotations(A)
        J = torch.addcmul(c[..., None] * keep, s[..., None], turn)
        A, V = J.mT @ (A @ J), V @ J
    values, order = A.diagonal(dim1=-2, dim2=-1)[..., :q].sort(dim=-1)
    V = V[..., :q].gather(-1, order[..., None, :].expand(*A.shape[:-2], q, q))
    return values * scale[..., 0], V


def _rotations(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (…, n) that bring the entries (i, i + n/2) of A to zero."""
    half = A.shape[-1] // 2
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    d = diagonal[..., half:] - diagonal[..., :half]
    a = 2 * A[..., :half, half:].diagonal(dim1=-2, dim2=-1)
    # Rounding errors are left alone: between equal eigenvalues they would call for large, senseless
    # rotations, which undo what other steps of the sweep have cleared.
    a = torch.nn.functional.hardshrink(torch.where(d < 0, -a, a), torch.finfo(A.dtype).eps)
    t = a / (d.abs() + torch.hypot(d, a)).clamp_min(torch.finfo(A.dtype).tiny)
    c = (1 + t * t).rsqrt()
    s = c * t
    return torch.cat((c, c), dim=-1), torch.cat((s, s), dim=-1)


@lru_cache(maxsize=64)
def _round_robin(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return P and T such that J = c P + s T rotates the pairs (i, i + n/2), then moves all one seat on."""
    half = n // 2
    ring = [*range(1, half), *range(n - 1, half - 1, -1)]  # all but index 0, in the order of the seats
    seat = list(range(n))
    for old, new in zip(ring, [*ring[1:], ring[0]], strict=True):
        seat[new] = old
    eye = torch.eye(n, dtype=dtype)
    turn = torch.cat((eye[half:], -eye[:half]))
    return eye[:, seat].to(device), turn[:, seat].to(device)


def orthonormal(Y: Tensor) -> Tensor:
    """Return Q = Y T with QᵀQ ≤ I and, but for directions in which Y all but vanishes, QᵀQ ≈ I."""
    with full_precision():
        return Y @ whitening(Y.mT @ Y)


def whitening(G: Tensor) -> Tensor:
    """Return T, triangular, with Tᵀ G T ≤ I and, but for directions in which G all but vanishes, Tᵀ G T ≈ I.

    A vector whose squared length rounding left at zero or below is dropped: its column of T is zero.
    """
    kernels = kernels_for(G)
    if kernels is not None:
        found: Tensor = kernels.whitening(G, rounding_of_gram(G.shape[-1], G.dtype))
        return found
    L, norms, _ = shifted_cholesky(G)
    lengths = torch.where(G.diagonal(dim1=-2, dim2=-1) > 0, 1 / norms, 0)
    inverse: Tensor = torch.linalg.solve_triangular(L, torch.diag_embed(lengths), upper=False)
    return inverse.mT


def rounding_of_gram(q: int, dtype: torch.dtype) -> float:
    """More than the rounding errors of a normalised Gram matrix."""
    return float(4 * q * torch.finfo(dtype).eps)


def shifted_cholesky(G: Tensor) -> tuple[Tensor, Tensor, float]:
    """Factorise a Gram matrix of any rank, G ≈ N L Lᵀ N, N being the diagonal matrix of the vectors' norms.

    What is factorised is N⁻¹ G N⁻¹ + shift I. The shift exceeds the rounding error of G, so that a factor
    exists whatever the rank; should it fail all the same, L = √q I takes its place. Either way
    L Lᵀ ≥ N⁻¹ G N⁻¹ (its trace is at most q): the vectors, multiplied by (N L)⁻¹, form a matrix of spectral
    norm one at most. Nothing is reported to the host.

    Returns
    -------
    L : Tensor of shape (…, q, q)
        Lower triangular.
    norms : Tensor of shape (…, q)
        The diagonal of N, positive.
    shift : float
    """
    q, info = G.shape[-1], torch.finfo(G.dtype)
    norms = G.diagonal(dim1=-2, dim2=-1).clamp_min(info.tiny).sqrt()
    shift = rounding_of_gram(q, G.dtype)
    eye = torch.eye(q, dtype=G.dtype, device=G.device)
    L, failed = torch.linalg.cholesky_ex(G / (norms[..., :, None] * norms[..., None, :]) + shift * eye)
    return torch.where((failed == 0)[..., None, None], L, q**0.5 * eye), norms, shift


def kernels_for(matrices: Tensor) -> ModuleType | None:
    """Give the kernels for small matrices where they can be used."""
    if not matrices.is_cuda or matrices.dtype != torch.float32:
        return None
    kernels = find_kernels("cpaan.functional.small_kernels", matrices.device)
    return kernels if kernels is not None and matrices.shape[-1] <= kernels.LARGEST else None
