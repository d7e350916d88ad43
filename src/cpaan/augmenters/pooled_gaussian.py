"""Gaussian noise of the covariance that base classes have in common.

The shared covariance of linear discriminant analysis: R. A. Fisher, "The use of multiple measurements in taxonomic
problems", Annals of Eugenics, 1936.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.feature_set import FeatureSet
from cpaan.math.linear_gaussian import add_centers, class_moments, covariance_factor, draw_gaussian
from cpaan.math.prototypes import prototypes


class PooledGaussian(BaseAugmenter):
    """Draw examples about the mean of the shots, spread as base classes are on average.

    x ~ N(l_n, Σ_w),   Σ_w = Σ_i (x_i − l_{y_i})(x_i − l_{y_i})ᵀ / (n − C) over base examples

    The mean of a class stays where its shots happen to lie. Base classes of one example each say nothing of Σ_w,
    which is then zero, and the examples are copies of l_n.

    Parameters
    ----------
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
    factor_ : ndarray of shape (D, D), F with Fᵀ F = Σ_w
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> X_base, y_base = [[0.0, 1.0], [2.0, 1.0], [5.0, 3.0], [8.0, 3.0]], ["a", "a", "b", "b"]
    >>> augmenter = PooledGaussian(random_state=0).fit(X_base, y_base)
    >>> X_new, y_new = augmenter.augment([[9.0, 7.0]], ["c"], per_class=3)
    >>> X_new[:, 1], y_new
    (array([7., 7., 7.]), array(['c', 'c', 'c'], dtype='<U1'))
    """

    _learned: ClassVar[Mapping[str, str]] = {"factor_": "RD float64"}

    factor_: NDArray[np.float64]

    def __init__(
        self, *, random_state: Any = None, per_class: int | None = None, sampling_strategy: Any = "auto"
    ) -> None:
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _learn(self, base: FeatureSet) -> None:
        moments = class_moments(*base.to_torch(), base.n_classes)
        self.factor_ = covariance_factor(moments.within).numpy()

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        features, labels = novel.to_torch()
        dtype = torch.promote_types(features.dtype, torch.float32)
        generator = torch.Generator().manual_seed(self._seed(1))
        noise = draw_gaussian(torch.as_tensor(self.factor_), int(wanted.sum()), generator, dtype)
        centroids = prototypes(features.double(), labels, novel.n_classes)
        made: NDArray[np.floating] = add_centers(noise, centroids, torch.as_tensor(wanted)).numpy()
        return made
