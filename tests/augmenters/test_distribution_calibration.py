"""Distribution calibration: moments of huge samples against the paper's formulas, computed directly."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cpaan import InputError
from cpaan.augmenters.distribution_calibration import DistributionCalibration, gaussian_factor

FloatArray = npt.NDArray[np.float64]
D, MANY = 3, 100_000


def positive_base(seed: int = 0) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Draw five classes whose features are far above zero, so that no draw is clipped."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(5), [2, 3, 20, 30, 40])
    mixing = rng.normal(size=(5, D, D)) / 4
    noise = np.einsum("nd,nde->ne", rng.normal(size=(len(y), D)), mixing[y])
    return rng.uniform(8, 14, size=(5, D))[y] + noise, y


def calibrated(
    shot: FloatArray, X: FloatArray, y: npt.NDArray[np.int64], *, power: float, k: int, transform_base: bool
) -> tuple[FloatArray, FloatArray, float]:
    """Give μ', Σ' without α, and the mean variance of base classes: the paper's equations, one line each."""
    base = X**power if transform_base else X
    parts = [base[y == c] for c in np.unique(y)]
    means, covariances = [p.mean(0) for p in parts], [np.cov(p.T) for p in parts]
    nearest = np.argsort([np.linalg.norm(shot**power - mean) for mean in means])[:k]
    mean = (sum(means[i] for i in nearest) + shot**power) / (k + 1)
    covariance = sum(covariances[i] for i in nearest) / k
    return mean, covariance, float(np.mean([np.trace(c) / D for c in covariances]))


@pytest.mark.parametrize(
    ("settings", "power", "k"),
    [
        ({}, 0.5, 2),
        ({"power": 1, "alpha_place": "diagonal"}, 1.0, 2),
        ({"power": 0.5, "transform_base": False, "alpha_unit": "feature"}, 0.5, 2),  # the paper's own
        ({"power": 0.5, "neighbors": 3, "alpha": 0.01, "alpha_unit": "feature"}, 0.5, 3),
        ({"power": 0.7, "neighbors": 9}, 0.7, 5),
    ],
)
def test_examples_of_each_shot_have_the_calibrated_mean_and_covariance(
    settings: dict[str, Any], power: float, k: int
) -> None:
    X, y = positive_base()
    shots = np.array([X[3], X[60] + 1])
    augmenter = DistributionCalibration(random_state=0, **settings).fit(X, y)
    made, _ = augmenter.augment(shots, ["new", "new"], per_class=2 * MANY)
    for shot, part in zip(shots, np.split(made**power, 2), strict=True):
        mean, covariance, variance = calibrated(
            shot, X, y, power=power, k=k, transform_base=settings.get("transform_base", True)
        )
        alpha = settings.get("alpha", 0.21) * (1.0 if settings.get("alpha_unit") == "feature" else variance)
        everywhere = settings.get("alpha_place") != "diagonal"
        expected = covariance + alpha * (np.ones((D, D)) if everywhere else np.eye(D))
        np.testing.assert_allclose(part.mean(0), mean, atol=0.02 * np.sqrt(expected.max()))
        np.testing.assert_allclose(np.cov(part.T), expected, atol=0.03 * expected.max())


def test_shots_of_a_class_have_equal_parts() -> None:
    X, y = positive_base()
    X = np.stack([X[y == c].mean(0) for c in range(5)])[y]  # no class varies, so that examples are means
    shots = X[[0, 5, 60]] + np.array([[0.0], [1.0], [2.0]])
    made, _ = DistributionCalibration(random_state=0).fit(X, y).augment(shots, ["new"] * 3, per_class=8)
    means = np.array([calibrated(shot, X, y, power=0.5, k=2, transform_base=True)[0] for shot in shots])
    np.testing.assert_allclose(np.sqrt(made), means[[0, 0, 0, 1, 1, 1, 2, 2]])


def test_signed_features_stay_as_they_are_and_take_a_signed_power_when_told() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, D)), np.repeat(np.arange(3), 20)
    assert DistributionCalibration().fit(X, y).power_ == 1
    assert DistributionCalibration().fit(np.abs(X), y).power_ == 0.5
    augmenter = DistributionCalibration(power=0.5, alpha=0, neighbors=1, random_state=0).fit(X, y)
    made, _ = augmenter.augment([[4.0, -4.0, 0.0]], ["new"], per_class=MANY)
    rooted = np.sign(X) * np.sqrt(np.abs(X))
    parts = [rooted[y == c] for c in range(3)]
    nearest = min(parts, key=lambda part: float(np.linalg.norm(part.mean(0) - [2.0, -2.0, 0.0])))
    drawn = np.sign(made) * np.sqrt(np.abs(made))
    np.testing.assert_allclose(2 * drawn.mean(0) - nearest.mean(0), [2.0, -2.0, 0.0], atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(nearest.T), atol=0.02)


def test_features_that_are_never_negative_give_none_that_are() -> None:
    rng = np.random.default_rng(0)
    X = np.maximum(rng.normal(size=(60, D)), 0)
    made, _ = DistributionCalibration(random_state=0).fit(X, np.repeat(np.arange(3), 20)).augment(X[:2], ["n", "n"])
    assert made.min() == 0


def test_units_do_not_matter_but_in_the_literal_setting() -> None:
    X, y = positive_base()
    shots, names = X[:2] + 1, ["new", "new"]
    literal: dict[str, Any] = {"power": 0.5, "transform_base": False, "alpha_unit": "feature"}
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), (literal, False)]
    for settings, expected in cases:
        here, _ = DistributionCalibration(random_state=0, **settings).fit(X, y).augment(shots, names)
        there, _ = DistributionCalibration(random_state=0, **settings).fit(1e6 * X, y).augment(1e6 * shots, names)
        assert np.allclose(there, 1e6 * here, rtol=1e-3) is expected


@pytest.mark.parametrize("n", [1, 2, D, 50])
def test_factors_have_few_rows_and_the_covariance_of_their_class(n: int) -> None:
    examples = np.random.default_rng(n).normal(size=(n, D))
    factor = gaussian_factor(torch.tensor(examples))
    assert len(factor) <= max(n if n < D else D, 1)
    expected = np.cov(examples.T) if n > 1 else np.zeros((D, D))
    np.testing.assert_allclose(factor.T @ factor, expected, atol=1e-12)


def test_wrong_settings_are_named() -> None:
    X, y = positive_base()
    wrong: dict[str, dict[str, Any]] = {
        'power must be "auto" or a number above 0, not 0': {"power": 0},
        "power must be \"auto\" or a number above 0, not 'sqrt'": {"power": "sqrt"},
        "alpha must be a number of at least 0, not -1": {"alpha": -1},
        "neighbors is 0; give a whole number": {"neighbors": 0},
        "unknown alpha_unit 'meter'; choose one of variance, feature": {"alpha_unit": "meter"},
        "unknown alpha_place 'row'; choose one of everywhere, diagonal": {"alpha_place": "row"},
    }
    for message, settings in wrong.items():
        with pytest.raises(InputError, match=message):
            DistributionCalibration(**settings).fit(X, y)
