"""Standardised features have mean zero and mean square one, in any unit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpaan.math.scaling import fit_standardization


@given(st.floats(-100, 100), st.floats(-10, 10))
def test_units_and_place_do_not_matter(exponent: float, shift: float) -> None:
    features = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given_features = (features + shift) * 10**exponent
    found = fit_standardization(given_features).apply(given_features)
    assert found.mean(0).abs().max() < 1e-9
    assert float(found.square().mean()) == pytest.approx(1.0)
    centred = features - features.mean(0)
    torch.testing.assert_close(found, centred / centred.square().mean().sqrt(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 1e-30, 0.1, 1e30])
def test_features_that_do_not_vary_stay_finite_and_small(value: float) -> None:
    features = torch.full((7, 4), value, dtype=torch.float64)
    scaling = fit_standardization(features)
    assert scaling.apply(features).abs().max() < 1e-9
    assert scaling.apply(2 * features).abs().max() <= 1 + 1e-9


@pytest.mark.parametrize("n", [1, 7])
def test_features_of_zero_stay_in_their_unit(n: int) -> None:
    scaling = fit_standardization(torch.zeros(n, 4, dtype=torch.float64))
    assert scaling.factor == 1.0
    assert torch.equal(scaling.origin, torch.zeros(4, dtype=torch.float64))
