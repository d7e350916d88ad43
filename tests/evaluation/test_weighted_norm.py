"""The norm of a weighted sum of products against singular values."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse.linalg import ArpackNoConvergence

from cpaan.evaluation import realism
from cpaan.evaluation.realism import weighted_ky_fan_norm

DIMENSION = 400
FloatArray = npt.NDArray[np.float64]


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
