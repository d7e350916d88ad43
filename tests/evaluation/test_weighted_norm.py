"""The norm of a weighted sum of products against singular values."""

import importlib

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.evaluation.realism import weighted_ky_fan_norm

DIMENSION = 400
module = importlib.import_module("cpaan.evaluation.realism")


def difference(kind: str) -> tuple[Tensor, Tensor]:
    """Rows and weights of a difference of two covariances, of 300 and 50 examples."""
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(n, DIMENSION, generator=generator, dtype=torch.float64) for n in (300, 50))
    falling = torch.arange(1, DIMENSION + 1).double() ** -0.7
    if kind != "flat":
        left = left * falling
    if kind == "collapsed":
        left = left[:1].expand(300, -1) * 0
    if kind == "the same":
        left = right = right.repeat(6, 1) * falling
    weights = torch.cat([torch.full((len(left), 1), 1 / len(left)), torch.full((len(right), 1), -1 / len(right))])
    return torch.cat([left, right * falling]) if kind != "the same" else torch.cat([left, right]), weights.double()


def singular_values(rows: Tensor, weights: Tensor, m: int) -> float:
    matrix = rows.numpy().T @ (weights.numpy() * rows.numpy())
    return float(np.linalg.svd(matrix, compute_uv=False)[:m].sum())


@pytest.mark.parametrize("m", [1, 10, 30, 1000])
@pytest.mark.parametrize("kind", ["falling", "flat", "collapsed"])
def test_norm_against_singular_values(kind: str, m: int) -> None:
    rows, weights = difference(kind)
    assert weighted_ky_fan_norm(rows, weights, m) == pytest.approx(singular_values(rows, weights, m), rel=1e-5)


def test_a_flat_spectrum_needs_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = difference("flat")
    expected = singular_values(rows, weights, 10)

    def refuse(matrix: Tensor) -> Tensor:
        raise AssertionError(f"decomposed {matrix.shape}")

    monkeypatch.setattr(torch.linalg, "eigvalsh", refuse)
    for unit in (1e-100, 1.0, 1e100):
        assert weighted_ky_fan_norm(unit * rows, weights, 10) == pytest.approx(unit**2 * expected, rel=1e-5)


def test_equal_covariances_have_no_distance() -> None:
    rows, weights = difference("the same")
    assert weighted_ky_fan_norm(rows, weights, 10) == pytest.approx(0.0, abs=1e-12)
    assert weighted_ky_fan_norm(0 * rows, weights, 10) == 0.0


def test_what_proves_to_be_no_eigenvector_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = difference("falling")
    monkeypatch.setattr(module, "krylov_eigenvectors", lambda *_, **__: torch.eye(DIMENSION)[-10:])
    assert weighted_ky_fan_norm(rows, weights, 10) == pytest.approx(singular_values(rows, weights, 10), rel=1e-9)
