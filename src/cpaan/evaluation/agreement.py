"""Agreement of two distributions that are known by their examples."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.data.containers import as_features
from cpaan.errors import InputError
from cpaan.evaluation.row_blocks import row_blocks


def coverage(real: Any, synthetic: Any, radius: float) -> float:
    """Share of real examples that have a synthetic one nearby.

    (1/n) Σ_i 1[min_j ‖x_i − x̃_j‖ ≤ radius]

    Parameters
    ----------
    real : array-like of shape (n, D)
        Examples of the distribution to cover.
    synthetic : array-like of shape (m, D)
        Generated examples.
    radius : float
        How near is near, 0 or more.

    Returns
    -------
    float
        From 0 to 1; high only where no region of the real distribution is missed.

    Examples
    --------
    >>> coverage([[0.0, 0.0], [5.0, 0.0]], [[0.3, 0.4]], radius=0.5)
    0.5
    """
    if not 0 <= radius < math.inf:
        raise InputError(f"radius is {radius}; give a finite number of 0 or more")
    targets, examples = _read_pair(real, synthetic, "real", "synthetic")
    covered = 0
    for rows in row_blocks(len(targets), len(examples)):
        covered += int((_distances(targets[rows], examples).amin(dim=1) <= radius).sum())
    return covered / len(targets)


def energy_distance(first: Any, second: Any) -> float:
    """Energy distance of two samples (Székely and Rizzo), without a square root.

    2 E‖A − B‖ − E‖A − A'‖ − E‖B − B'‖

    Means run over all pairs of examples, including each example with itself (the V-statistic), which makes
    the result zero for equal samples and positive for all others.

    Parameters
    ----------
    first : array-like of shape (n, D)
        Examples of A.
    second : array-like of shape (m, D)
        Examples of B.

    Returns
    -------
    float
        0 or more, in the unit of the features.

    Examples
    --------
    >>> energy_distance([[0.0], [2.0]], [[1.0]])
    1.0
    """
    left, right = _read_pair(first, second, "first", "second")
    between = _mean_distance(left, right)
    result = 2 * between - _mean_distance(left, left) - _mean_distance(right, right)
    return max(0.0, result)  # rounding may leave it just below zero


def _mean_distance(left: Tensor, right: Tensor) -> float:
    total = sum(float(_distances(left[rows], right).sum()) for rows in row_blocks(len(left), len(right)))
    return total / (len(left) * len(right))


def _distances(left: Tensor, right: Tensor) -> Tensor:
    # By differences and not by products, which would put equal examples at a small distance from each other.
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _read_pair(first: Any, second: Any, first_name: str, second_name: str) -> tuple[Tensor, Tensor]:
    left, right = (
        torch.tensor(as_features(X, name).astype(np.float64))
        for X, name in ((first, first_name), (second, second_name))
    )
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"{first_name} has {left.shape[1]} features but {second_name} has {right.shape[1]}; they must be the same"
        )
    return left, right
