"""Compare synthetic with real examples: diversity, covariance, coverage and energy distance.

Memory stays bounded for any number of examples: tables of pairs are computed in blocks of rows.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from sklearn.utils import gen_batches
from torch import Tensor

from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import FeatureArray, as_features, as_labels
from cpaan.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.floating]

# Entries of a block of pairs: 32 MiB in double precision, large enough for fast products.
MOST_ENTRIES = 2**22
# Below so many features per eigenvalue, decomposing the whole matrix is faster than a search.
FEATURES_PER_EIGENVALUE = 16
SEARCH_TOLERANCE = 1e-6  # of eigenvalues, relative
_PAIR = 2


def mean_pairwise_distance(X: Any) -> float:
    """Mean Euclidean distance between two distinct examples, NaN for a single one.

    2 / (n (n − 1)) · Σ_{i < j} ‖x_i − x_j‖

    Parameters
    ----------
    X : array-like of shape (n, D)
        Examples.

    Examples
    --------
    >>> round(mean_pairwise_distance([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), 6)
    3.333333
    """
    return _mean_pairwise_distance(_deviations(as_features(X, "X")))


def diversity(X: Any, y: Any) -> float:
    """Mean pairwise distance within a class, averaged over classes; NaN if no class has two examples.

    Parameters
    ----------
    X : array-like of shape (n, D)
        Examples.
    y : sequence of n labels
        Their classes, which all count the same. Classes with one example are skipped.

    Examples
    --------
    >>> diversity([[0.0], [1.0], [5.0], [8.0], [9.0]], ["a", "a", "b", "b", "c"])
    2.0
    """
    return _diversity(_Classes(as_features(X, "X"), y, "y"))


def covariance_distance(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any, m: int = 10) -> float:
    """Distance between the covariances of synthetic and real examples of a class, averaged over classes.

    Mean over c of ‖Σ_c(synthetic) − Σ_c(real)‖_m, where Σ is the population covariance (1/n) and ‖·‖_m the
    Ky Fan m-norm, the sum of the m largest singular values; in the squared unit of the features.

    Parameters
    ----------
    X_synthetic, X_real : array-like of shape (n, D)
        Examples.
    y_synthetic, y_real : sequence of n labels
        Their classes. Only classes that occur on both sides count; one example has covariance zero.
    m : int, default=10
        How many singular values to add up.

    Examples
    --------
    >>> synthetic, real = [[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]
    >>> round(covariance_distance(synthetic, ["a", "a"], real, ["a", "a"], m=1), 6)
    4.0
    """
    synthetic, real = _classes_of_both(X_synthetic, y_synthetic, X_real, y_real)
    m = as_whole_number(m, "m", minimum=1)
    norms = [_covariance_norm(deviations, real[label], m) for label, deviations in synthetic if label in real.rows]
    return sum(norms) / len(norms)


@dataclass(frozen=True)
class Spread:
    """Diversity of synthetic and of real examples, and their covariance distance."""

    diversity: float
    real_diversity: float
    covariance_distance: float


def spread(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any, m: int = 10) -> Spread:
    """Compute `diversity` of both sides and `covariance_distance` in one pass, faster than one by one.

    >>> spread([[0.0], [4.0]], ["a", "a"], [[0.0], [2.0]], ["a", "a"]).diversity
    4.0
    """
    synthetic, real = _classes_of_both(X_synthetic, y_synthetic, X_real, y_real)
    m = as_whole_number(m, "m", minimum=1)
    distances, norms = [], []
    for label, deviations in synthetic:
        distances.append(_mean_pairwise_distance(deviations))
        if label in real.rows:
            norms.append(_covariance_norm(deviations, real[label], m))
    return Spread(_mean_of_known(distances), _diversity(real), sum(norms) / len(norms))


def coverage(real: Any, synthetic: Any, radius: float) -> float:
    """Share of real examples that have a synthetic one nearby; high only if no region is missed.

    (1/n) Σ_i 1[min_j ‖x_i − x̃_j‖ ≤ radius]

    Parameters
    ----------
    real : array-like of shape (n, D)
        Examples of the distribution to cover.
    synthetic : array-like of shape (m, D)
        Generated examples.
    radius : float
        Largest distance that counts as near, 0 or more.

    Examples
    --------
    >>> coverage([[0.0, 0.0], [5.0, 0.0]], [[0.3, 0.4]], radius=0.5)
    0.5
    """
    if not 0 <= radius < math.inf:
        raise InputError(f"radius must be a finite number of 0 or more, got {radius}")
    targets, examples = map(_tensor, _read_pair(real, synthetic, "real", "synthetic"))
    covered = 0
    for rows in _row_blocks(len(targets), len(examples)):
        covered += int((_distances(targets[rows], examples).amin(dim=1) <= radius).sum())
    return covered / len(targets)


def energy_distance(first: Any, second: Any) -> float:
    """Energy distance of two samples (Székely and Rizzo), without a square root, in the unit of the features.

    2 E‖A − B‖ − E‖A − A'‖ − E‖B − B'‖

    Means run over all pairs of examples, including each example with itself (the V-statistic), which makes
    the result zero for equal samples and positive for all others.

    Parameters
    ----------
    first : array-like of shape (n, D)
        Examples of A.
    second : array-like of shape (m, D)
        Examples of B.

    Examples
    --------
    >>> energy_distance([[0.0], [2.0]], [[1.0]])
    1.0
    """
    left, right = map(_tensor, _read_pair(first, second, "first", "second"))
    between = _mean_distance(left, right)
    result = 2 * between - _mean_distance(left, left) - _mean_distance(right, right)
    return max(0.0, result)  # rounding may leave it just below zero


def weighted_ky_fan_norm(rows: FloatArray, weights: FloatArray, m: int) -> float:
    """Sum the m largest absolute eigenvalues of Σ_i w_i x_i x_iᵀ, for rows (n, D) and weights (n,) of any sign."""
    size = float(np.abs(rows).max()) or 1.0  # keeps squares within the range of their type
    rows = rows / size
    if rows.shape[1] >= FEATURES_PER_EIGENVALUE * m:
        values = _leading_eigenvalues(rows, weights, m)
    else:
        values = np.linalg.eigvalsh((weights[:, None] * rows).T @ rows)
    return size**2 * float(np.sort(np.abs(values))[-m:].sum())


def _leading_eigenvalues(rows: FloatArray, weights: FloatArray, m: int) -> FloatArray:
    """Find the m leading eigenvalues by Lanczos iteration, which only multiplies by the rows."""
    dimension = rows.shape[1]

    def multiply(vector: FloatArray) -> FloatArray:
        product: FloatArray = ((rows @ vector) * weights) @ rows
        return product

    start = np.random.default_rng(0).normal(size=(dimension,))  # fixed, to make results repeat
    if not multiply(start).any():
        return np.zeros(m)
    operator = LinearOperator((dimension, dimension), matvec=multiply, dtype=rows.dtype)
    try:
        found: FloatArray = eigsh(operator, k=m, which="LM", v0=start, tol=SEARCH_TOLERANCE, return_eigenvectors=False)
    except ArpackNoConvergence:  # eigenvalues that hardly differ
        return np.linalg.eigvalsh((weights[:, None] * rows).T @ rows)
    return found


class _Classes:
    """Deviations of examples from the mean of their class, computed one class at a time to fit a processor's cache."""

    def __init__(self, features: FeatureArray, y: Any, y_name: str) -> None:
        self.features = features
        self.rows: dict[Hashable, list[int]] = {}
        for row, label in enumerate(as_labels(y, len(features), y_name)):
            self.rows.setdefault(label, []).append(row)

    def __getitem__(self, label: Hashable) -> Tensor:
        return _deviations(self.features[self.rows[label]])

    def __iter__(self) -> Iterator[tuple[Hashable, Tensor]]:
        return ((label, self[label]) for label in self.rows)


def _classes_of_both(X_synthetic: Any, y_synthetic: Any, X_real: Any, y_real: Any) -> tuple[_Classes, _Classes]:
    features, real_features = _read_pair(X_synthetic, X_real, "X_synthetic", "X_real")
    synthetic, real = _Classes(features, y_synthetic, "y_synthetic"), _Classes(real_features, y_real, "y_real")
    if not synthetic.rows.keys() & real.rows.keys():
        raise InputError("y_synthetic and y_real have no class in common; give examples of the same classes")
    return synthetic, real


def _diversity(classes: _Classes) -> float:
    return _mean_of_known([_mean_pairwise_distance(deviations) for _, deviations in classes])


def _mean_of_known(distances: Sequence[float]) -> float:
    """Average over classes, except those with one example."""
    known = [distance for distance in distances if not math.isnan(distance)]
    return sum(known) / len(known) if known else math.nan


def _covariance_norm(left: Tensor, right: Tensor, m: int) -> float:
    """Ky Fan m-norm of the difference between the covariances of two sets of deviations."""
    weights = np.repeat([1 / len(left), -1 / len(right)], [len(left), len(right)])
    return weighted_ky_fan_norm(torch.cat([left, right]).numpy(), weights, m)


def _mean_pairwise_distance(deviations: Tensor) -> float:
    count = len(deviations)
    if count < _PAIR:
        return math.nan
    squares, total = deviations.square().sum(1), 0.0
    for rows in _row_blocks(count, count):
        # Only columns from the block's first row on: every pair comes up once, above the diagonal.
        others = slice(rows.start, None)
        table = squares[rows].unsqueeze(1) + squares[others]
        table.addmm_(deviations[rows], deviations[others].mT, alpha=-2)
        total += float(table.clamp_min_(0).sqrt_().triu_(diagonal=1).sum())
    return total / (count * (count - 1) / 2)


def _deviations(features: FeatureArray) -> Tensor:
    """Centre features in double precision; far from the origin, distances would lose their digits."""
    examples = _tensor(features)
    return examples.sub_(examples.mean(0))


def _tensor(features: FeatureArray) -> Tensor:
    return torch.from_numpy(features.astype(np.float64))


def _mean_distance(left: Tensor, right: Tensor) -> float:
    total = sum(float(_distances(left[rows], right).sum()) for rows in _row_blocks(len(left), len(right)))
    return total / (len(left) * len(right))


def _distances(left: Tensor, right: Tensor) -> Tensor:
    # By differences and not by products, which would put equal examples at a small distance from each other.
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _row_blocks(n_rows: int, entries_per_row: int) -> Iterator[slice]:
    blocks: Iterator[slice] = gen_batches(n_rows, max(1, MOST_ENTRIES // entries_per_row))
    return blocks


def _read_pair(first: Any, second: Any, first_name: str, second_name: str) -> tuple[FeatureArray, FeatureArray]:
    left, right = as_features(first, first_name), as_features(second, second_name)
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"{first_name} has {left.shape[1]} features but {second_name} has {right.shape[1]}; they must be the same"
        )
    return left, right
