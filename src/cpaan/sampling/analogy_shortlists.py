"""In which classes to look for the pair that is most parallel to a given one.

A shortlist gives, for the pairs of one class, a mask over classes; the pairs of those are then compared one by one, in
single precision.
"""

from typing import Protocol

import torch
from torch import Tensor

from cpaan.sampling.centroid_pairs import CentroidPairs

SMALLEST_SYSTEM = 3  # two centroids have one length, which they share
ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE_ON_GPU = 2**18, 2**28


class Shortlist(Protocol):
    """Chooses classes for each pair of one class."""

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Give a mask of shape (pairs, classes), in which the source's own column has no meaning."""


class EveryClass:
    """Look everywhere."""

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose all classes."""
        return torch.ones(pairs.number, len(pairs.points), dtype=torch.bool, device=products.device)


class ExtremeCentroids:
    """Look where the extreme centroids along A − B are farthest apart: an approximation.

    Let p_C = ⟨A − B, C⟩ / ‖A − B‖. A pair (C, D) has a larger cosine than τ where p_C − p_D − τ ‖C − D‖ > 0. With
    lengths replaced by sums, ‖C − D‖ ≈ o_C + o_D in least squares, the largest value of this falls into two parts,

    max over C of (p_C − τ o_C) − min over D of (p_D + τ o_D)

    which takes k steps a class instead of k². The classes where it is largest are chosen.

    Parameters
    ----------
    pairs : of all classes
    number : classes to choose for each pair
    cosine : τ, about the best cosine that is to be found
    """

    def __init__(self, pairs: CentroidPairs, number: int, cosine: float) -> None:
        self.number = min(number, len(pairs.points) - 1)
        self.offsets = cosine * length_shares(pairs.closeness)

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose the classes with the largest values."""
        table = torch.cat(list(self._rows(pairs, source, products)))
        table[:, source] = -torch.inf
        chosen = table.topk(self.number, dim=1).indices
        return torch.zeros_like(table, dtype=torch.bool).scatter_(1, chosen, True)

    def _rows(self, pairs: CentroidPairs, source: int, products: Tensor) -> list[Tensor]:
        limit = ELEMENTS_AT_ONCE_ON_GPU if products.is_cuda else ELEMENTS_AT_ONCE
        at_once = max(1, limit // products[0].numel())
        buffer = products.new_empty(at_once, *products.shape[1:])
        k = len(products)
        return [
            self._values(products[first] - products[start : start + at_once], closeness, buffer)
            for first in range(k - 1)
            for start, closeness in _parts(pairs.closeness[source, first], first + 1, at_once)
        ]

    def _values(self, profiles: Tensor, closeness: Tensor, buffer: Tensor) -> Tensor:
        profiles *= closeness.view(-1, 1, 1)
        highest = torch.sub(profiles, self.offsets, out=buffer[: len(profiles)]).amax(2)
        return highest - profiles.add_(self.offsets).amin(2)


def _parts(closeness: Tensor, begin: int, size: int) -> list[tuple[int, Tensor]]:
    return [(start, closeness[start : start + size]) for start in range(begin, len(closeness), size)]


def length_shares(closeness: Tensor) -> Tensor:
    """Solve ‖C − D‖ ≈ o_C + o_D over the pairs C ≠ D of each class in least squares.

    >>> length_shares(1 / torch.tensor([[[torch.inf, 3.0, 4.0], [3.0, torch.inf, 5.0], [4.0, 5.0, torch.inf]]]))
    tensor([[1., 2., 3.]])
    """
    k = closeness.shape[1]
    lengths = torch.where(closeness > 0, 1 / closeness, 0)
    sums = lengths.sum(2)
    if k < SMALLEST_SYSTEM:
        return sums / 2
    return (sums - sums.sum(1, keepdim=True) / (2 * (k - 1))) / (k - 2)


class HalfProducts:
    """Look where a pair is most parallel in half precision: exact, for all that could win are chosen.

    The differences of a class lie in the span of its centroids. In an orthonormal basis of it, a class takes k numbers
    for each direction instead of D, and all cosines with it are one product of matrices.

    Parameters
    ----------
    pairs : of all classes
    dtype : of the products; half precision is for GPUs
    """

    def __init__(self, pairs: CentroidPairs, dtype: torch.dtype = torch.float16) -> None:
        self.dtype = dtype
        # Rounding changes an entry of two unit vectors by at most eps / 2 of itself, so by Cauchy–Schwarz their
        # product by at most eps, and the result by eps / 2; a winner may lose that and another one gain it.
        self.margin = 3.5 * torch.finfo(dtype).eps + 1e-6
        self.basis = torch.linalg.qr(pairs.points.mT).Q  # (classes, D, rank)
        padding = -self.basis.shape[2] % 8  # tensor cores take multiples of 8
        self.basis = torch.nn.functional.pad(self.basis, (0, padding))
        self.directions = self._directions(pairs, pairs.points @ self.basis, pairs.closeness)

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose all classes within rounding of the best one."""
        table = products.new_empty(pairs.number, len(pairs.points))
        at_once = max(1, ELEMENTS_AT_ONCE_ON_GPU // pairs.number**2)
        for start in range(0, table.shape[1], at_once):
            part = slice(start, start + at_once)
            coordinates = pairs.points[source] @ self.basis[part]
            rows = self._directions(pairs, coordinates, pairs.closeness[source])
            cosines = rows @ self.directions[part].mT
            # Both orders of (C, D) at once: their cosines differ in sign.
            table[:, part] = torch.linalg.vector_norm(cosines, torch.inf, dim=2).T.float()
        table[:, source] = -1
        return table >= table.amax(1, keepdim=True) - self.margin

    def _directions(self, pairs: CentroidPairs, coordinates: Tensor, closeness: Tensor) -> Tensor:
        """Give (A − B) / ‖A − B‖ of all unordered pairs, in the coordinates of a class."""
        differences = coordinates[:, pairs.first] - coordinates[:, pairs.second]
        return (differences * closeness[..., pairs.first, pairs.second].unsqueeze(-1)).to(self.dtype)
