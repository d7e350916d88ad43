"""The known feature scale in which loss weights and temperatures mean something."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.functional.distances import mean_within_class_distance
from cpaan.functional.rows import Rows, largest_absolute, row_mean

# Below this share of the largest value, what is left of a difference in double precision is rounding.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Scaling:
    """Affine change of units, x → (x − origin) · factor, and back.

    >>> scaling = Scaling(torch.tensor([1.0, 1.0]), 2.0)
    >>> scaling.apply(torch.tensor([[1.0, 2.0]]))
    tensor([[0., 2.]])
    >>> scaling.undo(torch.tensor([[0.0, 2.0]]))
    tensor([[1., 2.]])
    """

    origin: Tensor
    factor: float

    def apply(self, features: Tensor) -> Tensor:
        """Bring features into the model's units."""
        return (features - self.origin) * self.factor

    def undo(self, features: Tensor) -> Tensor:
        """Bring features back into the user's units."""
        return features / self.factor + self.origin


def fit_scaling(features: Rows, labels: Tensor, n_classes: int, *, within_distance: float, center: bool) -> Scaling:
    """Choose the scaling that gives a wanted mean within-class distance.

    Where no class varies, the overall spread is scaled instead; where nothing varies, the largest value. What is
    below rounding counts as no variation.
    """
    origin = row_mean(features) if center else torch.zeros_like(features[:1][0])
    largest = largest_absolute(features)
    distances = (
        mean_within_class_distance(features, labels, n_classes),
        mean_within_class_distance(features, torch.zeros_like(labels), 1),
        largest,
    )
    current = next((distance for distance in distances if distance > ROUNDING * largest), within_distance)
    return Scaling(origin, within_distance / current)
