"""Draws from factored Gaussians: their moments, and that no scale breaks them."""

import numpy as np
import pytest
import torch

from cpaan.math.linear_gaussian import add_centers, draw_gaussian, draw_mixed, to_unit

NUMBER = 200_000


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("rank", [1, 3, 7])
def test_draws_have_the_covariance_of_their_factor(scale: float, rank: int) -> None:
    factor = scale * torch.randn(rank, 3, generator=generator(), dtype=torch.double)
    drawn = draw_gaussian(factor, NUMBER, generator(), torch.double) / scale
    expected = (factor.T @ factor / scale**2).numpy()
    tolerance = 0.02 * np.abs(expected).max()
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=tolerance)
    np.testing.assert_allclose(drawn.mean(0), np.zeros(3), atol=tolerance)


def test_mixed_draws_have_the_mean_covariance_of_their_classes() -> None:
    factors = torch.randn(2 + 4 + 1, 3, generator=generator())
    ranks = torch.tensor([2, 4, 1])
    parts = [part.double() for part in factors.split(ranks.tolist())]
    classes = torch.tensor([[0, 2], [2, 1]]).repeat_interleave(NUMBER, 0)
    drawn = draw_mixed(factors, ranks, classes, generator()).double()
    for rows, (i, j) in zip(drawn.split(NUMBER), [(0, 2), (2, 1)], strict=True):
        expected = (parts[i].T @ parts[i] + parts[j].T @ parts[j]) / 2
        np.testing.assert_allclose(np.cov(rows.T), expected, atol=0.03)
    assert np.abs(np.corrcoef(drawn[:NUMBER, 0], drawn[NUMBER:, 0])[0, 1]) < 0.01


def test_units_fit_a_narrow_type() -> None:
    values = torch.tensor([[3e30, -1e30]], dtype=torch.double)
    unit, size = to_unit(values, torch.half)
    assert unit.dtype == torch.half
    torch.testing.assert_close(unit.double() * size, values, rtol=1e-3, atol=0.0)
    assert to_unit(torch.zeros(2), torch.half)[1] == 1.0


def test_centers_are_added_class_by_class() -> None:
    centers = torch.arange(6.0, dtype=torch.double).reshape(3, 2)
    found = add_centers(torch.ones(5, 2), centers, torch.tensor([3, 0, 2]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, 1 + centers.float()[[0, 0, 0, 2, 2]])


def test_the_generator_alone_decides_a_draw() -> None:
    factors, ranks = torch.randn(3, 2, generator=generator()), torch.tensor([2, 1])
    mixed = torch.tensor([[0, 1], [1, 0]])

    def draws(seed: int) -> list[torch.Tensor]:
        source = torch.Generator().manual_seed(seed)
        return [draw_gaussian(factors, 4, source, torch.double), draw_mixed(factors, ranks, mixed, source)]

    for one, again, other in zip(draws(1), draws(1), draws(2), strict=True):
        assert torch.equal(one, again)
        assert not torch.equal(one, other)


def test_every_center_needs_its_number() -> None:
    for n_centers in (1, 3):
        with pytest.raises(ValueError, match="zip"):
            add_centers(torch.zeros(3, 1), torch.ones(n_centers, 1), torch.tensor([2, 1]))
