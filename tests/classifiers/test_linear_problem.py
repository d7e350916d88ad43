"""The objective by blocks in single precision against the exact one, and the memory it takes."""

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from cpaan.classifiers import linear_problem
from cpaan.classifiers.linear_problem import BlockProblem, ExactProblem, Solution

FloatArray = npt.NDArray[np.float64]
Data = tuple[FloatArray, npt.NDArray[np.intp], FloatArray]
CLASSES, FEATURES, DECAY = 5, 7, 0.02


@pytest.fixture
def data() -> Data:
    generator = np.random.default_rng(0)
    targets = np.r_[np.arange(CLASSES), generator.choice(CLASSES, 195, p=[0.6, 0.2, 0.1, 0.05, 0.05])]
    mixing = generator.normal(size=(FEATURES, FEATURES))
    features = (generator.normal(size=(200, FEATURES)) + generator.normal(size=(CLASSES, FEATURES))[targets]) @ mixing
    weights = generator.uniform(0.5, 2.0, 200)
    return features + 20.0, targets, weights / weights.sum()


@pytest.fixture
def solution() -> Solution:
    generator = np.random.default_rng(1)
    coef, intercept = generator.normal(size=(CLASSES, FEATURES)), generator.normal(size=CLASSES)
    return Solution(0.1 * (coef - coef.mean(axis=0)), intercept - intercept.mean())


@pytest.mark.parametrize("kind", [ExactProblem, BlockProblem])
def test_coordinates_lead_there_and_back(kind: type[BlockProblem], data: Data, solution: Solution) -> None:
    problem = kind(*data, CLASSES, DECAY)
    back = problem.solution(problem.point(solution))
    np.testing.assert_allclose(back.coef, solution.coef, atol=1e-10)
    np.testing.assert_allclose(back.intercept, solution.intercept, atol=1e-10)


@pytest.mark.parametrize("entries", [1, 200, 10**6])
def test_value_and_slope_against_the_exact_problem(
    data: Data, solution: Solution, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_problem, "BLOCK_ENTRIES", entries)
    blocks, exact = BlockProblem(*data, CLASSES, DECAY), ExactProblem(*data, CLASSES, DECAY)
    point = blocks.point(solution)
    value, gradient = blocks.objective(point)
    assert value == pytest.approx(exact.objective(exact.point(solution))[0], rel=1e-5)
    # The derivative along any direction does not depend on coordinates: take it from the exact values.
    generator = np.random.default_rng(2)
    for _ in range(5):
        direction = generator.normal(size=point.shape)
        ends = [exact.objective(exact.point(blocks.solution(point + sign * 1e-4 * direction)))[0] for sign in (1, -1)]
        # Solutions are given with the sum over classes at zero, where the penalty is least; so are directions.
        there = blocks.point(blocks.solution(point + direction)) - point
        assert (gradient * there).sum() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-3, abs=1e-4)


def frequencies_alone(data: Data) -> Solution:
    intercept = np.log(np.bincount(data[1], data[2]))
    return Solution(np.zeros((CLASSES, FEATURES)), intercept - intercept.mean())


def test_the_guess_is_the_first_step_from_the_frequencies(data: Data) -> None:
    problem = BlockProblem(*data, CLASSES, DECAY)
    start = problem.point(frequencies_alone(data))
    _, gradient = problem.objective(start)
    expected, found = problem.solution(start - gradient), problem.guess()
    np.testing.assert_allclose(found.coef, expected.coef, atol=1e-5)
    np.testing.assert_allclose(found.intercept, expected.intercept, atol=1e-4)


def test_the_coordinates_have_curvatures_of_about_one(data: Data) -> None:
    # Correlated features in units that differ by ten, and classes whose frequencies differ by ten.
    features, targets, shares = data
    features = (features - 20.0) * np.logspace(0, 1, FEATURES)
    problem = BlockProblem(features, targets, shares, CLASSES, 1e-6)
    point, step = problem.point(frequencies_alone(data)), 1e-2
    _, here = problem.objective(point)
    curvatures = []
    for index in np.ndindex(point.shape):
        moved = point.copy()
        moved[index] += step
        curvatures.append((problem.objective(moved)[1][index] - here[index]) / step)
    assert 0.1 < min(curvatures) < max(curvatures) < 2


def test_memory_does_not_hold_all_scores() -> None:
    n, n_features, n_classes = 20_000, 16, 400
    generator = np.random.default_rng(3)
    features = generator.normal(size=(n, n_features))
    targets = np.arange(n) % n_classes
    tracemalloc.start()
    problem = BlockProblem(features, targets, np.full(n, 1 / n), n_classes, 1e-3)
    problem.objective(problem.point(problem.guess()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one_copy, one_block = n * n_features * 4, linear_problem.BLOCK_ENTRIES * 4
    assert peak < one_copy + 3 * one_block < n * n_classes * 4
