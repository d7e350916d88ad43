"""Empirical Bayes: what base classes tell of where a class with a few examples has its centre.

The two-covariance model of S. Ioffe, "Probabilistic linear discriminant analysis", ECCV 2006, with its parameters
estimated on base classes, in the spirit of C. Stein, "Inadmissibility of the usual estimator for the mean of a
multivariate normal distribution", Berkeley Symposium, 1956.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import (
    LinearGaussian,
    add_centers,
    class_moments,
    class_posterior,
    covariance_factor,
    draw_gaussian,
    fit_linear_gaussian,
    to_unit,
)
from cpaan.math.prototypes import prototypes

SPREADS = ("within", "predictive")


class EmpiricalBayes(BaseAugmenter):
    """Draw examples about the most probable class centre, given the shots and how base classes vary.

    Class centres are taken to be N(μ, Σ_b) and examples N(centre, Σ_w). Given the mean l_n of K shots, the centre is
    N(m, V) with

    m = μ + Σ_b (Σ_b + Σ_w / K)⁻¹ (l_n − μ),   V = Σ_b − Σ_b (Σ_b + Σ_w / K)⁻¹ Σ_b

    and the examples are x ~ N(m, Σ_w), or N(m, Σ_w + V) with ``spread="predictive"``.

    One shot is a noisy sign of the centre: m keeps what classes differ in and shrinks what examples of one class
    differ in. M synthetic examples and K shots have their common mean at (M m + K l_n) / (M + K) on average, so that
    a classifier of class means uses m where M is much larger than K; as K grows, m itself becomes l_n.

    Parameters
    ----------
    ridge : float
        Added to the diagonals of Σ_b and of Σ_w where m and V are computed, in multiples of the mean variance on each
        diagonal. Without it m cannot leave the space that base class means span.
    spread : {"within", "predictive"}
        Spread of the examples: that of a class, or that of an example given the shots, which has the uncertainty of
        the centre in it.
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size: as in imbalanced-learn, or ``"base_mean"``; see
        `cpaan.augmenters.base.BaseAugmenter`.

    Attributes
    ----------
    mean_ : ndarray of shape (D,), μ
    axes_, inverse_axes_ : ndarrays of shape (D, D), A and A⁻¹ with A Aᵀ = Σ_w and A diag(λ) Aᵀ = Σ_b, with ridges
    ratios_ : ndarray of shape (D,), λ; infinite after a single base class, from which m is l_n
    within_factor_ : ndarray of shape (D, D), F with Fᵀ F = Σ_w, without a ridge
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> X_base = [[0.0, 1.0], [0.0, -1.0], [10.0, 1.0], [10.0, -1.0]]  # classes differ in the first feature
    >>> augmenter = EmpiricalBayes(ridge=0.01, random_state=0).fit(X_base, ["a", "a", "b", "b"])
    >>> X_new, y_new = augmenter.augment([[4.0, 4.0]], ["c"], per_class=1000)
    >>> X_new.mean(axis=0).round(1)
    array([4. , 0.5])
    """

    _learned: ClassVar[Mapping[str, str]] = {
        "mean_": "D float64",
        "axes_": "DD float64",
        "inverse_axes_": "DD float64",
        "ratios_": "D float64",
        "within_factor_": "RD float64",
    }

    mean_: NDArray[np.float64]
    axes_: NDArray[np.float64]
    inverse_axes_: NDArray[np.float64]
    ratios_: NDArray[np.float64]
    within_factor_: NDArray[np.float64]

    def __init__(
        self,
        *,
        ridge: float = 1.0,
        spread: str = "within",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.ridge = ridge
        self.spread = spread
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _learn(self, base: FeatureSet) -> None:
        self._check_parameters()
        moments = class_moments(*base.to_torch(), base.n_classes)
        model = fit_linear_gaussian(moments, float(self.ridge))
        self.mean_, self.ratios_ = model.mean.numpy(), model.ratios.numpy()
        self.axes_, self.inverse_axes_ = model.axes.numpy(), model.inverse_axes.numpy()
        self.within_factor_ = covariance_factor(moments.within).numpy()

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        features, labels = novel.to_torch()
        dtype = torch.promote_types(features.dtype, torch.float32)
        number = torch.as_tensor(wanted)
        generator = torch.Generator().manual_seed(self._seed(1))
        made = draw_gaussian(torch.as_tensor(self.within_factor_), int(wanted.sum()), generator, dtype)
        centroids = prototypes(features.double(), labels, novel.n_classes)
        means, variances = class_posterior(self._model(), centroids, torch.tensor(novel.counts))
        if self.spread == "predictive":
            made += self._draw_centers(variances.repeat_interleave(number, 0), generator, dtype)
        examples: NDArray[np.floating] = add_centers(made, means, number).numpy()
        return examples

    def _model(self) -> LinearGaussian:
        parts = (self.mean_, self.axes_, self.inverse_axes_, self.ratios_)
        return LinearGaussian(*(torch.as_tensor(part) for part in parts))

    def _draw_centers(self, variances: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Draw deviations of the centre from m, another one for each example."""
        axes, size = to_unit(torch.as_tensor(self.axes_), torch.float32)
        noise = torch.randn(variances.shape, generator=generator) * variances.sqrt().float()
        return (noise @ axes.T).to(dtype).mul_(size)

    def _check_learned(self) -> None:
        self._check_parameters()

    def _check_parameters(self) -> None:
        if not isinstance(self.ridge, (int, float)) or isinstance(self.ridge, bool) or not 0 <= self.ridge < np.inf:
            raise InputError(f"ridge must be a number of at least 0, not {self.ridge!r}")
        if self.spread not in SPREADS:
            raise InputError(f"unknown spread {self.spread!r}; choose one of {', '.join(SPREADS)}")
