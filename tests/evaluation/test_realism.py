"""Diversity, covariance distance, coverage and energy distance against loops, singular values and SciPy."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse.linalg import ArpackNoConvergence
from scipy.spatial.distance import cdist, pdist
from scipy.stats import energy_distance as scipy_energy_distance

from cpaan.errors import InputError
from cpaan.evaluation import realism
from cpaan.evaluation.realism import (
    covariance_distance,
    coverage,
    diversity,
    energy_distance,
    mean_pairwise_distance,
    spread,
    weighted_ky_fan_norm,
)

DIMENSION = 400
FloatArray = npt.NDArray[np.float64]


@pytest.mark.parametrize("most_entries", [1, 100, 2**22])
def test_mean_pairwise_distance_against_scipy(most_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realism, "MOST_ENTRIES", most_entries)
    X = np.random.default_rng(0).normal(size=(37, 5))
    expected = pdist(X).mean()
    assert mean_pairwise_distance(X) == pytest.approx(expected, rel=1e-10)
    assert mean_pairwise_distance(X + 1e4) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("rows", "entries", "most"), [(10, 3, 7), (10, 3, 1), (1, 1, 1), (6, 2, 4), (5, 9, 1000)])
def test_blocks_cover_all_rows_once_within_the_limit(
    rows: int, entries: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realism, "MOST_ENTRIES", most)
    blocks = list(realism._row_blocks(rows, entries))
    assert [row for block in blocks for row in range(rows)[block]] == list(range(rows))
    assert all(len(range(rows)[block]) * entries <= max(most, entries) for block in blocks)


def test_collapsed_examples_have_no_diversity_and_scaling_scales_it() -> None:
    X = np.random.default_rng(1).normal(size=(20, 3))
    assert mean_pairwise_distance(np.tile(X[:1], (9, 1))) == pytest.approx(0.0, abs=1e-7)
    assert mean_pairwise_distance(3 * X) == pytest.approx(3 * mean_pairwise_distance(X))
    assert np.isnan(mean_pairwise_distance(X[:1]))


def test_diversity_is_the_mean_over_classes_of_two_or_more() -> None:
    generator = np.random.default_rng(2)
    sizes = {"a": 4, "b": 9, "lone": 1}
    y = np.repeat(list(sizes), list(sizes.values()))
    X = generator.normal(size=(len(y), 3)) * np.where(y == "b", 5.0, 1.0)[:, np.newaxis]
    expected = np.mean([pdist(X[y == label]).mean() for label in ("a", "b")])
    order = generator.permutation(len(y))
    assert diversity(X, y) == pytest.approx(expected)
    assert diversity(X[order], y[order]) == pytest.approx(expected)
    assert np.isnan(diversity(X[:2], ["x", "y"]))


@pytest.mark.parametrize("m", [1, 3, 10])
def test_covariance_distance_against_singular_values(m: int) -> None:
    generator = np.random.default_rng(3)
    y_synthetic, y_real = np.arange(40) % 4, np.arange(60) % 3 + 1
    X_synthetic = generator.normal(size=(40, 6))
    X_real = generator.normal(size=(60, 6)) @ np.diag(np.arange(1.0, 7.0))
    norms = []
    for label in (1, 2, 3):
        left = np.cov(X_synthetic[y_synthetic == label].T, bias=True)
        right = np.cov(X_real[y_real == label].T, bias=True)
        norms.append(np.linalg.svd(left - right, compute_uv=False)[:m].sum())
    found = covariance_distance(X_synthetic, y_synthetic, X_real, y_real, m=m)
    assert found == pytest.approx(np.mean(norms), rel=1e-9)
    assert found == pytest.approx(covariance_distance(X_real, y_real, X_synthetic, y_synthetic, m=m))


def test_covariance_distance_does_not_see_where_a_class_lies() -> None:
    X, y = np.random.default_rng(4).normal(size=(30, 5)), np.arange(30) % 2
    assert covariance_distance(X + 7.0, y, X, y) == pytest.approx(0.0, abs=1e-9)
    assert covariance_distance(2 * X, y, X, y) > 1.0


def test_wrong_inputs_of_diversity_are_named() -> None:
    X = np.zeros((3, 2))
    with pytest.raises(InputError, match="X is NaN or infinite"):
        mean_pairwise_distance([[np.nan], [1.0]])
    with pytest.raises(InputError, match="y has 2 labels for 3 examples"):
        diversity(X, ["a", "a"])
    with pytest.raises(InputError, match="no class in common"):
        covariance_distance(X, ["a"] * 3, X, ["b"] * 3)
    with pytest.raises(InputError, match="X_synthetic has 2 features but X_real has 1"):
        covariance_distance(X, ["a"] * 3, X[:, :1], ["a"] * 3)
    with pytest.raises(InputError, match="m"):
        covariance_distance(X, ["a"] * 3, X, ["a"] * 3, m=0)


def wide_groups(shared: bool) -> tuple[list[FloatArray], list[FloatArray]]:
    """Two classes in 200 dimensions, with a spectrum that falls, or with eigenvalues of one size and both signs."""
    generator = np.random.default_rng(5)
    if shared:
        axes = np.eye(200)
        return [np.concatenate([axes[:90], -axes[:90]])] * 2, [np.concatenate([axes[90:180], -axes[90:180]])] * 2
    spread = 1 / np.arange(1, 201) ** 0.7
    return (
        [spread * generator.normal(size=(160, 200)) for _ in range(2)],
        [spread[::-1] * generator.normal(size=(40, 200)) for _ in range(2)],
    )


@pytest.mark.parametrize("shared", [False, True], ids=["falling spectrum", "one size and both signs"])
@pytest.mark.parametrize("m", [1, 10])
def test_covariance_distance_in_many_dimensions_against_singular_values(m: int, shared: bool) -> None:
    synthetic, real = wide_groups(shared)
    norms = [
        np.linalg.svd(np.cov(left.T, bias=True) - np.cov(right.T, bias=True), compute_uv=False)[:m].sum()
        for left, right in zip(synthetic, real, strict=True)
    ]
    y_synthetic, y_real = (np.repeat([0, 1], [len(group) for group in groups]) for groups in (synthetic, real))
    found = covariance_distance(np.concatenate(synthetic), y_synthetic, np.concatenate(real), y_real, m=m)
    assert found == pytest.approx(np.mean(norms), rel=1e-6)


def test_all_figures_at_once_are_those_one_by_one() -> None:
    generator = np.random.default_rng(6)
    X, y, X_real, y_real = (
        generator.normal(size=(50, 4)),
        np.arange(50) % 3,
        generator.normal(size=(30, 4)),
        np.ones(30),
    )
    found = spread(X, y, X_real, y_real, m=2)
    assert found.diversity == diversity(X, y)
    assert found.real_diversity == diversity(X_real, y_real)
    assert found.covariance_distance == covariance_distance(X, y, X_real, y_real, m=2)


def difference(kind: str) -> tuple[FloatArray, FloatArray]:
    """Rows and weights of a difference of two covariances, of 300 and 50 examples."""
    generator = np.random.default_rng(2)
    left, right = (generator.normal(size=(n, DIMENSION)) for n in (300, 50))
    falling = np.arange(1.0, DIMENSION + 1) ** -0.7
    right = right * falling
    if kind != "flat":
        left = left * falling
    if kind == "collapsed":
        left = 0 * left
    if kind == "the same":
        left = np.repeat(right, 6, axis=0)
    weights = np.repeat([1 / len(left), -1 / len(right)], [len(left), len(right)])
    return np.concatenate([left, right]), weights


def singular_values(rows: FloatArray, weights: FloatArray, m: int) -> float:
    return float(np.linalg.svd(rows.T @ (weights[:, None] * rows), compute_uv=False)[:m].sum())


@pytest.mark.parametrize("m", [1, 10, 30, 1000])
@pytest.mark.parametrize("kind", ["falling", "flat", "collapsed"])
def test_norm_against_singular_values(kind: str, m: int) -> None:
    rows, weights = difference(kind)
    assert weighted_ky_fan_norm(rows, weights, m) == pytest.approx(singular_values(rows, weights, m), rel=1e-5)


def test_a_flat_spectrum_in_any_unit_needs_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = difference("flat")
    expected = singular_values(rows, weights, 10)

    def refuse(matrix: FloatArray) -> FloatArray:
        raise AssertionError(f"decomposed {matrix.shape}")

    monkeypatch.setattr(np.linalg, "eigvalsh", refuse)
    for unit in (1e-100, 1.0, 1e100):
        assert weighted_ky_fan_norm(unit * rows, weights, 10) == pytest.approx(unit**2 * expected, rel=1e-5)


def test_equal_covariances_have_no_distance() -> None:
    rows, weights = difference("the same")
    assert weighted_ky_fan_norm(rows, weights, 10) == pytest.approx(0.0, abs=1e-12)
    assert weighted_ky_fan_norm(0 * rows, weights, 10) == 0.0


def test_a_search_that_does_not_converge_falls_back_to_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = difference("falling")

    def fail(*_: object, **__: object) -> None:
        raise ArpackNoConvergence("no convergence", np.empty(0), np.empty((0, 0)))

    monkeypatch.setattr(realism, "eigsh", fail)
    assert weighted_ky_fan_norm(rows, weights, 10) == pytest.approx(singular_values(rows, weights, 10), rel=1e-9)


@pytest.mark.parametrize("most_entries", [1, 100, 2**22])
def test_both_against_all_pairs_at_once(most_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realism, "MOST_ENTRIES", most_entries)
    generator = np.random.default_rng(0)
    A, B = generator.normal(size=(31, 2)), 0.5 + generator.normal(size=(17, 2))
    for radius in (0.1, 0.4, 2.0):
        assert coverage(A, B, radius) == pytest.approx((cdist(A, B).min(axis=1) <= radius).mean())
    expected = 2 * cdist(A, B).mean() - cdist(A, A).mean() - cdist(B, B).mean()
    assert energy_distance(A, B) == pytest.approx(expected)


def test_in_one_dimension_it_is_the_square_of_scipys() -> None:
    generator = np.random.default_rng(1)
    A, B = generator.normal(size=40), generator.exponential(size=25)
    squared = scipy_energy_distance(A, B) ** 2
    assert energy_distance(A[:, np.newaxis], B[:, np.newaxis]) == pytest.approx(squared)


def test_energy_distance_is_a_distance_of_distributions() -> None:
    generator = np.random.default_rng(2)
    A, B = generator.normal(size=(50, 3)), generator.normal(size=(40, 3))
    assert energy_distance(A, A[::-1]) == pytest.approx(0.0, abs=1e-12)
    assert energy_distance(A, np.repeat(A, 3, axis=0)) == pytest.approx(0.0, abs=1e-12)
    assert energy_distance(A, B) == pytest.approx(energy_distance(B, A))
    assert energy_distance(A + 1e4, B + 1e4) == pytest.approx(energy_distance(A, B), abs=1e-8)
    assert 0 < energy_distance(A, B) < energy_distance(A, B + 1.0) < energy_distance(A, B + 2.0)


def test_coverage_grows_and_misses_what_is_not_generated() -> None:
    real = np.concatenate([np.zeros((5, 2)), np.full((15, 2), 10.0)])
    assert coverage(real, [[0.0, 0.0]], 0.0) == 0.25
    assert coverage(real, real + np.array([3.0, 4.0]), 5.0) == 1.0
    assert coverage(real, real + np.array([3.0, 4.0]), 4.999) == 0.0
    # Many synthetic examples in one place cover no more than one.
    assert coverage(real, np.zeros((100, 2)), 1.0) == 0.25


def test_wrong_inputs_of_coverage_are_named() -> None:
    for radius in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="radius"):
            coverage([[0.0]], [[0.0]], radius)
    with pytest.raises(InputError, match="real has 1 features but synthetic has 2"):
        coverage([[0.0]], [[0.0, 1.0]], 1.0)
    with pytest.raises(InputError, match="first has 1 features but second has 2"):
        energy_distance([[0.0]], [[0.0, 1.0]])
    with pytest.raises(InputError, match="second is NaN"):
        energy_distance([[0.0]], [[np.nan]])
