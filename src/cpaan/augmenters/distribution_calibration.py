"""Distribution calibration: a Gaussian for every shot, from the statistics of the most similar base classes.

S. Yang, L. Liu, M. Xu, "Free Lunch for Few-shot Learning: Distribution Calibration", ICLR 2021.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_counts
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import class_parts, draw_mixed, to_unit
from cpaan.math.prototypes import squared_distances

ALPHA_UNITS = ("variance", "feature")
ALPHA_PLACES = ("everywhere", "diagonal")


class DistributionCalibration(BaseAugmenter):
    """Draw examples from Gaussians that are calibrated by the base classes nearest to each shot.

    x̃ = x^λ   (Tukey's ladder of powers),   N = the k base classes whose μ_i is nearest to x̃

    μ' = (Σ_{i in N} μ_i + x̃) / (k + 1),   Σ' = Σ_{i in N} Σ_i / k + α

    μ_i and Σ_i are the mean and covariance of base class i; α is added to every entry of the matrix, which is a common
    shift of all features. Each shot of a class gives an equal part of its examples, y ~ N(μ', Σ'), which are given
    back in the units of the features, y^(1/λ).

    Parameters
    ----------
    power : float or "auto"
        λ. ``"auto"`` is the paper's 0.5 where no base feature is negative, as after a ReLU, and otherwise 1, which
        leaves features as they are. Any other number is used for negative features too, as sign(x) abs(x)^λ.
    neighbors : int
        k.
    alpha : float
        α, in the unit that `alpha_unit` says.
    alpha_unit : {"variance", "feature"}
        ``"variance"``: α is in multiples of the mean variance of a feature within base classes, so that the units of
        the features do not matter. ``"feature"``: α is taken as it is, which is the paper's.
    alpha_place : {"everywhere", "diagonal"}
        Where in the matrix α is added; ``"diagonal"`` varies every feature on its own.
    transform_base : bool
        Whether μ_i and Σ_i are those of x^λ. The paper's are those of x.
    random_state, per_class, sampling_strategy
        As in `cpaan.augmenters.base.BaseAugmenter`.

    Attributes
    ----------
    power_ : λ
    clip_ : whether features are non-negative, so that negative draws of x^λ become 0
    alpha_ : α in the square of the unit of x^λ
    base_means_ : ndarray of shape (C, D), μ_i
    factors_ : ndarray of shape (ranks_.sum(), D), in half precision; a class's rows times `factor_size_` are F with
        Fᵀ F = Σ_i
    ranks_ : ndarray of shape (C,), how many rows each class has
    factor_size_ : the unit of `factors_`
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Notes
    -----
    The literal setting of the paper is ``power=0.5, transform_base=False, alpha_unit="feature"``.

    Examples
    --------
    >>> X_base = [[1.0, 4.0], [1.0, 4.0], [9.0, 4.0], [9.0, 4.0], [100.0, 100.0]]
    >>> augmenter = DistributionCalibration(random_state=0).fit(X_base, ["a", "a", "b", "b", "far"])
    >>> augmenter.augment([[25.0, 4.0]], ["c"], per_class=1)[0]  # ((1 + 3 + 5) / 3)² and ((2 + 2 + 2) / 3)²
    array([[9., 4.]])
    """

    _learned: ClassVar[Mapping[str, str]] = {
        "power_": "float64",
        "clip_": "bool",
        "alpha_": "float64",
        "base_means_": "CD float64",
        "factors_": "RD float16",
        "ranks_": "C int",
        "factor_size_": "float64",
    }

    power_: NDArray[np.float64]
    clip_: NDArray[np.bool_]
    alpha_: NDArray[np.float64]
    base_means_: NDArray[np.float64]
    factors_: NDArray[np.float16]
    ranks_: NDArray[np.int64]
    factor_size_: NDArray[np.float64]

    def __init__(
        self,
        *,
        power: float | str = "auto",
        neighbors: int = 2,
        alpha: float = 0.21,
        alpha_unit: str = "variance",
        alpha_place: str = "everywhere",
        transform_base: bool = True,
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.power = power
        self.neighbors = neighbors
        self.alpha = alpha
        self.alpha_unit = alpha_unit
        self.alpha_place = alpha_place
        self.transform_base = transform_base
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _learn(self, base: FeatureSet) -> None:
        self._check_parameters()
        features, labels = base.to_torch()
        nonnegative = bool((features >= 0).all())
        # NOTE[paper]: the transform is for non-negative features alone.
        power = (0.5 if nonnegative else 1.0) if isinstance(self.power, str) else float(self.power)
        self.power_, self.clip_ = np.array(power), np.array(nonnegative and power != 1)
        means, factors = [], []
        for part in class_parts(features, labels, base.n_classes):
            examples = part.double()
            # NOTE[paper]: base statistics are those of features as they are, so that x̃ and μ_i have different units.
            examples = tukey(examples, power) if self.transform_base else examples
            means.append(examples.mean(0))
            factors.append(gaussian_factor(examples))
        self.base_means_ = torch.stack(means).numpy()
        self.ranks_ = np.array([len(factor) for factor in factors])
        units, size = to_unit(torch.cat(factors), torch.half)
        self.factors_, self.factor_size_ = units.numpy(), np.array(size)
        variance = sum(float(factor.square().sum()) for factor in factors) / self.base_means_.size
        # NOTE[paper]: 0.21 is said without a unit, and was chosen for the features of one network.
        self.alpha_ = np.array(self.alpha * (variance if self.alpha_unit == "variance" else 1.0))

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        features, labels = novel.to_torch()
        dtype = torch.promote_types(features.dtype, torch.float32)
        order = labels.argsort(stable=True)
        shots = tukey(features[order].double(), float(self.power_))
        means, lenders = self._calibrate(shots)
        number = torch.as_tensor(even_shares(novel.labels[order.numpy()], wanted))
        generator = torch.Generator().manual_seed(self._seed(1))
        drawn = self._draw(lenders.repeat_interleave(number, 0), generator, dtype)
        drawn += means.to(dtype).repeat_interleave(number, 0)
        # NOTE[paper]: there the classifier works on x^λ, and real examples are transformed instead of drawn ones.
        made: NDArray[np.floating] = undo_tukey(drawn, float(self.power_), bool(self.clip_)).numpy()
        return made

    def _calibrate(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Give μ' and the nearest base classes of each shot."""
        base_means = torch.as_tensor(self.base_means_)
        k = min(self.neighbors, len(base_means))
        nearest = squared_distances(shots, base_means).topk(k, largest=False).indices
        return (base_means[nearest].sum(1) + shots) / (k + 1), nearest

    def _draw(self, lenders: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Draw from N(0, Σ') for each row of base classes."""
        size = float(self.factor_size_)
        drawn = draw_mixed(torch.as_tensor(self.factors_), torch.as_tensor(self.ranks_), lenders, generator)
        columns = 1 if self.alpha_place == "everywhere" else drawn.shape[1]
        drawn += math.sqrt(self.alpha_) / size * torch.randn((len(drawn), columns), generator=generator)
        return drawn.to(dtype).mul_(size)

    def _check_learned(self) -> None:
        self._check_parameters()
        require_counts(self.ranks_, len(self.factors_), "ranks_")
        positive_number(float(self.power_), "power_")
        positive_number(float(self.factor_size_), "factor_size_")
        positive_number(float(self.alpha_), "alpha_", or_zero=True)

    def _check_parameters(self) -> None:
        as_whole_number(self.neighbors, "neighbors", minimum=1)
        if self.power != "auto" and not (_is_number(self.power) and float(self.power) > 0):
            raise InputError(f'power must be "auto" or a number above 0, not {self.power!r}')
        if not _is_number(self.alpha) or self.alpha < 0:
            raise InputError(f"alpha must be a number of at least 0, not {self.alpha!r}")
        for name, choices in (("alpha_unit", ALPHA_UNITS), ("alpha_place", ALPHA_PLACES)):
            if getattr(self, name) not in choices:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; choose one of {', '.join(choices)}")


def tukey(features: Tensor, power: float) -> Tensor:
    """Raise features to a power, and leave them their sign.

    >>> tukey(torch.tensor([4.0, -9.0]), 0.5)
    tensor([ 2., -3.])
    """
    return features if power == 1 else features.sign() * features.abs().pow(power)


def undo_tukey(features: Tensor, power: float, clip: bool) -> Tensor:
    """Undo `tukey`; with `clip`, what is negative becomes 0.

    >>> undo_tukey(torch.tensor([2.0, -3.0]), 0.5, clip=True)
    tensor([4., 0.])
    """
    return features.clamp_min(0).pow_(1 / power) if clip else tukey(features, 1 / power)


def gaussian_factor(examples: Tensor) -> Tensor:
    """Give F of at most D rows with Fᵀ F = Σ_i (x_i − x̄)(x_i − x̄)ᵀ / (n − 1).

    >>> F = gaussian_factor(torch.tensor([[0.0], [2.0], [4.0]]))
    >>> F.shape, (F.T @ F).round(decimals=4)
    (torch.Size([1, 1]), tensor([[4.]]))
    """
    n, dimension = examples.shape
    factor = (examples - examples.mean(0)) / math.sqrt(max(n - 1, 1))
    triangle: Tensor = torch.linalg.qr(factor, mode="r").R if n > dimension else factor
    return triangle


def even_shares(labels: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Part the examples that each class wants evenly among its shots, the first of them taking what is left over.

    >>> even_shares(np.array([0, 0, 0, 1]), np.array([8, 5]))
    array([3, 3, 2, 5])
    """
    counts = np.bincount(labels, minlength=len(wanted))
    place = np.arange(len(labels)) - (counts.cumsum() - counts)[labels]
    shares: NDArray[np.int64] = wanted[labels] // counts[labels] + (place < wanted[labels] % counts[labels])
    return shares


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
