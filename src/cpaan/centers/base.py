"""The contract of a class centre."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.data.feature_set import FeatureSet
from cpaan.math.scaling import Scaling, fit_scaling
from cpaan.parts import Part
from cpaan.training.bank import ClassBank, StoredRows


@dataclass(frozen=True)
class Noise:
    """Uncertainty about the centres of N classes; each example gets its own draw from N(0, s² I + A diag(v) Aᵀ)."""

    sizes: Tensor  # (N,) s
    axes: Tensor | None = None  # (D, D) A
    variances: Tensor | None = None  # (N, D) v


class Center(Part):
    """Estimate of the centre of a class from a few examples of it, its shots.

    A subclass writes `fit` and `estimate`; the other methods have defaults. Features are tensors in the units of the
    augmenter: the user's own, unless the centre or the deviations ask for others.
    """

    def units(self, base: FeatureSet) -> Scaling | None:
        """Return the units that features should come in; None accepts any."""
        return None

    def fit(self, bank: ClassBank, *, seed: int) -> "Center":
        """Learn from base classes; set the tensors named in `learned`."""
        raise NotImplementedError

    def refit(self, bank: ClassBank) -> "Center":
        """Return a copy fitted to other base classes, which keeps what cross-validation has chosen."""
        return self.but().fit(bank, seed=0)

    def estimate(self, shots: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        """Return the centres (n_classes, D), in double precision, from shots (n, D) and labels from 0."""
        raise NotImplementedError

    def uncertainty(self, counts: Tensor) -> Noise | None:
        """Return what is unknown of the centres of classes with `counts` shots; None for a plain shot mean."""
        return Noise(torch.zeros(len(counts), dtype=torch.double))

    def within_covariance(self) -> Tensor | None:
        """Return the pooled covariance within base classes (D, D), where the centre has estimated it."""
        return None


def choose_units(base: FeatureSet, *, within_distance: float = 1.0, centered: bool = True) -> Scaling:
    """Choose the units in which two examples of a class are `within_distance` apart on average."""
    rows, labels = StoredRows(base.features), torch.tensor(base.labels)
    return fit_scaling(rows, labels, base.n_classes, within_distance=within_distance, center=centered)
