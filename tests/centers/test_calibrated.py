"""Class centres against an obvious formula, and properties that a wrong one would break."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.centers.calibrated import Calibrated, Constants
from cpaan.centers.cross_validation import lengths_about
from cpaan.math.linear_gaussian import class_moments
from cpaan.math.prototypes import prototypes

CHOSEN = Constants(ridge=3.0, shots=(1, 4, 20), lengths=(0.6, 0.8, 0.9), posterior_lengths=(0.5, 0.7, 0.95))
RNG = np.random.default_rng(0)
BASE_LABELS = np.repeat(np.arange(9), 30)
BASE = 3 * RNG.normal(size=(9, 5))[BASE_LABELS] + RNG.normal(size=(270, 5)) + 2
LABELS = np.array([0, 1, 1, 2, 2, 2, 2, 2, 2, 2])
SHOTS = 3 * RNG.normal(size=(3, 5))[LABELS] + RNG.normal(size=(10, 5)) + 2
TEMPERATURE = 7.0


def model_of(base: NDArray[Any], constants: Constants = CHOSEN, temperature: float = TEMPERATURE) -> Calibrated:
    moments = class_moments(torch.tensor(base), torch.tensor(BASE_LABELS), 9)
    length = float(lengths_about(torch.tensor(base), moments.means.mean(0)).mean())
    model = Calibrated().fit_moments(moments, length, constants)
    model.temperature_ = torch.tensor(temperature, dtype=torch.double)
    return model


def centers_of(model: Calibrated, shots: NDArray[Any], labels: NDArray[Any] = LABELS) -> NDArray[Any]:
    found: Tensor = model.estimate(torch.tensor(shots), torch.tensor(labels), int(labels.max()) + 1)
    assert found.dtype == torch.float64
    array: NDArray[Any] = found.numpy()
    return array


def slow_center(shots: NDArray[Any], constants: Constants) -> NDArray[Any]:
    """One class at a time, with covariances and inverses written out."""
    K, D = shots.shape
    means = np.stack([BASE[c == BASE_LABELS].mean(0) for c in range(9)])
    mu = means.mean(0)
    R = np.mean([np.linalg.norm(x - mu) for x in BASE])
    r = np.mean([np.linalg.norm(mean - mu) for mean in means])
    within = sum((x - means[c])[:, None] * (x - means[c])[None] for x, c in zip(BASE, BASE_LABELS, strict=True)) / 261
    values, vectors = np.linalg.eigh(np.cov(means.T) - within / 30)
    between = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    between = between + constants.ridge * np.trace(between) / D * np.eye(D)
    within = within + constants.ridge * np.trace(within) / D * np.eye(D)
    moved = np.mean([mu + R * (x - mu) / np.linalg.norm(x - mu) for x in shots], axis=0)
    m = between @ np.linalg.inv(between + within / K) @ (moved - mu)
    rho = np.interp(np.log(K), np.log(constants.shots), constants.lengths)
    usual = np.interp(np.log(K), np.log(constants.shots), constants.posterior_lengths)
    gamma = 2 / 3 * min(1, 5 / K)
    length = rho * r * (np.linalg.norm(m) / (usual * r)) ** (1 - gamma)
    P = mu + m / np.linalg.norm(m) * length
    weights = np.array([np.exp(-(np.linalg.norm(P - mean) ** 2) / TEMPERATURE) for mean in means])
    v = P - mu + 0.2 / np.sqrt(K) * (weights @ means / weights.sum() - mu)
    found: NDArray[Any] = mu + v / np.linalg.norm(v) * length
    return found


def test_centers_agree_with_the_formula_written_out() -> None:
    expected = np.stack([slow_center(SHOTS[c == LABELS], CHOSEN) for c in range(3)])
    np.testing.assert_allclose(centers_of(model_of(BASE), SHOTS), expected, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_centers_move_with_the_features(scale: float) -> None:
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    shift = 4 * np.ones(5)
    expected = (centers_of(model_of(BASE), SHOTS) @ rotation + shift) * scale
    model = model_of((BASE @ rotation + shift) * scale, temperature=TEMPERATURE * scale**2)
    np.testing.assert_allclose(centers_of(model, (SHOTS @ rotation + shift) * scale), expected, rtol=1e-7)


def test_the_length_of_a_shot_does_not_matter() -> None:
    model = model_of(BASE)
    mu = model.mean_.numpy()
    np.testing.assert_allclose(centers_of(model, mu + 5 * (SHOTS - mu)), centers_of(model, SHOTS), rtol=1e-9)


def test_order_and_other_classes_do_not_matter() -> None:
    model, order = model_of(BASE), np.random.default_rng(2).permutation(10)
    together = centers_of(model, SHOTS)
    np.testing.assert_allclose(centers_of(model, SHOTS[order], LABELS[order]), together, rtol=1e-12)
    alone = centers_of(model, SHOTS[LABELS == 1], np.zeros(2, dtype=int))
    np.testing.assert_allclose(alone[0], together[1], rtol=1e-12)


def test_many_shots_give_the_direction_of_their_mean() -> None:
    model = model_of(BASE)
    mu = model.mean_.numpy()
    shots = mu + np.array([3.0, 1, 0, -2, 1]) + RNG.normal(size=(200_000, 5)) / 10
    found = centers_of(model, shots, np.zeros(len(shots), dtype=int))[0] - mu
    wanted = shots.mean(0) - mu
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) > 1 - 1e-5


def test_centers_are_nearer_to_the_truth_than_means_of_shots() -> None:
    truth = 3 * RNG.normal(size=(300, 5)) + 2
    shots = truth + RNG.normal(size=truth.shape) * 2
    found = centers_of(model_of(BASE, Constants()), shots, np.arange(300))
    plain = np.linalg.norm(shots - truth, axis=1).mean()
    # Not asserted of each class: an estimate that uses base classes is better on average.
    assert np.linalg.norm(found - truth, axis=1).mean() < plain


def test_without_chosen_lengths_the_posterior_keeps_its_own() -> None:
    plain = model_of(BASE, Constants(ridge=1.0))
    lengths = lengths_about(torch.tensor(centers_of(plain, SHOTS)), plain.mean_)
    assert (lengths < plain.example_length_).all()
    assert (lengths > 0).all()


@pytest.mark.parametrize("kind", ["constant", "one feature", "one mean", "at the mean"])
def test_odd_features_give_finite_centers(kind: str) -> None:
    base, shots = BASE.copy(), SHOTS.copy()
    if kind == "constant":
        base[:] = 3.0
    if kind == "one feature":
        base[:, 1:] = 0.0
    if kind == "one mean":
        base = np.tile(RNG.normal(size=(30, 5)), (9, 1))
    model = model_of(base)
    if kind == "at the mean":
        shots[0] = model.mean_.numpy()
    found = centers_of(model, shots)
    assert np.isfinite(found).all()
    if kind in ("constant", "one mean"):
        expected = prototypes(torch.tensor(shots), torch.tensor(LABELS), 3)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_one_base_class_tells_directions_only_by_the_shots() -> None:
    moments = class_moments(torch.tensor(BASE[:30]), torch.zeros(30, dtype=torch.long), 1)
    model = Calibrated().fit_moments(moments, 1.0, CHOSEN)
    np.testing.assert_allclose(centers_of(model, SHOTS), prototypes(torch.tensor(SHOTS), torch.tensor(LABELS), 3))


def test_noise_falls_with_the_shots_and_grows_with_the_ridge() -> None:
    found = model_of(BASE).uncertainty(torch.tensor([1, 2, 3, 5, 10, 500])).sizes
    assert (found.diff() <= 0).all()
    assert found[-1] == 0
    assert float(found[0]) == pytest.approx(1.78 * (3**0.5 - 1) * model_of(BASE).within_deviation_)
    many = model_of(BASE, Constants(ridge=100.0))
    assert float(many.uncertainty(torch.tensor([1])).sizes) == pytest.approx(1.78 * 9 * many.within_deviation_)
    for ridge in (0.3, 1.0):
        assert not model_of(BASE, Constants(ridge=ridge)).uncertainty(torch.tensor([1, 5])).sizes.any()


def test_classes_that_differ_less_than_their_examples_still_tell_of_lengths() -> None:
    base = RNG.normal(size=(9, 5))[BASE_LABELS] / 2 + RNG.normal(size=(270, 5))
    model = model_of(base, Constants(ridge=0.01))
    assert float(model.ratios_.max()) < 1
    means = np.stack([base[c == BASE_LABELS].mean(0) for c in range(9)])
    assert float(model.center_length_) == pytest.approx(np.linalg.norm(means - means.mean(0), axis=1).mean())


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0])
def test_the_deviation_within_classes_is_in_the_unit_of_a_feature(scale: float) -> None:
    examples = scale * BASE.reshape(9, 30, 5)
    variance = examples.var(axis=1, ddof=1).mean()  # classes of one size: the mean of their variances is the pooled one
    assert model_of(scale * BASE).within_deviation_ == pytest.approx(variance**0.5)
