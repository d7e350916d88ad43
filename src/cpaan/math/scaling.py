"""Feature scales in which loss weights, temperatures and learning rates keep their meaning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.math.prototypes import mean_within_class_distance
from cpaan.math.rows import Rows, largest_absolute, row_mean

# Below this share of the largest value, a difference in double precision is rounding.
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
        """Convert features into the model's units."""
        return (features - self.origin) * self.factor

    def undo(self, features: Tensor) -> Tensor:
        """Convert features back into the user's units."""
        return features / self.factor + self.origin


def fit_scaling(features: Rows, labels: Tensor, n_classes: int, *, within_distance: float, center: bool) -> Scaling:
    """Choose the scaling that gives a wanted mean within-class distance.

    Where no class varies beyond rounding, the overall spread is scaled instead; where nothing varies, the largest
    value.
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


def fit_standardization(features: Tensor) -> Scaling:
    """Choose x → (x − mean) / s, where s² is the mean over all entries (n, D) of their squared deviation.

    One factor for all features preserves directions and ratios of distances. Features that do not vary at all are
    divided by the largest of them. In double precision any scale from 1e-150 to 1e150 is fine.

    >>> scaling = fit_standardization(torch.tensor([[1.0, 5.0], [3.0, 9.0]], dtype=torch.float64))
    >>> scaling.origin, round(scaling.factor ** -2, 6)
    (tensor([2., 7.], dtype=torch.float64), 2.5)
    """
    largest = float(features.abs().max())
    if largest == 0:
        return Scaling(torch.zeros_like(features[0]), 1.0)
    origin = features.mean(0)
    spread = float(((features - origin) / largest).square().mean().sqrt())
    return Scaling(origin, 1 / largest if spread < ROUNDING else 1 / (largest * spread))
