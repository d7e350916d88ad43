"""Leading eigenpairs by matrix products alone: the solver of CUDA devices, and of factors too long to decompose.

`torch.linalg.eigh` makes a GPU wait for the host, and on a CPU takes 2 to 25 times as long where both factors together
have from forty to some hundred rows (`cpaan.math.ky_fan` decomposes what is smaller). Everything here runs a fixed
sequence of tensor operations: no shape and no branch depends on a value, so a training step that contains it can be
captured as one CUDA graph.

References: Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, "Self-consistent-field calculations using
Chebyshev-filtered subspace iteration", Journal of Computational Physics, 2006; T. Fukaya, R. Kannan, Y. Nakatsukasa,
Y. Yamamoto and Y. Yanagisawa, "Shifted Cholesky QR for computing the QR factorization of ill-conditioned matrices",
SIAM Journal on Scientific Computing, 2020.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import repeat
from types import ModuleType

import torch
from torch import Tensor

# Of a covariance difference.
ROWS = 64  # rows of both factors together that are combined at first
WHOLE, LEADING = 40, 32  # made examples that are taken as they are, and directions that stand for more of them
PRODUCTS = 4  # that find those directions
EXTRA_DIRECTIONS = 6
SHORT = 0.03  # squared length below which a whitened row is all but a combination of the others
PAIRS_IN_CACHE = 200  # pairs that a CPU takes at a time
# Of subspace iteration.
STEPS = 4  # on combinations
OVERSAMPLING, ITERATIONS = 14, 3  # on given matrices
ROUNDINGS = (
    8  # bounds the rounding of cᵀ S c, in parts of the trace of S, with tensor cores that multiply in three parts
)
AMPERE = (8, 0)


def eigenpairs_of_difference(base: Tensor, samples: Tensor, m: int) -> tuple[Tensor, Tensor]:
    r"""Find the m eigenvalues of largest absolute value, (N, P, m), and their eigenvectors as rows, (N, P, m, D).

    A few rows of both factors come first. With W these rows one below the other,

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


def leading_combinations(gram: Tensor, positive: int, count: int, steps: int = STEPS) -> Tensor:
    r"""Find which combinations of given rows are the leading eigenvectors of what the rows make up.

    Rows W of which the first p count as they are and the others negatively make up

    .. math:: M = W^T J W, \qquad J = \mathrm{diag}(1, \dots, 1, -1, \dots, -1).

    With u = Wᵀc, M u = Wᵀ (J S c) and ⟨u, u'⟩ = cᵀ S c' for the Gram matrix S = W Wᵀ, so subspace iteration,
    c ← J S c made orthonormal, needs no row.

    Parameters
    ----------
    gram : Tensor of shape (…, k, k), S
    positive : int, p
    count : int
        q, up to k. Those of the smaller eigenvalues among them have not converged.
    steps : int

    Returns
    -------
    Tensor of shape (…, k, q)
        C, with Wᵀ C all but orthogonal and as long as the longest row; where S has a lower rank than q, some columns
        may be zero or shorter.
    """
    C, J = _start_of_combinations(gram.shape[-1], positive, count, gram.dtype, gram.device)
    kernels = kernels_for(gram)
    if kernels is not None:
        found: Tensor = kernels.leading_combinations(
            gram, C, positive, steps, rounding_of_gram(count, gram.dtype), ROUNDINGS * torch.finfo(gram.dtype).eps
        )
        return found
    S = gram / gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(torch.finfo(gram.dtype).tiny)[..., None, None]
    # More than the rounding error of cᵀ S c for a c of length one: with it, no squared length falls below zero.
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


def leading_eigenvectors(M: Tensor, m: int, iterations: int = ITERATIONS) -> tuple[Tensor, Tensor]:
    r"""Find the eigenpairs of largest absolute eigenvalue of symmetric matrices (…, D, D).

    Block subspace iteration on an orthonormal block Q of q = m + 14 columns,

    .. math:: Q \leftarrow \mathrm{orth}\big((M^2 - \tfrac{c^2}{2} I)\, Q\big), \qquad c \approx |\lambda_q|,

    then Rayleigh–Ritz: :math:`Q^T M Q = W \Theta W^T`, :math:`U = Q W`. The filter is Chebyshev's T_2 of M / c times
    c² / 2: it is even, so both signs of λ converge alike, it flattens every abs λ ≤ c, and with c = 0, in the first
    step, it is the power iteration. Later steps take the least norm of MQ's columns for c. An even filter cannot
    separate more than q eigenvalues of one absolute value and both signs: there the sum falls short.

    Gives eigenvalues (…, m) by falling absolute value and eigenvectors (…, D, m) as columns: orthonormal where M has
    rank m or more; beyond its rank columns may be shorter than one.
    """
    D, tiny = M.shape[-1], torch.finfo(M.dtype).tiny
    m = min(m, D)
    Q = fixed_block(D, min(m + OVERSAMPLING, D), M.dtype, M.device).expand(*M.shape[:-1], -1)
    # Keeps every square in the range of the type.
    scale = torch.linalg.vector_norm(M, float("inf"), dim=(-2, -1), keepdim=True).clamp_min(tiny)
    for iteration in range(iterations):
        # (YᵀM)ᵀ is MY, and a fifth faster on CPUs: the long, contiguous rows are those of M.
        Z = (Q.mT @ M).mT / scale
        filtered = (Z.mT @ M).mT / scale
        if iteration:  # before, the columns of Q are in no order, and c would be a poor estimate
            c_squared = Z.square().sum(-2, keepdim=True).amin(-1, keepdim=True)
            filtered = filtered - Q * (c_squared / 2)
        # Twice: where one eigenvalue dwarfs the others, columns become all but parallel.
        Q = orthonormal(orthonormal(filtered))
    H = Q.mT @ M @ Q
    theta, W = eigh_by_size((H + H.mT) / 2)
    return theta[..., :m], Q @ W[..., :m]


@lru_cache(maxsize=64)
def fixed_block(dimension: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a block that favours no axis: Gaussian, always the same, orthonormal unless it is wide."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(dimension, columns, dtype=torch.float64, generator=generator)
    if columns <= dimension:
        block = torch.linalg.qr(block).Q
    return block.to(dtype=dtype, device=device)


def eigh_by_size(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose small symmetric matrices (…, q, q), q up to about 64: eigenvalues by falling absolute value.

    A CUDA device runs a kernel, or without Triton `jacobi_eigh`: ``torch.linalg.eigh`` looks at its error code on the
    host, which forbids the capture of a CUDA graph.
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
    steps, as the players of a round-robin tournament do. Eigenvalues rise.
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
    """Bound the rounding errors of a normalised Gram matrix."""
    return float(4 * q * torch.finfo(dtype).eps)


def shifted_cholesky(G: Tensor) -> tuple[Tensor, Tensor, float]:
    """Factorise a Gram matrix of any rank, G ≈ N L Lᵀ N, N being the diagonal matrix of the vectors' norms.

    What is factorised is N⁻¹ G N⁻¹ + shift I. The shift exceeds the rounding error of G, so a factor exists whatever
    the rank; should it fail all the same, L = √q I takes its place. Either way L Lᵀ ≥ N⁻¹ G N⁻¹ (its trace is at most
    q): the vectors, multiplied by (N L)⁻¹, form a matrix of spectral norm one at most. Nothing is reported to the host.

    Gives L, the norms and the shift.
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
    kernels = find_kernels(matrices.device)
    return kernels if kernels is not None and matrices.shape[-1] <= kernels.LARGEST else None


@lru_cache(maxsize=8)
def find_kernels(device: torch.device) -> ModuleType | None:
    """Import `triton_kernels` where they can run on a device: a recent GPU, with Triton."""
    if not is_recent_gpu(device):
        return None
    try:
        return import_module("cpaan.math.triton_kernels")
    except ImportError:  # no Triton
        return None


def is_recent_gpu(device: torch.device) -> bool:
    """Whether a device is a CUDA GPU with bfloat16 and TensorFloat-32."""
    return (
        device.type == "cuda" and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= AMPERE
    )


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
    """Multiply matrices in all of float32's digits, whatever a GPU was told before; other devices always do."""
    return _tensor_float(False)
