"""How much the examples of a class differ, and how well their covariance is kept."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import FeatureArray, as_features, as_labels
from cpaan.errors import InputError
from cpaan.evaluation.row_blocks import row_blocks
from cpaan.evaluation.weighted_norm import weighted_ky_fan_norm

_PAIR = 2


def mean_pairwise_distance(X: Any) -> float:
    """Mean Euclidean distance of two distinct examples.

    2 / (n (n − 1)) · Σ_{i < j} ‖x_i − x_j‖

    Parameters
    ----------
    X : array-like of shape (n, D)
        Examples. Memory stays bounded however many there are.

    Returns
    -------
    float
        NaN for one example, which has no distance to another.

    Examples
    --------
    >>> round(mean_pairwise_distance([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), 6)
    3.333333
    """
    return _mean_pairwise_distance(_deviations(as_features(X, "X")))


def diversity(X: Any, y: Any) -> float:
    """Mean pairwise distance within a class, averaged over classes.

    Parameters
    ----------
    X : array-like of shape (n, D)
        Examples.
    y : sequence of n labels
        Their classes, each of which counts the same. A class with one example is left out.

    Returns
    -------
    float
        NaN where every class is left out, as with real examples at one shot.

    Examples
    --------
    >>> diversity([[0.0], [1.0], [5.0], [8.0], [9.0]], ["a", "a", "b", "b", "c"])
    2.0
    """
    return _diversity(_Groups(as_features(X, "X"), y, "y"))


def covariance_distance(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any, m: int = 10) -> float:
    """Distance of the covariances of synthetic and real examples of a class, averaged over classes.

    Mean over c of ‖Σ_c(synthetic) − Σ_c(real)‖_m, where Σ is the population covariance (1/n) and ‖·‖_m the
    Ky Fan m-norm, the sum of the m largest singular values.

    Parameters
    ----------
    X_synthetic, X_real : array-like of shape (n, D)
        Examples.
    y_synthetic, y_real : sequence of n labels
        Their classes. Those that occur on both sides are compared; one example has covariance zero.
    m : int, default=10
        How many singular values to add up.

    Returns
    -------
    float
        0 or more, in the squared unit of the features.

    Examples
    --------
    >>> synthetic, real = [[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]
    >>> round(covariance_distance(synthetic, ["a", "a"], real, ["a", "a"], m=1), 6)
    4.0
    """
    synthetic, real = _groups_of_both(X_synthetic, y_synthetic, X_real, y_real)
    m = as_whole_number(m, "m", minimum=1)
    norms = [_norm_of_difference(synthetic[label], real[label], m) for label in synthetic if label in real]
    return sum(norms) / len(norms)


@dataclass(frozen=True)
class Spread:
    """How much synthetic and real examples of a class differ among themselves, and from each other in that.

    Attributes
    ----------
    diversity, real_diversity : see `diversity`
    covariance_distance : see there
    """

    diversity: float
    real_diversity: float
    covariance_distance: float


def spread(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any, m: int = 10) -> Spread:
    """Give the diversity of synthetic and of real examples and their covariance distance, in less time than one by one.

    Parameters
    ----------
    X_synthetic, y_synthetic, X_real, y_real, m
        See `covariance_distance`.

    Examples
    --------
    >>> found = spread([[0.0], [4.0]], ["a", "a"], [[0.0], [2.0]], ["a", "a"])
    >>> found.diversity, found.real_diversity, round(found.covariance_distance, 6)
    (4.0, 2.0, 3.0)
    """
    synthetic, real = _groups_of_both(X_synthetic, y_synthetic, X_real, y_real)
    m = as_whole_number(m, "m", minimum=1)
    distances, norms = [], []
    for label, deviations in synthetic.items():
        distances.append(_mean_pairwise_distance(deviations))
        if label in real:
            norms.append(_norm_of_difference(deviations, real[label], m))
    return Spread(_mean_of_known(distances), _diversity(real), sum(norms) / len(norms))


class _Groups(Mapping[Hashable, Tensor]):
    """Deviations of the examples of a class from their mean, on which alone all figures here depend, by class.

    In double precision, and made when they are asked for: one class at a time stays in a processor's cache.
    """

    def __init__(self, features: FeatureArray, y: Any, y_name: str) -> None:
        self._features = features
        self._rows: dict[Hashable, list[int]] = {}
        for row, label in enumerate(as_labels(y, len(features), y_name)):
            self._rows.setdefault(label, []).append(row)

    def __getitem__(self, label: Hashable) -> Tensor:
        return _deviations(self._features[self._rows[label]])

    def __contains__(self, label: object) -> bool:
        return label in self._rows

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _groups_of_both(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any) -> tuple[_Groups, _Groups]:
    features, real_features = as_features(X_synthetic, "X_synthetic"), as_features(X_real, "X_real")
    if features.shape[1] != real_features.shape[1]:
        raise InputError(
            f"X_synthetic has {features.shape[1]} features but X_real has {real_features.shape[1]}; they must be the "
            "same"
        )
    synthetic, real = _Groups(features, y_synthetic, "y_synthetic"), _Groups(real_features, y_real, "y_real")
    if not any(label in real for label in synthetic):
        raise InputError("y_synthetic and y_real have no class in common; there is nothing to compare")
    return synthetic, real


def _diversity(groups: _Groups) -> float:
    return _mean_of_known([_mean_pairwise_distance(deviations) for deviations in groups.values()])


def _mean_of_known(distances: Sequence[float]) -> float:
    """Average over classes, without those of one example."""
    known = [distance for distance in distances if not math.isnan(distance)]
    return sum(known) / len(known) if known else math.nan


def _norm_of_difference(left: Tensor, right: Tensor, m: int) -> float:
    """Ky Fan m-norm of the difference of the covariances of two sets of deviations."""
    rows = torch.cat([left, right])
    weights = torch.cat([left.new_full((len(left), 1), 1 / len(left)), left.new_full((len(right), 1), -1 / len(right))])
    return weighted_ky_fan_norm(rows, weights, m)


def _mean_pairwise_distance(deviations: Tensor) -> float:
    count = len(deviations)
    if count < _PAIR:
        return math.nan
    squares, total = deviations.square().sum(1), 0.0
    for rows in row_blocks(count, count):
        # Only columns from the block's first row on: every pair comes up once, above the diagonal.
        others = slice(rows.start, None)
        table = squares[rows].unsqueeze(1) + squares[others]
        table.addmm_(deviations[rows], deviations[others].mT, alpha=-2)
        total += float(table.clamp_min_(0).sqrt_().triu_(diagonal=1).sum())
    return total / (count * (count - 1) / 2)


def _deviations(features: FeatureArray) -> Tensor:
    """Bring features to double precision and their mean to zero, far from which distances would lose their digits."""
    examples = torch.from_numpy(features.astype(np.float64))
    return examples.sub_(examples.mean(0))
