"""Leading eigenpairs of symmetric operators by matrix products alone, without waiting for the host.

Everything here runs a fixed sequence of tensor operations: no shape and no branch depends on a value, so that
a training step that contains it can be captured as one CUDA graph.

Reference: Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, "Self-consistent-field calculations using
Chebyshev-filtered subspace iteration", Journal of Computational Physics, 2006.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.functional.small_matrices import eigh_by_size, orthonormal

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
