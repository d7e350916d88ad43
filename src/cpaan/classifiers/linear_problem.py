"""The linear classifier's objective as a function to minimise: exactly, or in bounded time and memory.

Both problems know how to bring W and b to the coordinates in which L-BFGS searches, and back.

The linear classifier's search in single precision, in few passes over many examples.

It begins with a part of the examples, where passes are cheap: a few steps, then coordinates by the curvature where they
led to, then steps to about the part's own minimum. All examples have much the same curvature there, so that the search
goes on among them in the same coordinates and with the same pairs of L-BFGS, and has not far to go.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.classifiers.base import FloatArray, IntegerArray
from cpaan.classifiers.lbfgs import History, Minimum, minimize
from cpaan.classifiers.nearest_prototype import weighted_class_means

SingleArray: TypeAlias = npt.NDArray[np.float32]

BLOCK_ENTRIES = 2**20  # scores held at once: 4 MB stay in the cache, and matrix products are at full speed
CURVATURE_FACTOR = 2.0
LEAST_FACTOR = 0.01  # where classes are all but told apart already; ResNet-10 features come down to 0.04
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

    That is right at the beginning. As classes are told apart, a_c falls far below π_c and only examples that are still
    in doubt count, which vary otherwise than the rest. `adapt` measures both at a point.

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
        self.n_classes = n_classes
        self.block_rows = max(1, BLOCK_ENTRIES // max(n_classes, features.shape[1]))
        self.mean, self.scale = self._location(features, shares)
        self.take(features, targets, shares)
        self.penalty = weight_decay / self.scale**2
        self.frequencies = np.bincount(targets, shares, n_classes).astype(np.float64, copy=False)
        self.centres = weighted_class_means(self.design, targets, shares, n_classes).T / 2
        self._choose_coordinates(self._covariance(), CURVATURE_FACTOR * self.frequencies)

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

    def take(self, features: npt.NDArray[Any], targets: IntegerArray, shares: FloatArray) -> None:
        """Go on with other examples of the same classes, as frequent as before, in the same coordinates."""
        mean, scale = self.mean.astype(features.dtype), features.dtype.type(self.scale)
        self.targets, self.shares = targets, shares.astype(np.float32)
        self.design: SingleArray = np.empty(features.shape, dtype=np.float32)
        for rows in self._blocks():
            self.design[rows] = (features[rows] - mean) / scale

    def adapt(self, point: FloatArray) -> FloatArray:
        """Choose coordinates by the curvature at a point, and give the point in the new ones.

        With v_ic = P(c given x_i) (1 − P(c given x_i)) and the weights s_i of the examples, a_c = Σ_i s_i v_ic, and Σ
        is the covariance of examples that are weighted by s_i Σ_c v_ic. Takes about as long as one or two passes.
        """
        weights, intercept = self._parameters(point)
        covariance, curvatures = self._doubtful(weights.astype(np.float32), intercept.astype(np.float32))
        self._choose_coordinates(covariance, np.maximum(curvatures, LEAST_FACTOR * self.frequencies))
        return self._point(weights, intercept)

    def guess(self) -> Solution:
        """Give the first step from W = 0 and b_c = log π_c, whose gradient −π_c μ_c is known without a pass."""
        means = 2 * self.centres
        step = self._stretched(self.frequencies * means, np.zeros(self.n_classes))
        weights, intercept = self._parameters(step)
        return self._in_units(weights, intercept + np.log(self.frequencies))

    def point(self, solution: Solution) -> FloatArray:
        """Bring W and b to the coordinates of the search."""
        return self._point(self.scale * solution.coef.T, solution.intercept + solution.coef @ self.mean)

    def solution(self, point: FloatArray) -> Solution:
        """Bring a point back to W and b."""
        return self._in_units(*self._parameters(point))

    def _in_units(self, weights: FloatArray, intercept: FloatArray) -> Solution:
        coef = np.ascontiguousarray(weights.T / self.scale)
        intercept = intercept - coef @ self.mean
        # Other coordinates for each class leave the sum over classes, which changes no probability, to chance.
        return Solution(coef - coef.mean(axis=0), intercept - intercept.mean())

    def _choose_coordinates(self, covariance: FloatArray, curvatures: FloatArray) -> None:
        variances, self.rotation = np.linalg.eigh(covariance)
        # Without variance in any feature there is nothing to learn but b, and any scale will do.
        variances = np.maximum(variances, LEAST_VARIANCE * variances[-1] or 1.0)
        self.stretch = 1 / np.sqrt(variances[:, np.newaxis] * curvatures + self.penalty)
        self.intercept_stretch = 1 / np.sqrt(curvatures)

    def _point(self, weights: FloatArray, intercept: FloatArray) -> FloatArray:
        intercept = intercept + (weights * self.centres).sum(axis=0)
        return np.vstack([self.rotation.T @ weights / self.stretch, intercept / self.intercept_stretch])

    def _parameters(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = self.rotation @ (self.stretch * point[:-1])
        return weights, self.intercept_stretch * point[-1] - (weights * self.centres).sum(axis=0)

    def _stretched(self, gradient: FloatArray, intercept_gradient: FloatArray) -> FloatArray:
        return np.vstack([self.stretch * (self.rotation.T @ gradient), self.intercept_stretch * intercept_gradient])

    def _blocks(self) -> Iterator[slice]:
        return _blocks(len(self.targets), self.block_rows)

    def _location(self, features: npt.NDArray[Any], shares: FloatArray) -> tuple[FloatArray, float]:
        """Give the mean, as the features can express it, and the root of the mean variance."""
        blocks = _blocks(len(features), self.block_rows)
        mean = sum((shares[rows] @ features[rows] for rows in blocks), np.zeros(features.shape[1]))
        mean = mean.astype(features.dtype).astype(np.float64)
        variance = 0.0
        for rows in _blocks(len(features), self.block_rows):
            variance += float(shares[rows] @ np.square(features[rows] - mean).mean(axis=1))
        return mean, math.sqrt(variance) or 1.0

    def _doubtful(self, weights: SingleArray, intercept: SingleArray) -> tuple[FloatArray, FloatArray]:
        """Give the covariance of examples weighted by how much they are in doubt, and the doubt about each class."""
        n_features = self.design.shape[1]
        moments, mean, curvatures = np.zeros((n_features,) * 2), np.zeros(n_features), np.zeros(self.n_classes)
        for rows in self._blocks():
            block = self.design[rows]
            scores = block @ weights
            scores += intercept
            doubts = _doubts(scores)
            curvatures += self.shares[rows] @ doubts
            total = self.shares[rows] * doubts.sum(axis=1)
            mean += total @ block
            block = np.sqrt(total)[:, np.newaxis] * block
            moments += block.T @ block
        mean, moments = mean / curvatures.sum(), moments / curvatures.sum()
        return moments - np.outer(mean, mean), curvatures

    def _covariance(self) -> FloatArray:
        covariance = np.zeros((self.design.shape[1],) * 2)
        for rows in self._blocks():
            block = np.sqrt(self.shares[rows])[:, np.newaxis] * self.design[rows]
            covariance += block.T @ block
        return covariance


def part_of_each_class(
    targets: IntegerArray, shares: FloatArray, n_classes: int, *, step: int, least: int
) -> tuple[IntegerArray, FloatArray]:
    """Choose one example in `step` of each class, or more where that would leave fewer than `least` of them.

    Gives their rows, and their shares, raised so that every class keeps its own.

    >>> rows, shares = part_of_each_class(np.array([0, 1, 0, 0, 0]), np.full(5, 0.2), 2, step=4, least=2)
    >>> rows, shares
    (array([0, 1, 3]), array([0.4, 0.2, 0.4]))
    """
    counts = np.bincount(targets, minlength=n_classes)
    steps = np.clip(counts // least, 1, step)
    order = np.argsort(targets, kind="stable")
    place = np.empty(len(targets), dtype=np.intp)
    place[order] = np.arange(len(targets)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.flatnonzero(place % steps[targets] == 0)
    kept = targets[rows]
    raised = np.bincount(targets, shares, n_classes) / np.bincount(kept, shares[rows], n_classes)
    return rows, shares[rows] * raised[kept]


def _blocks(n: int, block_rows: int) -> Iterator[slice]:
    return (slice(start, min(start + block_rows, n)) for start in range(0, n, block_rows))


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


def _doubts(scores: SingleArray) -> SingleArray:
    """Turn scores into P (1 − P), in place."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores -= np.square(scores)
    return scores


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


# Decrease of the objective, in nats for each example, that the next step of a search in single precision promises.
# Searches that ended below the first were within 0.2 points of the minimum's test accuracy, and within 0.1 in the mean
# of five draws, on features of ResNet-10 and on Gaussian classes of equal or very different size; those that ended
# above the second often were not.
NEGLIGIBLE_GAIN, HARMLESS_GAIN = 3e-5, 5e-4
HISTORY_SIZE = 30

PART, LEAST_OF_CLASS = 4, 30  # one example in four, but no fewer than 30 of a class that has them
FIRST_PASSES, PART_PASSES = 5, 12  # over the part, before and after the curvature is measured
LEAST_PASSES = 8  # fewer are better spent on all examples alone


class Examples(NamedTuple):
    """What to learn from: features, indices of classes, and weights that sum to one."""

    features: npt.NDArray[Any]
    targets: IntegerArray
    shares: FloatArray

    def part(self, n_classes: int) -> "Examples":
        """Give a part of every class, or all examples where most are needed."""
        rows, shares = part_of_each_class(self.targets, self.shares, n_classes, step=PART, least=LEAST_OF_CLASS)
        if 2 * len(rows) > len(self.targets):
            return self
        return Examples(self.features[rows], self.targets[rows], shares)


@dataclass
class Search:
    """A search that counts its steps and its passes, of which those over a part count as that part.

    Attributes
    ----------
    problem : what to minimise
    tolerance, max_iterations : see `cpaan.classifiers.lbfgs.minimize`
    pass_size : share of the examples that a pass takes now
    iterations, passes : so far
    history : pairs of L-BFGS
    """

    problem: BlockProblem
    tolerance: float
    max_iterations: int
    pass_size: float
    iterations: int = 0
    passes: float = 0.0
    history: History = field(default_factory=lambda: deque(maxlen=HISTORY_SIZE))

    def minimize(self, point: FloatArray, max_passes: int) -> Minimum:
        """Go on from a point; what is found tells the steps and passes of the whole search."""
        found = minimize(
            self.problem.objective,
            point,
            max_iterations=self.max_iterations - self.iterations,
            tolerance=self.tolerance,
            gain_tolerance=NEGLIGIBLE_GAIN,
            # Rare classes hardly matter to the objective, but as much as others to accuracy over all classes.
            importance=1 / (self.problem.n_classes * self.problem.frequencies),
            max_evaluations=max_passes,
            unit_scale=True,
            history=self.history,
        )
        self.iterations += found.iterations
        self.passes += self.pass_size * found.evaluations
        return replace(found, iterations=self.iterations, evaluations=math.ceil(self.passes))

    def adapt(self, point: FloatArray) -> FloatArray:
        """Choose coordinates by the curvature at a point, which takes a pass."""
        self.passes += self.pass_size
        self.history.clear()
        return self.problem.adapt(point)

    def take(self, examples: Examples) -> None:
        """Go on with all examples."""
        self.problem.take(*examples)
        self.pass_size = 1.0


def minimize_in_single(
    examples: Examples,
    n_classes: int,
    weight_decay: float,
    begin: Callable[[Solution], Solution],
    *,
    is_known: bool,
    tolerance: float,
    max_iterations: int,
    max_passes: int,
) -> tuple[BlockProblem, Minimum]:
    """Come close enough to the minimum for the same accuracy.

    Parameters
    ----------
    examples : what to learn from
    n_classes : number of classes
    weight_decay : strength of the penalty
    begin : makes where to begin of the problem's own guess
    is_known : whether that is close to the minimum, so that a part of the examples would only lead away from it
    tolerance, max_iterations : see `cpaan.classifiers.lbfgs.minimize`
    max_passes : most passes over all examples

    Returns
    -------
    BlockProblem, Minimum
        The problem in the coordinates of what was found.
    """
    few = max_passes < LEAST_PASSES
    part = examples if few or is_known else examples.part(n_classes)
    problem = BlockProblem(*part, n_classes, weight_decay)
    search = Search(problem, tolerance, max_iterations, len(part.targets) / len(examples.targets))
    point = problem.point(begin(problem.guess()))
    if few:
        return problem, _judged(search.minimize(point, max_passes))
    if not is_known:
        found = search.minimize(point, FIRST_PASSES)
        if part is examples and found.converged:
            return problem, found
        point = found.point
    point = search.adapt(point)
    if part is not examples:
        point = search.minimize(point, PART_PASSES).point
        search.take(examples)
    return problem, _judged(search.minimize(point, max_passes - math.ceil(search.passes)))


def _judged(found: Minimum) -> Minimum:
    return replace(found, converged=found.converged or found.gain <= HARMLESS_GAIN)
