"""The mean of the shots, as in the paper."""

from typing import ClassVar

from torch import Tensor

from cpaan.centers.base import Center, Noise
from cpaan.math.prototypes import prototypes
from cpaan.training.bank import ClassBank


class ShotMean(Center):
    """Take the mean of the shots for the centre: l_n = Σ x / K (equation 1 of the paper)."""

    seeded: ClassVar[bool] = False

    def fit(self, bank: ClassBank, *, seed: int = 0) -> "ShotMean":
        """Learn nothing."""
        return self

    def estimate(self, shots: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        """Return the mean of the shots of each class."""
        return prototypes(shots.double(), labels, n_classes)

    def uncertainty(self, counts: Tensor) -> Noise | None:
        """Return None: the uncertainty of a shot mean is ignored, as in the paper."""
        return None
