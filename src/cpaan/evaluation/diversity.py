"""How much the examples of a class differ, and how well their covariance is kept."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import FeatureArray, as_features, as_labels
from cpaan.errors import InputError
from cpaan.evaluation.row_blocks import row_blocks
from cpaan.functional.covariance import deviation_factor
from cpaan.functional.distances import squared_distances
from cpaan.functional.eigen import leading_eigenvectors

Groups: TypeAlias = dict[Hashable, Tensor]  # examples by class, in double precision

_PAIR = 2
# Eigenvalues by matrix products: their error is about the square of the residual's, both in parts of the largest one.
_ITERATIONS, _MOST_RESIDUAL = 4, 3e-3
_LARGE = 128  # features from which that is faster than a decomposition


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
    return _mean_pairwise_distance(_as_tensor(as_features(X, "X")))


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
    return _diversity(_groups(X, y, "X", "y"))


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
    return _covariance_distance(synthetic, real, m)


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
    return Spread(_diversity(synthetic), _diversity(real), _covariance_distance(synthetic, real, m))


def _diversity(groups: Groups) -> float:
    distances = [_mean_pairwise_distance(group) for group in groups.values() if len(group) >= _PAIR]
    return sum(distances) / len(distances) if distances else math.nan


def _covariance_distance(synthetic: Groups, real: Groups, m: int) -> float:
    common = [label for label in synthetic if label in real]
    if not common:
        raise InputError("y_synthetic and y_real have no class in common; there is nothing to compare")
    m = as_whole_number(m, "m", minimum=1)
    # From the deviations themselves: a class has fewer examples than a covariance matrix has rows.
    norms = [
        _norm_of_difference(deviation_factor(synthetic[label]), deviation_factor(real[label]), m) for label in common
    ]
    return sum(norms) / len(norms)


def _norm_of_difference(left: Tensor, right: Tensor, m: int) -> float:
    """Ky Fan m-norm of LᵀL − RᵀR, by the faster solver where what it finds proves to be eigenvalues."""
    if left.shape[1] >= _LARGE:
        vectors = _leading_directions(left, right, m)
        left_part, right_part = left @ vectors, right @ vectors
        values, rotation = torch.linalg.eigh(left_part.mT @ left_part - right_part.mT @ right_part)
        images = left.mT @ (left_part @ rotation) - right.mT @ (right_part @ rotation)
        residuals = (images - values * (vectors @ rotation)).norm(dim=0)
        if residuals.max() <= _MOST_RESIDUAL * values.abs().max():
            return float(values.abs().sum())
    # Slower by far, but a figure that is reported is worth it; eigenvalues without vectors take a third of the time.
    values = torch.linalg.eigvalsh(left.mT @ left - right.mT @ right).abs()
    return float(values.topk(min(m, len(values))).values.sum())


def _leading_directions(left: Tensor, right: Tensor, m: int) -> Tensor:
    """Give about the m leading eigenvectors of LᵀL − RᵀR, orthonormal; single precision is enough to find them."""
    size = max(float(left.abs().max()), float(right.abs().max())) or 1.0
    first, second = (left / size).float(), (right / size).float()

    def difference_times(vectors: Tensor) -> Tensor:
        return first.mT @ (first @ vectors) - second.mT @ (second @ vectors)

    dimension = left.shape[1]
    _, vectors = leading_eigenvectors(difference_times, dimension, (), m, dtype=torch.float32, iterations=_ITERATIONS)
    directions: Tensor = torch.linalg.qr(vectors.to(left.dtype)).Q
    return directions


def _mean_pairwise_distance(examples: Tensor) -> float:
    count = len(examples)
    if count < _PAIR:
        return math.nan
    total = 0.0
    for rows in row_blocks(count, count):
        # Only columns from the block's first row on: every pair comes up once, above the diagonal.
        distances = squared_distances(examples[rows], examples[rows.start :]).sqrt_()
        total += float(distances.triu_(diagonal=1).sum())
    return total / (count * (count - 1) / 2)


def _as_tensor(features: FeatureArray) -> Tensor:
    return torch.from_numpy(features.astype(np.float64))


def _groups_of_both(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any) -> tuple[Groups, Groups]:
    synthetic, real = as_features(X_synthetic, "X_synthetic"), as_features(X_real, "X_real")
    if synthetic.shape[1] != real.shape[1]:
        raise InputError(
            f"X_synthetic has {synthetic.shape[1]} features but X_real has {real.shape[1]}; they must be the same"
        )
    return (
        _groups(synthetic, y_synthetic, "X_synthetic", "y_synthetic"),
        _groups(real, y_real, "X_real", "y_real"),
    )


def _groups(X: Any, y: Any, name: str, y_name: str) -> Groups:
    features = as_features(X, name)
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(as_labels(y, len(features), y_name)):
        rows.setdefault(label, []).append(row)
    return {label: _as_tensor(features[members]) for label, members in rows.items()}
