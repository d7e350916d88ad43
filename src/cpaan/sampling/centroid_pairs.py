"""The pairs of centroids of each class, as lengths and inner products."""

from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST = 1e-5  # of the longest difference: what is shorter is rounding


@dataclass(frozen=True)
class CentroidPairs:
    """Centroids in units and about origins where pairs are compared without loss of digits.

    Attributes
    ----------
    points : Tensor of shape (classes, k, D), the centroids of each class about their mean
    closeness : Tensor of shape (classes, k, k), 1 / ‖C − D‖, and 0 where C = D
    first, second : integer Tensors of shape (pairs,), the unordered pairs of k centroids
    """

    points: Tensor
    closeness: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def between(cls, centroids: Tensor) -> "CentroidPairs":
        """Prepare the pairs of centroids of shape (classes, k, D).

        >>> pairs = CentroidPairs.between(torch.tensor([[[0.0], [2.0], [2.0]]]))
        >>> pairs.closeness[0] * pairs.closeness.max().reciprocal()
        tensor([[0., 1., 1.],
                [1., 0., 0.],
                [1., 0., 0.]])
        """
        points = centroids - centroids.mean(1, keepdim=True)
        largest = points.abs().max()
        points = (points / torch.where(largest > 0, largest, 1)).float()
        lengths = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        short = lengths <= SHORTEST * lengths.max()
        closeness = (1 / lengths).masked_fill(short, 0)
        k = points.shape[1]
        first, second = torch.triu_indices(k, k, 1, device=points.device)
        return cls(points, closeness, first, second)

    @property
    def number(self) -> int:
        """Unordered pairs of a class."""
        return len(self.first)

    def products(self, source: int) -> Tensor:
        """Give the inner products of the centroids of one class with all, of shape (k, classes, k)."""
        products: Tensor = torch.tensordot(self.points[source], self.points, dims=([1], [2]))
        return products

    def row_closeness(self, source: int) -> Tensor:
        """Give 1 / ‖A − B‖ of the unordered pairs of one class."""
        return self.closeness[source][self.first, self.second]
