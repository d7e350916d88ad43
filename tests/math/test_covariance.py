import numpy as np
import pytest
import torch

from cpaan.math.covariance import (
    covariance,
    deviation_factor,
    leading_rows,
    quick_truncated_factors,
    truncated_factor,
)


def test_covariance_is_the_population_covariance() -> None:
    x = torch.randn(2, 9, 4, dtype=torch.double)
    for batch in range(2):
        np.testing.assert_allclose(covariance(x)[batch], np.cov(x[batch].T, bias=True))


def test_weights_are_repetitions() -> None:
    x = torch.randn(3, 2, dtype=torch.double)
    repeated = covariance(x[[0, 0, 0, 1, 2, 2]])
    factor = deviation_factor(x, torch.tensor([3.0, 1.0, 2.0], dtype=torch.double))
    torch.testing.assert_close(factor.T @ factor, repeated)


def test_examples_of_weight_zero_do_not_count() -> None:
    x = torch.randn(5, 3, dtype=torch.double)
    factor = deviation_factor(x, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.double))
    torch.testing.assert_close(factor.T @ factor, covariance(x[:3]))


def test_no_weight_at_all_gives_zero_and_a_finite_gradient() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    factor = deviation_factor(x, torch.zeros(5))
    factor.square().sum().backward()
    assert (factor == 0).all()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("n", [3, 6, 40])
@pytest.mark.parametrize("rank", [2, 6, 50])
def test_truncated_factor_is_the_best_of_its_rank(n: int, rank: int) -> None:
    x = torch.randn(n, 6, dtype=torch.double)
    factor = truncated_factor(x, rank)
    assert factor.shape == (rank, 6)
    values, vectors = np.linalg.eigh(np.cov(x.numpy().T, bias=True))
    best = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    np.testing.assert_allclose(factor.T @ factor, best, atol=1e-10)


@pytest.mark.parametrize("sizes", [[3, 2], [6, 4], [30, 17, 1], [80, 79, 5]])
@pytest.mark.parametrize("rank", [2, 6, 50])
def test_quick_factors_of_all_variance_are_those_of_the_covariance(sizes: list[int], rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    classes = [torch.randn(n, 6, generator=generator, dtype=torch.double) for n in sizes]
    factors = quick_truncated_factors(classes, rank)
    assert factors.shape == (len(sizes), rank, 6)
    for examples, factor in zip(classes, factors, strict=True):
        values, vectors = np.linalg.eigh(np.cov(examples.numpy().T, bias=True).reshape(6, 6))
        best = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
        np.testing.assert_allclose(factor.T @ factor, best, atol=1e-10)


@pytest.mark.parametrize("n", [90, 200])
@pytest.mark.parametrize("decay", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_quick_factors_lose_hardly_any_variance(n: int, decay: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    spectrum = scale * torch.arange(1, 121) ** -decay
    classes = [torch.randn(n, 120, generator=generator) * spectrum for _ in range(3)]
    quick = quick_truncated_factors(classes, 10)
    exact = torch.stack([truncated_factor(examples, 10) for examples in classes])
    shares = quick.square().sum((1, 2)) / exact.square().sum((1, 2))
    assert shares.min() > 0.998
    assert shares.max() < 1 + 1e-5


def test_quick_factors_of_classes_that_do_not_vary_are_zero() -> None:
    factors = quick_truncated_factors([torch.ones(40, 30), torch.ones(3, 30)], 5)
    assert torch.isfinite(factors).all()
    assert factors.abs().max() < 1e-6


def test_quick_factors_are_the_same_twice_and_leave_the_global_generator_alone() -> None:
    classes = [torch.randn(90, 120, generator=torch.Generator().manual_seed(0))]
    before = torch.get_rng_state()
    first = quick_truncated_factors(classes, 10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(quick_truncated_factors(classes, 10), first)


def test_leading_rows_beyond_the_dimension_are_zero() -> None:
    factor = torch.randn(9, 4, dtype=torch.double)
    rows = leading_rows(factor, 7)
    assert rows.shape == (7, 4)
    assert (rows[4:] == 0).all()
    torch.testing.assert_close(rows.T @ rows, factor.T @ factor)
