"""Diversity and covariance distance against loops and SciPy."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.spatial.distance import pdist

from cpaan.errors import InputError
from cpaan.evaluation import realism as row_blocks
from cpaan.evaluation.realism import covariance_distance, diversity, mean_pairwise_distance, spread


@pytest.mark.parametrize("most_entries", [1, 100, 2**22])
def test_mean_pairwise_distance_against_scipy(most_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "MOST_ENTRIES", most_entries)
    X = np.random.default_rng(0).normal(size=(37, 5))
    expected = pdist(X).mean()
    assert mean_pairwise_distance(X) == pytest.approx(expected, rel=1e-10)
    assert mean_pairwise_distance(X + 1e4) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("rows", "entries", "most"), [(10, 3, 7), (10, 3, 1), (1, 1, 1), (6, 2, 4), (5, 9, 1000)])
def test_blocks_cover_all_rows_once_within_the_limit(rows: int, entries: int, most: int) -> None:
    blocks = list(row_blocks.row_blocks(rows, entries, most))
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


def test_wrong_inputs_are_named() -> None:
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


def wide_groups(shared: bool) -> tuple[list[npt.NDArray[np.float64]], list[npt.NDArray[np.float64]]]:
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
