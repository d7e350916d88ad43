"""The linear classifier's objective as a function to minimise: exactly, or in bounded time and memory.

Both problems know how to bring W and b to the coordinates in which L-BFGS searches, and back.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.classifiers.base import FloatArray, IntegerArray
from cpaan.classifiers.nearest_prototype import weighted_class_means

SingleArray: TypeAlias = npt.NDArray[np.float32]

BLOCK_ENTRIES = 2**20  # scores held at once: 4 MB stay in the cache, and matrix products are at full speed
CURVATURE_FACTOR = 2.0
LEAST_VARIANCE = 1e-6  # of the largest; below that, single precision sees noise


class Solution(NamedTuple):
    """W (classes × D) and b in the units of the data."""

    coef: FloatArray
    intercept: FloatArray


class Problem(Protocol):
    """What the classifier needs to know of its objective."""

    def objective(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Give value and gradient."""

    def guess(self) -> Solution:
        """Give a place to begin."""

    def point(self, solution: Solution) -> FloatArray:
        """Bring W and b to the coordinates of the search."""

    def solution(self, point: FloatArray) -> Solution:
        """Bring a point back to W and b."""


class ExactProblem:
    """All examples at once in double precision.

    The search is in the span of the examples, and one factor makes the curvature of W about that of b.
    """

    def __init__(
        self, features: FloatArray, targets: IntegerArray, shares: FloatArray, n_classes: int, weight_decay: float
    ) -> None:
        self.targets, self.shares, self.n_classes = targets, shares, n_classes
        # Subtracting the mean only renames the intercept, which is not penalised, and shortens the search.
        self.mean = shares @ features
        design, self.basis = _reduce(features - self.mean)
        self.scale = _common_scale(design, shares, len(self.basis), n_classes, weight_decay)
        self.design = np.column_stack([design / self.scale, np.ones(len(design))])
        self.penalty = np.full((self.design.shape[1], 1), weight_decay / self.scale**2)
        self.penalty[-1] = 0
        self.rows = np.arange(len(targets))

    def objective(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Give value and gradient."""
        scores = self.design @ point
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[self.rows, self.targets]
        exponentials = np.exp(scores, out=scores)
        totals = exponentials.sum(axis=1)
        decay = self.penalty * point
        value = (decay * point).sum() / 2 + self.shares @ (np.log(totals) - own)
        residuals = exponentials
        residuals *= (self.shares / totals)[:, np.newaxis]
        residuals[self.rows, self.targets] -= self.shares
        return float(value), self.design.T @ residuals + decay

    def guess(self) -> Solution:
        """Give zero."""
        return self.solution(np.zeros((self.design.shape[1], self.n_classes)))

    def point(self, solution: Solution) -> FloatArray:
        """Bring W and b to the coordinates of the search."""
        weights = self.scale * self.basis.T @ solution.coef.T
        return np.vstack([weights, solution.intercept + solution.coef @ self.mean])

    def solution(self, point: FloatArray) -> Solution:
        """Bring a point back to W and b."""
        coef = np.ascontiguousarray((self.basis @ point[:-1] / self.scale).T)
        return Solution(coef, point[-1] - coef @ self.mean)


class BlockProblem:
    """A block of rows at a time, in single precision, in coordinates that make a few passes enough.

    With frequencies π_c and means μ_c of the classes, covariance Σ = V diag(e) Vᵀ and centred x, write

    score(c given x) = w_c · (x − μ_c / 2) + b_c,  w_c = V diag(a_c e + weight_decay)^(−1/2) u_c,  a_c = 2 π_c

    and b_c likewise, divided by √a_c. In u all curvatures are about one, because that of w_c is about the
    covariance weighted by P(c) (1 − P(c)), and halfway between the class and all others is where that lies.
    From W = 0 and b_c = log π_c, the first step along the gradient leads to linear discriminant analysis, but for
    its scale.

    On features of ResNet-10 a factor of 1 in a_c took more passes than 2, centres at 0 or μ_c far more than μ_c / 2.
    """

    def __init__(
        self,
        features: npt.NDArray[Any],
        targets: IntegerArray,
        shares: FloatArray,
        n_classes: int,
        weight_decay: float,
    ) -> None:
        self.targets, self.shares, self.n_classes = targets, shares.astype(np.float32), n_classes
        self.block_rows = max(1, BLOCK_ENTRIES // max(n_classes, features.shape[1]))
        self.mean, self.scale, self.design = self._standardise(features, shares)
        self.penalty = weight_decay / self.scale**2
        self.frequencies = np.bincount(targets, shares, n_classes).astype(np.float64, copy=False)
        self.centres = weighted_class_means(self.design, targets, shares, n_classes).T / 2
        variances, self.rotation = np.linalg.eigh(self._covariance())
        # Without variance in any feature there is nothing to learn but b, and any scale will do.
        variances = np.maximum(variances, LEAST_VARIANCE * variances[-1] or 1.0)
        curvatures = CURVATURE_FACTOR * self.frequencies
        self.stretch = 1 / np.sqrt(variances[:, np.newaxis] * curvatures + self.penalty)
        self.intercept_stretch = 1 / np.sqrt(curvatures)

    def objective(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Give value and gradient."""
        weights, intercept = self._parameters(point)
        single_weights, single_intercept = weights.astype(np.float32), intercept.astype(np.float32)
        value, gradient = self.penalty * np.square(weights).sum() / 2, self.penalty * weights
        intercept_gradient = np.zeros(self.n_classes)
        for rows in self._blocks():
            block, targets, shares = self.design[rows], self.targets[rows], self.shares[rows]
            scores = block @ single_weights
            scores += single_intercept
            value += _cross_entropy_and_residuals(scores, targets, shares)
            gradient += block.T @ scores
            intercept_gradient += scores.sum(axis=0)
        return float(value), self._stretched(gradient - self.centres * intercept_gradient, intercept_gradient)

    def guess(self) -> Solution:
        """Give the first step from W = 0 and b_c = log π_c, whose gradient −π_c μ_c is known without a pass."""
        means = 2 * self.centres
        step = self._stretched(self.frequencies * means, np.zeros(self.n_classes))
        weights, intercept = self._parameters(step)
        return self._in_units(weights, intercept + np.log(self.frequencies))

    def point(self, solution: Solution) -> FloatArray:
        """Bring W and b to the coordinates of the search."""
        weights = self.scale * solution.coef.T
        intercept = solution.intercept + solution.coef @ self.mean + (weights * self.centres).sum(axis=0)
        return np.vstack([self.rotation.T @ weights / self.stretch, intercept / self.intercept_stretch])

    def solution(self, point: FloatArray) -> Solution:
        """Bring a point back to W and b."""
        return self._in_units(*self._parameters(point))

    def _in_units(self, weights: FloatArray, intercept: FloatArray) -> Solution:
        coef = np.ascontiguousarray(weights.T / self.scale)
        intercept = intercept - coef @ self.mean
        # Other coordinates for each class leave the sum over classes, which changes no probability, to chance.
        return Solution(coef - coef.mean(axis=0), intercept - intercept.mean())

    def _parameters(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = self.rotation @ (self.stretch * point[:-1])
        return weights, self.intercept_stretch * point[-1] - (weights * self.centres).sum(axis=0)

    def _stretched(self, gradient: FloatArray, intercept_gradient: FloatArray) -> FloatArray:
        return np.vstack([self.stretch * (self.rotation.T @ gradient), self.intercept_stretch * intercept_gradient])

    def _blocks(self) -> Iterator[slice]:
        n = len(self.targets)
        return (slice(start, min(start + self.block_rows, n)) for start in range(0, n, self.block_rows))

    def _standardise(self, features: npt.NDArray[Any], shares: FloatArray) -> tuple[FloatArray, float, SingleArray]:
        """Give the mean, the root of the mean variance, and the only copy of the features that is made."""
        mean = np.zeros(features.shape[1])
        for rows in self._blocks():
            mean += shares[rows] @ features[rows]
        variance = 0.0
        for rows in self._blocks():
            variance += float(shares[rows] @ np.square(features[rows] - mean).mean(axis=1))
        scale = math.sqrt(variance) or 1.0
        design = np.empty(features.shape, dtype=np.float32)
        for rows in self._blocks():
            design[rows] = (features[rows] - mean) / scale
        return mean, scale, design

    def _covariance(self) -> FloatArray:
        covariance = np.zeros((self.design.shape[1],) * 2)
        for rows in self._blocks():
            block = np.sqrt(self.shares[rows])[:, np.newaxis] * self.design[rows]
            covariance += block.T @ block
        return covariance


def _cross_entropy_and_residuals(scores: SingleArray, targets: IntegerArray, shares: SingleArray) -> float:
    """Give the weighted cross-entropy and turn scores into its derivative by them, in place."""
    rows = np.arange(len(targets))
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[rows, targets]
    np.exp(scores, out=scores)
    totals = scores.sum(axis=1)
    scores *= (shares / totals)[:, np.newaxis]
    scores[rows, targets] -= shares
    return float(shares.astype(np.float64) @ (np.log(totals) - own))


def _reduce(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotate into the span of the examples where these are fewer than the dimensions.

    The best W lies in that span, because any part of it outside costs weight decay and changes no score; an
    orthonormal basis leaves ‖W‖_F as it is. Without it, five shots in 2048 dimensions pay for all 2048.
    """
    if len(centred) >= centred.shape[1]:
        return centred, np.eye(centred.shape[1])
    basis, _ = np.linalg.qr(centred.T)
    return centred @ basis, basis


def _common_scale(
    centred: FloatArray, shares: FloatArray, n_features: int, n_classes: int, weight_decay: float
) -> float:
    """One factor that gives W about the same curvature as b, which lets L-BFGS take steps in both at once.

    Where all classes are equally likely the curvature is 1 / classes for b, and variance / classes +
    weight_decay for W. The variance along a direction lies between the mean over features and D times that;
    their geometric mean took fewer steps than either on features of ResNet-10 and MiniLM.
    """
    total_variance = float(shares @ np.square(centred).sum(axis=1))
    scale = math.sqrt(total_variance / math.sqrt(n_features) + n_classes * weight_decay)
    return scale if scale > 0 else 1.0
