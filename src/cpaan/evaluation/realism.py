"""How much the examples of a class differ, and how well their covariance is kept.

Ky Fan norms of large symmetric matrices that are a weighted sum of few products x xᵀ.

Blocks of rows that keep a table of pairs within bounded memory.

Agreement of two distributions that are known by their examples.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import FeatureArray, as_features, as_labels
from cpaan.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.floating]

# Below so many features for each eigenvalue, decomposing the whole matrix is faster than a search.
FEATURES_PER_EIGENVALUE = 16
SEARCH_TOLERANCE = 1e-6  # of eigenvalues, relative


def weighted_ky_fan_norm(rows: FloatArray, weights: FloatArray, m: int) -> float:
    """Sum the m largest absolute eigenvalues of Σ_i w_i x_i x_iᵀ, for rows (n, D) and weights (n,) of any sign.

    Examples
    --------
    >>> rows = np.array([[3.0, 0.0], [0.0, 2.0]])
    >>> round(weighted_ky_fan_norm(rows, np.array([1.0, -1.0]), 2), 6)
    13.0
    """
    size = float(np.abs(rows).max()) or 1.0  # so that no square leaves the range of its type
    rows = rows / size
    if rows.shape[1] >= FEATURES_PER_EIGENVALUE * m:
        values = _leading_eigenvalues(rows, weights, m)
    else:
        values = np.linalg.eigvalsh((weights[:, None] * rows).T @ rows)
    return size**2 * float(np.sort(np.abs(values))[-m:].sum())


def _leading_eigenvalues(rows: FloatArray, weights: FloatArray, m: int) -> FloatArray:
    """Search the m leading eigenvalues by Lanczos iteration, which needs products with the rows alone."""
    dimension = rows.shape[1]

    def multiply(vector: FloatArray) -> FloatArray:
        product: FloatArray = ((rows @ vector) * weights) @ rows
        return product

    start = np.random.default_rng(0).normal(size=(dimension,))  # fixed, so that results repeat
    if not multiply(start).any():
        return np.zeros(m)
    operator = LinearOperator((dimension, dimension), matvec=multiply, dtype=rows.dtype)
    try:
        found: FloatArray = eigsh(operator, k=m, which="LM", v0=start, tol=SEARCH_TOLERANCE, return_eigenvectors=False)
    except ArpackNoConvergence:  # eigenvalues that hardly differ
        return np.linalg.eigvalsh((weights[:, None] * rows).T @ rows)
    return found


# 32 MiB in double precision: large enough for fast products, small beside any feature bank.
MOST_ENTRIES = 2**22


def row_blocks(n_rows: int, entries_per_row: int, most_entries: int | None = None) -> Iterator[slice]:
    """Cut rows into consecutive blocks of at most `most_entries` entries, of one row at least.

    Examples
    --------
    >>> list(row_blocks(5, 10, most_entries=25))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    limit = MOST_ENTRIES if most_entries is None else most_entries
    size = max(1, limit // max(1, entries_per_row))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


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
    weights = np.repeat([1 / len(left), -1 / len(right)], [len(left), len(right)])
    return weighted_ky_fan_norm(torch.cat([left, right]).numpy(), weights, m)


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
