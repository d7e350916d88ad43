"""The posterior mean of the class centre: empirical Bayes.

The two-covariance model of S. Ioffe, "Probabilistic linear discriminant analysis", ECCV 2006, with its parameters
estimated on base classes, in the spirit of C. Stein, "Inadmissibility of the usual estimator for the mean of a
multivariate normal distribution", Berkeley Symposium, 1956.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from cpaan.centers.base import Center, Noise
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import ClassMoments, LinearGaussian, class_posterior, fit_linear_gaussian
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.bank import ClassBank

GAUSSIAN_FORMS = {"mean_": "D float64", "axes_": "DD float64", "inverse_axes_": "DD float64", "ratios_": "D float64"}


class PosteriorMean(Center):
    """Estimate the centre by its posterior mean, given the shots and how base classes vary.

    Class centres are taken to be N(μ, Σ_b) and examples N(centre, Σ_w). Given the mean l of K shots, the centre is
    N(m, V) with

    m = μ + Σ_b (Σ_b + Σ_w / K)⁻¹ (l − μ),   V = Σ_b − Σ_b (Σ_b + Σ_w / K)⁻¹ Σ_b

    One shot is a noisy sign of the centre: m keeps what classes differ in and shrinks what examples of one class
    differ in. After a single base class m is l.

    Parameters
    ----------
    ridge : float
        Added to the diagonals of Σ_b and of Σ_w, in multiples of the mean variance on each diagonal. Without it m
        cannot leave the space that base class means span.
    predictive : bool
        Spread examples by V as well, the uncertainty of the centre.

    Examples
    --------
    >>> X = torch.tensor([[0.0, 1.0], [0.0, -1.0], [10.0, 1.0], [10.0, -1.0]])  # classes differ in the first feature
    >>> bank = ClassBank.from_examples(X, torch.tensor([0, 0, 1, 1]), 2)
    >>> PosteriorMean(ridge=0.01).fit(bank).estimate(torch.tensor([[4.0, 4.0]]), torch.tensor([0]), 1)
    tensor([[4.0002, 0.4425]], dtype=torch.float64)
    """

    learned: ClassVar[Mapping[str, str]] = GAUSSIAN_FORMS
    seeded: ClassVar[bool] = False

    mean_: Tensor
    axes_: Tensor  # A with A Aᵀ = Σ_w and A diag(λ) Aᵀ = Σ_b, both with ridges
    inverse_axes_: Tensor
    ratios_: Tensor  # λ
    _within: Tensor | None = None

    def __init__(self, *, ridge: float = 1.0, predictive: bool = False) -> None:
        self.ridge = ridge
        self.predictive = predictive

    def fit(self, bank: ClassBank, *, seed: int = 0) -> "PosteriorMean":
        """Estimate μ, Σ_b and Σ_w."""
        self.check()
        moments = bank_moments(bank)
        model = fit_linear_gaussian(moments, float(self.ridge))
        self._within = moments.within
        self.mean_, self.axes_, self.inverse_axes_ = model.mean, model.axes, model.inverse_axes
        self.ratios_ = finite(model.ratios)
        return self

    def estimate(self, shots: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        """Return m of each class."""
        centroids = prototypes(shots.double(), labels, n_classes)
        return class_posterior(self._model(), centroids, class_counts(labels, n_classes))[0]

    def uncertainty(self, counts: Tensor) -> Noise:
        """Return V of each class, if examples are to have it."""
        sizes = torch.zeros(len(counts), dtype=torch.double)
        if not self.predictive:
            return Noise(sizes)
        return Noise(sizes, self.axes_, class_posterior(self._model(), self.mean_.expand(len(counts), -1), counts)[1])

    def within_covariance(self) -> Tensor | None:
        """Return Σ_w without its ridge; None in a model that was loaded."""
        return self._within

    def check(self) -> None:
        """Refuse a ridge that is not a number from 0."""
        if not isinstance(self.ridge, (int, float)) or isinstance(self.ridge, bool) or not 0 <= self.ridge < math.inf:
            raise InputError(f"ridge must be a number of at least 0, not {self.ridge!r}")

    def _model(self) -> LinearGaussian:
        return LinearGaussian(self.mean_, self.axes_, self.inverse_axes_, self.ratios_)


def finite(ratios: Tensor) -> Tensor:
    """Replace an infinite λ, after a single base class, by the largest number, which a model file can hold."""
    return ratios.clamp_max(torch.finfo(ratios.dtype).max)


def bank_moments(bank: ClassBank) -> ClassMoments:
    """Take the moments of base classes on the CPU, one class at a time, so that few examples are in double precision.

    Where no class has two examples, `within` is zero.
    """
    dimension = bank.dimension
    means = torch.zeros((bank.n_classes, dimension), dtype=torch.double)
    scatter = torch.zeros((dimension, dimension), dtype=torch.double)
    for label in range(bank.n_classes):
        examples = bank.of_class(label).cpu().double()
        means[label] = examples.mean(0)
        deviations = examples - means[label]
        scatter += deviations.T @ deviations
    counts = bank.counts.cpu()
    return ClassMoments(means, counts, scatter / max(int(counts.sum()) - bank.n_classes, 1))
