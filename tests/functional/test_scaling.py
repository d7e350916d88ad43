import pytest
import torch

from cpaan.functional.distances import mean_within_class_distance
from cpaan.functional.scaling import fit_scaling


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


def test_features_that_do_not_vary_at_all_keep_their_scale() -> None:
    features = torch.full((4, 2), 7.0)
    assert fit_scaling(features, torch.tensor([0, 0, 1, 1]), 2, within_distance=1.0, center=True).factor == 1.0
