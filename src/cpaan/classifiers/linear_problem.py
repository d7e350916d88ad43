"""The linear classifier's objective in coordinates that suit L-BFGS, and its minimisation.

Small problems are solved exactly, in double precision (`solve_exactly`). Large ones come close enough to the minimum
for the same accuracy, in single precision and few passes over the examples (`solve_in_single`).
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from cpaan.classifiers.base import FloatArray, IntegerArray, cross_entropy_to_residuals
from cpaan.classifiers.nearest_prototype import weighted_class_means

SingleArray: TypeAlias = npt.NDArray[np.float32]

BLOCK_ENTRIES = 2**20  # scores held at once: 4 MB stay in the cache, and matrix products run at full speed
CURVATURE_FACTOR = 2.0
LEAST_FACTOR = 0.01  # where classes are almost separated; ResNet-10 features come down to 0.04
LEAST_VARIANCE = 1e-6  # relative to the largest; below that, single precision sees noise

# Decrease of the objective, in nats per example, that one more step of a search in single precision promises. Searches
# that ended below the first were within 0.2 points of the minimum's test accuracy, and on average over five draws
# within 0.1, on features of ResNet-10 and on Gaussian classes of equal or very different size; those that ended above
# the second often were not.
NEGLIGIBLE_GAIN, HARMLESS_GAIN = 3e-5, 5e-4

PART, LEAST_OF_CLASS = 4, 30  # one example in four, but at least 30 of each class that has them
FIRST_PASSES, PART_PASSES = 5, 12  # over the part, before and after measuring the curvature
LEAST_PASSES = 8  # fewer are better spent on all examples alone
KNOWN_SHARE = 0.75  # of the classes; a warm start from fewer is hardly closer to the minimum than a cold one


class Solution(NamedTuple):
    """W (classes × D) and b in the units of the data."""

    coef: FloatArray
    intercept: FloatArray

    def or_else(self, other: "Solution") -> "Solution":
        """Replace NaN, which stands for unknown, by another solution."""
        coef, intercept = (np.where(np.isnan(own), theirs, own) for own, theirs in zip(self, other, strict=True))
        return Solution(coef, intercept)


class Minimum(NamedTuple):
    """Where a search ended, after so many steps and passes over the examples."""

    solution: Solution
    iterations: int
    passes: int
    converged: bool


class Examples(NamedTuple):
    """Features, indices of classes, and weights that sum to one."""

    features: npt.NDArray[Any]
    targets: IntegerArray
    shares: FloatArray

    def part(self, n_classes: int) -> "Examples":
        """Take a part of every class, or all examples if most are needed."""
        rows, shares = part_of_each_class(self.targets, self.shares, n_classes, step=PART, least=LEAST_OF_CLASS)
        if 2 * len(rows) > len(self.targets):
            return self
        return Examples(self.features[rows], self.targets[rows], shares)


def solve_exactly(
    examples: Examples, known: Solution, *, weight_decay: float, tolerance: float, max_iterations: int
) -> Minimum:
    """Minimise in double precision, from the known rows and zero for the others."""
    features = examples.features.astype(np.float64, copy=False)
    problem = ExactProblem(features, examples.targets, examples.shares, len(known.coef), weight_decay)
    start = problem.point(known.or_else(problem.guess()))

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = problem.objective(flat.reshape(start.shape))
        return value, gradient.ravel()

    options = {"maxiter": max_iterations, "maxfun": math.inf, "gtol": tolerance, "ftol": 0.0}
    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return Minimum(problem.solution(found.x.reshape(start.shape)), found.nit, found.nfev, bool(found.success))


class ExactProblem:
    """The objective of all examples at once in double precision.

    The search is in the span of the examples, and one factor makes the curvature of W about that of b.
    """

    def __init__(
        self, features: FloatArray, targets: IntegerArray, shares: FloatArray, n_classes: int, weight_decay: float
    ) -> None:
        self.targets, self.shares, self.n_classes = targets, shares, n_classes
        # Subtracting the mean only shifts the intercept, which is not penalised, and shortens the search.
        self.mean = shares @ features
        design, self.basis = _reduce(features - self.mean)
        self.scale = _common_scale(design, shares, len(self.basis), n_classes, weight_decay)
        self.design = np.column_stack([design / self.scale, np.ones(len(design))])
        self.penalty = np.full((self.design.shape[1], 1), weight_decay / self.scale**2)
        self.penalty[-1] = 0

    def objective(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Give value and gradient."""
        scores, decay = self.design @ point, self.penalty * point
        value = cross_entropy_to_residuals(scores, self.targets, self.shares)
        return value + float((decay * point).sum()) / 2, self.design.T @ scores + decay

    def guess(self) -> Solution:
        """Give zero."""
        return self.solution(np.zeros((self.design.shape[1], self.n_classes)))

    def point(self, solution: Solution) -> FloatArray:
        """Convert W and b to the coordinates of the search."""
        weights = self.scale * self.basis.T @ solution.coef.T
        return np.vstack([weights, solution.intercept + solution.coef @ self.mean])

    def solution(self, point: FloatArray) -> Solution:
        """Convert a point back to W and b."""
        coef = np.ascontiguousarray((self.basis @ point[:-1] / self.scale).T)
        return Solution(coef, point[-1] - coef @ self.mean)


def _reduce(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotate into the span of the examples if there are fewer of them than dimensions.

    The best W lies in that span, because any part of it outside costs weight decay and changes no score; an
    orthonormal basis keeps ‖W‖_F. Without this, five shots in 2048 dimensions pay for all 2048.
    """
    if len(centred) >= centred.shape[1]:
        return centred, np.eye(centred.shape[1])
    basis, _ = np.linalg.qr(centred.T)
    return centred @ basis, basis


def _common_scale(
    centred: FloatArray, shares: FloatArray, n_features: int, n_classes: int, weight_decay: float
) -> float:
    """Give the factor by which W has about the same curvature as b, so that L-BFGS takes steps in both at once.

    If all classes are equally likely the curvature is 1 / classes for b, and variance / classes + weight_decay for W.
    The variance along a direction lies between the mean over features and D times that; their geometric mean took
    fewer steps than either on features of ResNet-10 and MiniLM.
    """
    total_variance = float(shares @ np.square(centred).sum(axis=1))
    return math.sqrt(total_variance / math.sqrt(n_features) + n_classes * weight_decay) or 1.0


def solve_in_single(
    examples: Examples,
    known: Solution,
    *,
    weight_decay: float,
    tolerance: float,
    max_iterations: int,
    max_passes: int,
) -> Minimum:
    """Come close enough to the minimum for the same accuracy.

    The search begins with a part of the examples, where passes are cheap: a few steps, then coordinates by the
    curvature there, then steps to about the part's own minimum. All examples have much the same curvature there, so
    the search continues among them in the same coordinates, not far from the minimum. With few passes, or from a known
    solution, from which a part would only lead away, it takes all examples from the beginning.
    """
    n_classes, few = len(known.coef), max_passes < LEAST_PASSES
    is_known = bool(np.mean(~np.isnan(known.intercept)) >= KNOWN_SHARE)
    part = examples if few or is_known else examples.part(n_classes)
    problem = BlockProblem(*part, n_classes, weight_decay)
    search = Search(problem, tolerance, max_iterations, len(part.targets) / len(examples.targets))
    point = problem.point(known.or_else(problem.guess()))
    if not few:
        if not is_known:
            point = search.minimize(point, FIRST_PASSES)
            if part is examples and search.gain <= NEGLIGIBLE_GAIN:
                return search.minimum(point)
        point = search.adapt(point)
        if part is not examples:
            point = search.minimize(point, PART_PASSES)
            problem.take(*examples)
            search.pass_size = 1.0
    return search.minimum(search.minimize(point, max_passes - math.ceil(search.passes)))


class Search:
    """L-BFGS in single precision that counts steps and passes; a pass over a part of the examples counts as that part.

    In the coordinates of `BlockProblem` curvatures are about one, or less where classes have separated, so one more
    step lowers the objective by about ‖g‖² / 2κ, with κ the curvature along the last step but at most one. Rare
    classes hardly matter to the objective, but as much as others to accuracy over all classes: the gain counts the
    part of class c, with frequency π_c, 1 / (classes · π_c) times.
    """

    def __init__(self, problem: "BlockProblem", tolerance: float, max_iterations: int, pass_size: float) -> None:
        self.problem, self.tolerance, self.max_iterations = problem, tolerance, max_iterations
        self.pass_size, self.passes, self.iterations = pass_size, 0.0, 0
        self.importance = 1 / (problem.n_classes * problem.frequencies)
        self.gain, self.converged = math.inf, False

    def minimize(self, start: FloatArray, max_passes: int) -> FloatArray:
        """Take steps until one more promises a negligible gain, the gradient is flat or the passes are used up."""
        value, gradient = self._evaluate(start)
        tried = reached = start, gradient
        left = max_passes - 1
        # scipy's first step has length one; in this unit it is the negative gradient, which suits curvatures of one.
        unit = float(np.linalg.norm(gradient)) or 1.0
        begin = (start / unit).ravel()

        def objective(flat: FloatArray) -> tuple[float, FloatArray]:
            nonlocal tried, left
            if np.array_equal(flat, begin):
                return value, unit * gradient.ravel()
            if not left:
                raise StopIteration
            left -= 1
            point = unit * flat.reshape(start.shape)
            there, slope = self._evaluate(point)
            tried = point, slope
            return there, unit * slope.ravel()

        def accept(_: FloatArray) -> None:
            nonlocal reached
            step, change = tried[0] - reached[0], tried[1] - reached[1]
            reached = tried
            self.iterations += 1
            if self._is_flat(reached[1], float(np.vdot(step, change) / np.vdot(step, step))):
                raise StopIteration

        steps = self.max_iterations - self.iterations
        if not self._is_flat(gradient, 1.0) and steps:
            options = {"maxiter": steps, "maxfun": math.inf, "ftol": 0.0, "gtol": 0.0}
            with suppress(StopIteration):  # which ends a search in the middle of a step
                minimize(objective, begin, jac=True, method="L-BFGS-B", callback=accept, options=options)
        return reached[0]

    def adapt(self, point: FloatArray) -> FloatArray:
        """Choose coordinates by the curvature at a point, which takes a pass."""
        self.passes += self.pass_size
        return self.problem.adapt(point)

    def minimum(self, point: FloatArray) -> Minimum:
        """Sum up the search, which counts as converged if one more step would do no harm to leave out."""
        converged = self.converged or self.gain <= HARMLESS_GAIN
        return Minimum(self.problem.solution(point), self.iterations, math.ceil(self.passes), converged)

    def _evaluate(self, point: FloatArray) -> tuple[float, FloatArray]:
        self.passes += self.pass_size
        return self.problem.objective(point)

    def _is_flat(self, gradient: FloatArray, curvature: float) -> bool:
        curvature = min(max(curvature, LEAST_FACTOR), 1.0)
        self.gain = float(self.importance @ np.square(gradient).sum(axis=0)) / (2 * curvature)
        self.converged = np.abs(gradient).max() <= self.tolerance or self.gain <= NEGLIGIBLE_GAIN
        return bool(self.converged)


class BlockProblem:
    """The objective in single precision, one block of rows at a time, in coordinates that make a few passes enough.

    With frequencies π_c and means μ_c of the classes, covariance Σ = V diag(e) Vᵀ and centred x, write

    score(c given x) = w_c · (x − μ_c / 2) + b_c,  w_c = V diag(a_c e + weight_decay)^(−1/2) u_c,  a_c = 2 π_c

    and b_c likewise, divided by √a_c. In u all curvatures are about one, because that of w_c is about the covariance
    weighted by P(c) (1 − P(c)), which lies halfway between the class and all others. From W = 0 and b_c = log π_c, the
    first step along the gradient leads to linear discriminant analysis, up to its scale.

    That holds at the beginning. As classes separate, a_c falls far below π_c and only examples still in doubt count,
    whose covariance differs from that of the rest. `adapt` measures both at a point.

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
            block = self.design[rows]
            scores = block @ single_weights
            scores += single_intercept
            value += cross_entropy_to_residuals(scores, self.targets[rows], self.shares[rows])
            gradient += block.T @ scores
            intercept_gradient += scores.sum(axis=0)
        return float(value), self._stretched(gradient - self.centres * intercept_gradient, intercept_gradient)

    def take(self, features: npt.NDArray[Any], targets: IntegerArray, shares: FloatArray) -> None:
        """Continue with other examples of the same classes, as frequent as before, in the same coordinates."""
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
        step = self._stretched(self.frequencies * 2 * self.centres, np.zeros(self.n_classes))
        weights, intercept = self._parameters(step)
        return self._in_units(weights, intercept + np.log(self.frequencies))

    def point(self, solution: Solution) -> FloatArray:
        """Convert W and b to the coordinates of the search."""
        return self._point(self.scale * solution.coef.T, solution.intercept + solution.coef @ self.mean)

    def solution(self, point: FloatArray) -> Solution:
        """Convert a point back to W and b."""
        return self._in_units(*self._parameters(point))

    def _in_units(self, weights: FloatArray, intercept: FloatArray) -> Solution:
        coef = np.ascontiguousarray(weights.T / self.scale)
        intercept = intercept - coef @ self.mean
        # The sum over classes changes no probability, and in coordinates that differ by class it is arbitrary.
        return Solution(coef - coef.mean(axis=0), intercept - intercept.mean())

    def _choose_coordinates(self, covariance: FloatArray, curvatures: FloatArray) -> None:
        variances, self.rotation = np.linalg.eigh(covariance)
        # Without variance in any feature only b is learned, and any scale will do.
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
        """Give the mean, rounded to the precision of the features, and the root of the mean variance."""
        blocks = list(_blocks(len(features), self.block_rows))
        mean = sum((shares[rows] @ features[rows] for rows in blocks), np.zeros(features.shape[1]))
        mean = mean.astype(features.dtype).astype(np.float64)
        variance = sum(float(shares[rows] @ np.square(features[rows] - mean).mean(axis=1)) for rows in blocks)
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


def _blocks(n: int, block_rows: int) -> Iterator[slice]:
    return (slice(start, min(start + block_rows, n)) for start in range(0, n, block_rows))


def _doubts(scores: SingleArray) -> SingleArray:
    """Replace scores by P (1 − P), in place."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores -= np.square(scores)
    return scores


def part_of_each_class(
    targets: IntegerArray, shares: FloatArray, n_classes: int, *, step: int, least: int
) -> tuple[IntegerArray, FloatArray]:
    """Choose one example in `step` of each class, or more if that would leave fewer than `least` of them.

    Gives their rows, and their shares, raised to keep the total of each class.
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
