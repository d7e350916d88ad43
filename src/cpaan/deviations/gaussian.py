"""Gaussian deviations with the covariance that base classes share.

The shared covariance of linear discriminant analysis: R. A. Fisher, "The use of multiple measurements in taxonomic
problems", Annals of Eugenics, 1936.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from cpaan.centers.base import Center
from cpaan.centers.posterior_mean import bank_moments
from cpaan.deviations.base import Deviations, Request
from cpaan.math.linear_gaussian import covariance_factor, draw_gaussian
from cpaan.training.bank import ClassBank


class Gaussian(Deviations):
    """Draw deviations from N(0, Σ_w), the pooled covariance within base classes.

    Σ_w = Σ_i (x_i − l_{y_i})(x_i − l_{y_i})ᵀ / (n − C) over base examples

    Base classes of one example each leave Σ_w zero, and examples are then copies of the centre.
    """

    learned: ClassVar[Mapping[str, str]] = {"factor_": "RD float64"}
    gaussian: ClassVar[bool] = True
    seeded: ClassVar[bool] = False

    factor_: Tensor  # F with Fᵀ F = Σ_w

    def fit(self, bank: ClassBank, center: Center, *, seed: int = 0) -> "Gaussian":
        """Estimate Σ_w, or take it from a centre that has."""
        within = center.within_covariance()
        self.factor_ = covariance_factor(bank_moments(bank).within if within is None else within)
        return self

    def draw(self, request: Request) -> Tensor:
        """Draw x = c + Fᵀ ε, ε ~ N(0, I)."""
        return request.about_centers(draw_gaussian(self.factor_, request.total, request.generator, request.dtype))
