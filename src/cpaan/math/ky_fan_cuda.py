"""Leading eigenpairs of symmetric operators by matrix products alone, without waiting for the host.

Everything here runs a fixed sequence of tensor operations: no shape and no branch depends on a value, so that
a training step that contains it can be captured as one CUDA graph.

Reference: Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, "Self-consistent-field calculations using
Chebyshev-filtered subspace iteration", Journal of Computational Physics, 2006.

How exactly a GPU multiplies matrices of single precision; other devices always use all digits.

Whether kernels of our own can be used, which need Triton and a GPU that multiplies matrices in TensorFloat-32.

Many small symmetric matrices at once, decomposed or factorised without waiting for the host.

Everything here runs a fixed sequence of tensor operations, or one kernel, so that a training step that contains it can
be captured as one CUDA graph.

Reference: T. Fukaya, R. Kannan, Y. Nakatsukasa, Y. Yamamoto and Y. Yanagisawa, "Shifted Cholesky QR for computing the
QR factorization of ill-conditioned matrices", SIAM Journal on Scientific Computing, 2020.

Leading eigenvectors of what few rows make up, as combinations of these rows.

Everything here runs a fixed sequence of tensor operations: no shape and no branch depends on a value, so that
a training step that contains it can be captured as one CUDA graph.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from cpaan.errors import InputError


@contextmanager
def _tensor_float(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def fast_products() -> AbstractContextManager[None]:
    """Let a GPU multiply matrices with the eleven leading digits of each factor; sums keep all of float32's."""
    return _tensor_float(True)


def full_precision() -> AbstractContextManager[None]:
    """Do matrix products in all of float32's digits, whatever a GPU was told to do otherwise."""
    return _tensor_float(False)


AMPERE = (8, 0)


@lru_cache(maxsize=8)
def find_kernels(name: str, device: torch.device) -> ModuleType | None:
    """Import a module of kernels where they can run on a device.

    >>> find_kernels("cpaan.math.small_kernels", torch.device("cpu")) is None
    True
    """
    if not is_recent_gpu(device):
        return None
    try:
        return import_module(name)
    except ImportError:  # no Triton
        return None


def is_recent_gpu(device: torch.device) -> bool:
    """Tell whether a device is a CUDA GPU with bfloat16 and TensorFloat-32.

    >>> is_recent_gpu(torch.device("cpu"))
    False
    """
    return (
        device.type == "cuda" and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= AMPERE
    )


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
    kernels = find_kernels("cpaan.math.small_kernels", matrices.device)
    return kernels if kernels is not None and matrices.shape[-1] <= kernels.LARGEST else None


OVERSAMPLING = 14
ITERATIONS = 3


def leading_eigenvectors(
    apply: Callable[[Tensor], Tensor],
    dimension: int,
    batch_shape: tuple[int, ...],
    m: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    iterations: int = ITERATIONS,
    oversampling: int = OVERSAMPLING,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Find the eigenpairs of largest absolute eigenvalue of a symmetric operator M.

    Block subspace iteration on an orthonormal block Q of q = m + oversampling columns,

    .. math:: Q \leftarrow \mathrm{orth}\big((M^2 - \tfrac{c^2}{2} I)\, Q\big), \qquad c \approx |\lambda_q|,

    then Rayleigh–Ritz: :math:`Q^T M Q = W \Theta W^T`, :math:`U = Q W`. The filter is
    :math:`\frac{c^2}{2} T_2(M / c)`, T_2 being Chebyshev's polynomial: it is even, so that both signs of λ
    converge alike, it flattens every abs λ ≤ c, and with c = 0 it is the plain power iteration, which the first
    step is. Later steps take the least of the norms of MQ's columns for c. What an even filter cannot do is to part
    more than q eigenvalues of one absolute value and both signs: there the sum of abs Θ falls short.

    Parameters
    ----------
    apply : callable
        Takes a block (…, D, q) and returns M times the block.
    dimension : int
        D, the size of M.
    batch_shape : tuple of int
        The leading dimensions "…".
    m : int
        How many eigenpairs are wanted; above D, all D of them.
    dtype, device
        Where and in which floating-point type to compute.
    iterations : int
        Filter steps, two products each; one more product ends them. The number is fixed: nothing is measured.
    oversampling : int
        Columns of the block beyond m. Convergence depends on abs λ_{q+1} / abs λ_m.
    start : Tensor of shape (…, D, k), optional
        Begin here, for instance at the eigenvectors of a similar matrix; columns that are missing or linearly
        dependent are taken from the fixed block that is used otherwise.

    Returns
    -------
    eigenvalues : Tensor of shape (…, m)
        By falling absolute value.
    eigenvectors : Tensor of shape (…, D, m)
        As columns. Orthonormal where M has rank m or more; beyond its rank columns may be shorter than one.

    Examples
    --------
    >>> M = torch.diag(torch.tensor([1.0, -5.0, 0.5, 3.0]))
    >>> values, vectors = leading_eigenvectors(lambda Y: M @ Y, 4, (), 2, dtype=torch.float32)
    >>> [round(value, 3) for value in values.tolist()]
    [-5.0, 3.0]
    """
    if m < 1 or iterations < 0 or oversampling < 0:
        raise InputError(
            f"m must be 1 or more, iterations and oversampling 0 or more; "
            f"got m={m}, iterations={iterations}, oversampling={oversampling}."
        )
    m = min(m, dimension)
    Q = _start_block(dimension, min(m + oversampling, dimension), batch_shape, dtype, device, start)
    scale = None  # of M, so that no square leaves the range of the type
    for iteration in range(iterations):
        Z = apply(Q)
        if scale is None:
            scale = Z.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(dtype).tiny)
        Z = Z / scale
        filtered = apply(Z) / scale
        if iteration:  # before, the columns of Q are in no order, and c would be no estimate
            c_squared = Z.square().sum(-2, keepdim=True).amin(-1, keepdim=True)
            filtered = filtered - Q * (c_squared / 2)
        # Twice: where one eigenvalue dwarfs the others, columns become all but parallel.
        Q = orthonormal(orthonormal(filtered))
    H = Q.mT @ apply(Q)
    theta, W = eigh_by_size((H + H.mT) / 2)
    return theta[..., :m], Q @ W[..., :m]


def signs_beyond_rounding(theta: Tensor) -> Tensor:
    """Return sign(λ) of eigenvalues (…, m), with 0 for what differs from zero by rounding alone."""
    # NOTE[paper]: reading notes, row 11: sign(0) = 0, the shortest of the sub-gradients.
    size = theta.abs()
    rounding = 10 * torch.finfo(theta.dtype).eps * size.amax(-1, keepdim=True)
    return theta.sign() * (size > rounding)


def _start_block(
    dimension: int,
    columns: int,
    batch_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str,
    start: Tensor | None,
) -> Tensor:
    block = fixed_block(dimension, columns, dtype, torch.device(device)).expand(*batch_shape, dimension, columns)
    if start is None:
        return block
    if start.shape[-2] != dimension:
        raise InputError(f"start must have shape (…, {dimension}, k); got {tuple(start.shape)}.")
    given = start.detach()[..., :columns].to(dtype=dtype, device=device)
    given = given.expand(*batch_shape, *given.shape[-2:])
    # A trace of the fixed block replaces columns that are zero or repeat others: they would stay so.
    given = given + torch.finfo(dtype).eps ** 0.25 * block[..., : given.shape[-1]]
    return orthonormal(torch.cat((given, block[..., given.shape[-1] :]), dim=-1))


@lru_cache(maxsize=64)
def fixed_block(dimension: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a block that favours no axis: Gaussian, always the same, orthonormal unless it is wide."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(dimension, columns, dtype=torch.float64, generator=generator)
    if columns <= dimension:
        block = torch.linalg.qr(block).Q
    return block.to(dtype=dtype, device=device)


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
