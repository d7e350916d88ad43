from pathlib import Path

import numpy as np

from cpaan.evaluation.sample import read_sample
from cpaan.reporting.maps import in_the_plane, map_features, principal_components


def test_neighbours_stay_neighbours() -> None:
    rng = np.random.default_rng(0)
    centers = 20 * rng.normal(size=(4, 1, 30))
    places = in_the_plane((centers + rng.normal(size=(4, 25, 30))).reshape(-1, 30))
    assert places.shape == (100, 2)
    assert places.min() == 0
    assert places.max() == 1
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + 9 * np.eye(100)
    assert (distances.argmin(1) // 25 == np.arange(100) // 25).all()


def test_copies_lie_on_one_another_and_few_points_are_placed_as_well() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 5))
    places = in_the_plane(np.concatenate([rows, rows[:1].repeat(30, axis=0)]))
    assert np.ptp(places[20:], axis=0).max() == 0
    assert (places[20] == places[0]).all()
    assert np.isfinite(in_the_plane(rng.normal(size=(3, 5)))).all()
    assert np.isfinite(in_the_plane(np.ones((9, 1)))).all()


def test_principal_components_are_those_of_the_covariance() -> None:
    x = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
    np.testing.assert_allclose(principal_components(x, 3).var(0), values[:3])


def test_a_map_of_many_points_is_thinned_alike(run: Path) -> None:
    sample = read_sample(run, ("c-gan", "smote"))
    assert sample is not None
    whole, thin = map_features(sample), map_features(sample, most=120)
    assert len(whole.kept) == len(sample.real.real)
    assert len(thin.kept) < len(whole.kept)
    assert set(thin.real[1]) == set(range(len(sample.real.classes)))
    assert len(thin.kept) + sum(map(len, thin.kept_made.values())) + len(sample.real.shots) <= 120
    assert (thin.made["smote"][1] == sample.made["smote"].made_labels[thin.kept_made["smote"]]).all()
