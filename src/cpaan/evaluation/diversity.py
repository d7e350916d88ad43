"""How much the examples of a class differ, and how well their covariance is kept."""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.data.containers import as_features, as_labels
from cpaan.errors import InputError
from cpaan.evaluation.row_blocks import row_blocks
from cpaan.functional.covariance import deviation_factor
from cpaan.functional.distances import squared_distances
from cpaan.functional.ky_fan import ky_fan_norm_of_difference

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
    return _mean_pairwise_distance(_as_tensor(X, "X"))


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
    groups = _groups(_as_tensor(X, "X"), y, "y").values()
    distances = [_mean_pairwise_distance(group) for group in groups if len(group) >= _PAIR]
    return sum(distances) / len(distances) if distances else math.nan


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
    synthetic, real = _as_tensor(X_synthetic, "X_synthetic"), _as_tensor(X_real, "X_real")
    if synthetic.shape[1] != real.shape[1]:
        raise InputError(
            f"X_synthetic has {synthetic.shape[1]} features but X_real has {real.shape[1]}; they must be the same"
        )
    synthetic_groups = _groups(synthetic, y_synthetic, "y_synthetic")
    real_groups = _groups(real, y_real, "y_real")
    common = [label for label in synthetic_groups if label in real_groups]
    if not common:
        raise InputError("y_synthetic and y_real have no class in common; there is nothing to compare")
    # From the deviations themselves: a class has fewer examples than a covariance matrix has rows. A figure that
    # is reported is worth the exact solver.
    norms = [
        float(
            ky_fan_norm_of_difference(
                deviation_factor(synthetic_groups[label]), deviation_factor(real_groups[label]), m, "exact"
            )
        )
        for label in common
    ]
    return sum(norms) / len(norms)


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


def _as_tensor(X: Any, name: str) -> Tensor:
    return torch.tensor(as_features(X, name).astype(np.float64))


def _groups(examples: Tensor, y: Any, name: str) -> dict[Hashable, Tensor]:
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(as_labels(y, len(examples), name)):
        rows.setdefault(label, []).append(row)
    return {label: examples[members] for label, members in rows.items()}
