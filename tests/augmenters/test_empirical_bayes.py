"""Empirical Bayes: moments of its examples against the formulas, and that shrinking pays where the model holds."""

import numpy as np
import numpy.typing as npt
import pytest

from cpaan import EmpiricalBayes, InputError

FloatArray = npt.NDArray[np.float64]
D = 3


def drawn_classes(n_classes: int, per_class: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Draw centres and examples of a two-covariance model: (C, D) and (C, per_class, D)."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, D)) * [5.0, 1.0, 0.2] + 10
    noise = rng.normal(size=(n_classes, per_class, D)) * [1.0, 2.0, 3.0]
    return centres, centres[:, None] + noise


def ridged(covariance: FloatArray, ridge: float) -> FloatArray:
    found: FloatArray = covariance + ridge * np.trace(covariance) / D * np.eye(D)
    return found


def base_covariances(examples: FloatArray) -> tuple[FloatArray, FloatArray]:
    n = examples.shape[1]
    within = np.mean([np.cov(part.T) for part in examples], axis=0)
    values, vectors = np.linalg.eigh(np.cov(examples.mean(1).T) - within / n)
    return (vectors * np.maximum(values, 0)) @ vectors.T, within


@pytest.mark.parametrize("spread", ["within", "predictive"])
@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_examples_have_the_moments_of_the_model(spread: str, ridge: float) -> None:
    _, examples = drawn_classes(30, 12)
    augmenter = EmpiricalBayes(spread=spread, ridge=ridge, random_state=0)
    augmenter.fit(examples.reshape(-1, D), np.repeat(np.arange(30), 12))
    shots = {"one": np.array([[14.0, 16.0, 3.0]]), "three": np.random.default_rng(1).normal(size=(3, D)) + 12}
    X, y = np.concatenate(list(shots.values())), ["one", "three", "three", "three"]
    made, names = augmenter.augment(X, y, per_class=200_000)
    between, within = base_covariances(examples)
    mean, prior, noise = examples.mean((0, 1)), ridged(between, ridge), ridged(within, ridge)
    for name, of_class in shots.items():
        gain = prior @ np.linalg.inv(prior + noise / len(of_class))
        found = made[names == name]
        np.testing.assert_allclose(found.mean(0), mean + gain @ (of_class.mean(0) - mean), atol=0.05)
        expected = within + (prior - gain @ prior if spread == "predictive" else 0)
        np.testing.assert_allclose(np.cov(found.T), expected, atol=0.02 * np.abs(expected).max())


def test_the_posterior_mean_is_nearer_to_true_centres_than_the_shots() -> None:
    _, examples = drawn_classes(60, 30)
    augmenter = EmpiricalBayes(random_state=0).fit(examples.reshape(-1, D), np.repeat(np.arange(60), 30))
    centres, novel = drawn_classes(200, 20, seed=1)
    errors = {}
    for K in (1, 5, 20):
        shots = novel[:, :K]
        made, _ = augmenter.augment(shots.reshape(-1, D), np.repeat(np.arange(100, 300), K), per_class=400)
        errors[K] = [np.square(m - centres).mean() for m in (made.reshape(200, 400, D).mean(1), shots.mean(1))]
    assert errors[1][0] < 0.6 * errors[1][1]
    assert errors[5][0] < 0.9 * errors[5][1]
    assert errors[20][0] < 1.02 * errors[20][1]  # and does no harm where there are many


def test_after_a_single_base_class_examples_lie_about_the_shots() -> None:
    _, examples = drawn_classes(1, 500)
    augmenter = EmpiricalBayes(random_state=0).fit(examples[0], ["base"] * 500)
    made, _ = augmenter.augment([[-50.0, 0.0, 50.0]], ["new"], per_class=20_000)
    np.testing.assert_allclose(made.mean(0), [-50.0, 0.0, 50.0], atol=0.1)
    np.testing.assert_allclose(made.std(0), examples[0].std(0), rtol=0.03)


def test_wrong_settings_are_named() -> None:
    X, y = [[0.0], [1.0]], ["a", "b"]
    with pytest.raises(InputError, match="ridge must be a number of at least 0, not -1"):
        EmpiricalBayes(ridge=-1).fit(X, y)
    with pytest.raises(InputError, match="unknown spread 'wide'; choose one of within, predictive"):
        EmpiricalBayes(spread="wide").fit(X, y)
