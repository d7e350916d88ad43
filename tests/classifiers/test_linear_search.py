"""The search in single precision: its part of the examples, its coordinates, and what it saves."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cpaan.classifiers import linear_problem as linear_search
from cpaan.classifiers.linear_problem import (
    BlockProblem,
    ExactProblem,
    Examples,
    Minimum,
    Solution,
    part_of_each_class,
    solve_exactly,
    solve_in_single,
)

DECAY = 1e-3


def examples(counts: list[int], n_features: int = 12, seed: int = 0) -> Examples:
    """Overlapping classes of the given sizes, in mixed order, with features of very different spread."""
    generator = np.random.default_rng(seed)
    targets = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    spread = np.geomspace(0.1, 3.0, n_features)
    centres = 0.8 * spread * generator.normal(size=(len(counts), n_features))
    features = centres[targets] + spread * generator.normal(size=(len(targets), n_features))
    weights = generator.uniform(0.5, 2.0, len(targets))
    return Examples(features.astype(np.float32), targets, weights / weights.sum())


def unknown(data: Examples, n_classes: int) -> Solution:
    return Solution(np.full((n_classes, data.features.shape[1]), np.nan), np.full(n_classes, np.nan))


def search(data: Examples, n_classes: int, *, max_passes: int = 20) -> Minimum:
    return solve_in_single(
        data,
        unknown(data, n_classes),
        weight_decay=DECAY,
        tolerance=1e-7,
        max_iterations=1000,
        max_passes=max_passes,
    )


def value_in_double(data: Examples, solution: Solution) -> float:
    features = data.features.astype(np.float64)
    exact = ExactProblem(features, data.targets, data.shares, len(solution.intercept), DECAY)
    return exact.objective(exact.point(solution))[0]


def least_value(data: Examples, n_classes: int) -> float:
    settings: dict[str, Any] = {"weight_decay": DECAY, "tolerance": 1e-8, "max_iterations": 1000}
    return value_in_double(data, solve_exactly(data, unknown(data, n_classes), **settings).solution)


def test_a_part_has_its_share_of_every_class() -> None:
    data = examples([400, 100, 45, 3])
    rows, shares = part_of_each_class(data.targets, data.shares, 4, step=4, least=30)
    assert np.bincount(data.targets[rows]).tolist() == [100, 34, 45, 3]
    assert (np.diff(rows) > 0).all()
    np.testing.assert_allclose(
        np.bincount(data.targets[rows], shares), np.bincount(data.targets, data.shares), rtol=1e-12
    )
    kept_whole = data.targets[rows] == 2
    np.testing.assert_allclose(shares[kept_whole], data.shares[rows][kept_whole])


def test_few_examples_of_each_class_are_taken_whole() -> None:
    data = examples([40] * 5)
    assert data.part(5) is data


@pytest.mark.parametrize("counts", [[300] * 15, [300] * 10 + [4] * 10, [25] * 15], ids=["alike", "unlike", "few"])
def test_the_minimum_is_that_of_all_examples(counts: list[int]) -> None:
    data, n_classes = examples(counts), len(counts)
    found = search(data, n_classes)
    assert found.converged
    assert found.passes <= 20
    excess = value_in_double(data, found.solution) - least_value(data, n_classes)
    assert -1e-6 < excess < 5e-4
    # The part alone is further away: a search that stopped there would be noticed.
    if counts == [300] * 15:
        part = data.part(n_classes)
        alone = search(part, n_classes)
        assert value_in_double(data, alone.solution) - least_value(data, n_classes) > 5e-4


def test_passes_over_a_part_count_as_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    objective, adapt = BlockProblem.objective, BlockProblem.adapt

    def counting_objective(problem: BlockProblem, point: npt.NDArray[np.float64]) -> object:
        rows.append(len(problem.targets))
        return objective(problem, point)

    def counting_adapt(problem: BlockProblem, point: npt.NDArray[np.float64]) -> object:
        rows.append(len(problem.targets))
        return adapt(problem, point)

    monkeypatch.setattr(BlockProblem, "objective", counting_objective)
    monkeypatch.setattr(BlockProblem, "adapt", counting_adapt)
    data = examples([300] * 15)
    found = search(data, 15)
    assert found.passes == -(-sum(rows) // len(data.targets))
    assert min(rows) < len(data.targets) / 2
    rows.clear()
    found = search(data, 15, max_passes=3)
    assert rows == [len(data.targets)] * 3
    assert found.passes == 3


def test_adapted_coordinates_have_curvatures_of_about_one_where_classes_are_told_apart() -> None:
    data, n_classes = examples([300] * 8), 8
    found = search(data, n_classes).solution
    cold = BlockProblem(*data, n_classes, DECAY)
    point = cold.point(found)
    before = curvatures(cold, point)
    adapted = cold.adapt(point)
    np.testing.assert_allclose(cold.solution(adapted).coef, found.coef, atol=1e-6)
    after = curvatures(cold, adapted)
    assert 0.2 < after.min() < after.max() < 3
    assert after.max() / after.min() < before.max() / before.min()


def curvatures(problem: BlockProblem, point: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Second derivatives along every coordinate, by differences."""
    _, here = problem.objective(point)
    found, step = np.empty(point.shape), 3e-2
    for index in np.ndindex(point.shape):
        moved = point.copy()
        moved[index] += step
        found[index] = (problem.objective(moved)[1][index] - here[index]) / step
    return found


def test_it_takes_fewer_passes_than_all_examples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data, n_classes = examples([300] * 20, n_features=32), 20
    staged = search(data, n_classes, max_passes=100)
    monkeypatch.setattr(linear_search, "LEAST_PASSES", 101)
    plain = search(data, n_classes, max_passes=100)
    assert staged.passes < plain.passes
