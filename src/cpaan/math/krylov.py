"""Leading eigenvectors of one symmetric operator, where its spectrum falls so slowly that subspace iteration is slow.

References: G. H. Golub and R. Underwood, "The block Lanczos method for computing eigenvalues", Mathematical Software
III, 1977; L. Giraud, J. Langou, M. Rozložník and J. van den Eshof, "Rounding error analysis of the classical
Gram-Schmidt orthogonalization process", Numerische Mathematik, 2005.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cpaan.math.ky_fan_cuda import fixed_block

# Blocks at most, and after how many of them to look whether they suffice: a look costs as much as a few blocks.
MOST_BLOCKS, LOOKS = 20, (7, 11, 15, 17)
# Columns of a block at least, where few eigenvectors are wanted: what all blocks can tell apart grows with them.
LEAST_WIDTH = 10


def block_width(m: int) -> int:
    """Give the columns of a block: with m or more, an eigenvalue is found as many times as it occurs among the first m.

    >>> block_width(12)
    12
    """
    return max(m, LEAST_WIDTH)


def krylov_eigenvectors(
    apply: Callable[[Tensor], Tensor], dimension: int, m: int, *, dtype: torch.dtype, tolerance: float
) -> Tensor:
    r"""Find eigenvectors of largest absolute eigenvalue of a symmetric operator M.

    Block Lanczos: Rayleigh–Ritz on the span of :math:`Q, MQ, M^2 Q, \dots` for a fixed block Q, which gets the best
    that any polynomial of M makes of Q. Each new block is made orthogonal to all before it.

    Parameters
    ----------
    apply : callable
        Takes rows (q, D) and returns M times each of them.
    dimension : int
        D, the size of M.
    m : int
        How many eigenvectors are wanted, at most D.
    dtype : torch.dtype
        In which floating-point type to compute.
    tolerance : float
        Largest residual :math:`\|Mu - \theta u\|` of an eigenvector, in parts of the largest eigenvalue. The search
        ends where that is reached, or after 20 blocks: residuals are for the caller to check.

    Returns
    -------
    Tensor of shape (m, D)
        Orthonormal rows, by falling absolute eigenvalue.

    Examples
    --------
    >>> M = torch.diag(torch.tensor([1.0, -5.0, 0.5, 3.0]))
    >>> vectors = krylov_eigenvectors(lambda rows: rows @ M, 4, 2, dtype=torch.float32, tolerance=1e-3)
    >>> vectors.abs().round(decimals=3)
    tensor([[0., 1., 0., 0.],
            [0., 0., 0., 1.]])
    """
    width = min(block_width(m), dimension)
    blocks = min(MOST_BLOCKS, dimension // width)
    basis = torch.empty((blocks * width, dimension), dtype=dtype)
    within = torch.empty((len(basis), len(basis)), dtype=dtype)  # M in this basis, of which the lower half is set
    block = fixed_block(dimension, width, dtype, torch.device("cpu")).mT
    for number in range(1, blocks + 1):
        end = number * width
        last, known = slice(end - width, end), basis[:end]
        known[last] = block
        image = apply(block)
        within[last, :end] = image @ known.mT
        beyond = image - within[last, :end] @ known
        if number in LOOKS or number == blocks:
            values, mixture = _eigh_by_size(within[:end, :end])
            # All of M times the basis lies in its span, but for what the last block leads to.
            residuals = (mixture[last, :m].mT @ beyond).norm(dim=1)
            if residuals.max() <= tolerance * values[0].abs():
                break
        # Twice: what is left beyond the span may be so little that it is mostly rounding.
        block = _orthonormal(beyond)
        block = _orthonormal(block - (block @ known.mT) @ known)
    found: Tensor = mixture[:, :m].mT @ known
    return found


def _eigh_by_size(lower: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose a symmetric matrix of which the lower half is given; by falling absolute eigenvalue."""
    values, vectors = torch.linalg.eigh(lower, UPLO="L")
    order = values.abs().argsort(descending=True, stable=True)
    return values[order], vectors[:, order]


def _orthonormal(rows: Tensor) -> Tensor:
    """Make rows orthonormal; those that depend on others are replaced by some that do not."""
    orthonormal: Tensor = torch.linalg.qr(rows.mT).Q.mT
    return orthonormal
