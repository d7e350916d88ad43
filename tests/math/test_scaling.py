import pytest
import torch

from cpaan.math.prototypes import mean_within_class_distance
from cpaan.math.scaling import fit_scaling


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("center", [True, False])
def test_scaling_gives_the_wanted_within_class_distance_and_can_be_undone(scale: float, center: bool) -> None:
    features = (torch.randn(40, 3, dtype=torch.double) + 5) * scale
    labels = torch.arange(40) % 4
    scaling = fit_scaling(features, labels, 4, within_distance=0.163, center=center)
    scaled = scaling.apply(features)
    assert mean_within_class_distance(scaled, labels, 4) == pytest.approx(0.163)
    assert bool(scaled.mean().abs() < 1e-9) == center
    torch.testing.assert_close(scaling.undo(scaled), features, rtol=1e-12, atol=0)


def test_classes_that_do_not_vary_are_scaled_by_what_lies_between_them() -> None:
    features = torch.tensor([[0.0], [0.0], [4.0], [4.0]], dtype=torch.double)
    scaling = fit_scaling(features, torch.tensor([0, 0, 1, 1]), 2, within_distance=1.0, center=False)
    assert 0 < scaling.factor < 1


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e20])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("copies", [2, 3, 7])
def test_features_that_do_not_vary_at_all_are_scaled_by_their_size(scale: float, center: bool, copies: int) -> None:
    # a mean of three equal numbers may differ from them by rounding: in large units that is a large number
    features = torch.full((2 * copies, 5), 100.1 * scale, dtype=torch.double)
    labels = torch.arange(2).repeat_interleave(copies)
    scaling = fit_scaling(features, labels, 2, within_distance=0.5, center=center)
    expected = 0.0 if center or scale == 0 else 0.5
    torch.testing.assert_close(scaling.apply(features), torch.full_like(features, expected), rtol=0, atol=1e-12)


def test_variation_below_rounding_is_not_blown_up() -> None:
    features = torch.tensor([[1.0], [1.0 + 2e-16], [3.0], [3.0]], dtype=torch.double)
    scaling = fit_scaling(features, torch.tensor([0, 0, 1, 1]), 2, within_distance=1.0, center=True)
    assert float(scaling.apply(features).abs().max()) < 10
