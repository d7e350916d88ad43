"""The linear classifier against scikit-learn, and its optimality conditions."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from cpaan.classifiers import LinearClassifier
from cpaan.errors import InputError

FloatArray = npt.NDArray[np.float64]


def blobs(n_classes: int, n: int, n_features: int) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    generator = np.random.default_rng(1)
    labels = np.arange(n) % n_classes
    spread = np.linspace(0.1, 2.0, n_features)
    centres = generator.normal(size=(n_classes, n_features)) + 3.0
    return centres[labels] + spread * generator.normal(size=(n, n_features)), labels


def objective(
    parameters: tuple[FloatArray, FloatArray], X: FloatArray, y: Any, weights: FloatArray, weight_decay: float
) -> float:
    W, b = parameters
    losses = [-weights[row] * log_softmax(X[row] @ W.T + b)[y[row]] for row in range(len(y))]
    return float(sum(losses) / weights.sum() + weight_decay / 2 * (W**2).sum())


@pytest.mark.parametrize("weight_decay", [1e-1, 1e-3])
@pytest.mark.parametrize(("n", "n_features"), [(150, 12), (40, 90)], ids=["tall", "wide"])
@pytest.mark.parametrize("n_classes", [2, 6])
def test_probabilities_against_scikit_learn(weight_decay: float, n: int, n_features: int, n_classes: int) -> None:
    X, y = blobs(n_classes, n, n_features)
    queries = X + np.random.default_rng(2).normal(size=X.shape)
    weights = np.random.default_rng(3).uniform(0.2, 3.0, n)
    # Two classes: scikit-learn penalises one vector w = W_1 − W_0, for which ‖W‖² = ‖w‖² / 2 at the optimum.
    inverse = (2 if n_classes == 2 else 1) / (weights.sum() * weight_decay)
    reference: Any = LogisticRegression(C=inverse, tol=1e-10, solver="newton-cholesky")
    expected = reference.fit(X, y, sample_weight=weights)
    found = LinearClassifier(weight_decay=weight_decay).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(found.predict_proba(queries), expected.predict_proba(queries), atol=1e-3)
    if n_classes > 2:
        np.testing.assert_allclose(found.coef_, expected.coef_, atol=2e-3 * np.abs(expected.coef_).max())


@pytest.mark.parametrize(("n", "n_features"), [(30, 4), (10, 15)], ids=["tall", "wide"])
def test_the_stated_objective_is_least_at_the_solution(n: int, n_features: int) -> None:
    X, y = blobs(3, n, n_features)
    weights = np.random.default_rng(4).uniform(0.5, 2.0, n)
    found = LinearClassifier(weight_decay=0.02, tolerance=1e-9).fit(X, y, sample_weight=weights)
    least = objective((found.coef_, found.intercept_), X, y, weights, 0.02)
    generator = np.random.default_rng(5)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            W = found.coef_ + size * generator.normal(size=found.coef_.shape)
            b = found.intercept_ + size * generator.normal(size=3)
            assert objective((W, b), X, y, weights, 0.02) > least


def test_the_intercept_is_not_penalised() -> None:
    # Where features say nothing, the intercept alone gives the class frequencies, however strong the decay.
    X, y = np.ones((10, 2)), np.array([0] * 7 + [1] * 2 + [2])
    found = LinearClassifier(weight_decay=100.0).fit(X, y)
    np.testing.assert_allclose(found.predict_proba(X[:1])[0], [0.7, 0.2, 0.1], atol=1e-5)
    np.testing.assert_allclose(found.coef_, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.intercept_.sum(), 0.0, atol=1e-12)


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_the_unit_of_the_features_can_be_traded_for_weight_decay(unit: float) -> None:
    X, y = blobs(4, 80, 6)
    expected = LinearClassifier(weight_decay=1e-2).fit(X, y).predict_proba(X)
    found = LinearClassifier(weight_decay=1e-2 * unit**2).fit(unit * X, y).predict_proba(unit * X)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_warning_tells_that_the_steps_were_too_few() -> None:
    X, y = blobs(5, 100, 10)
    with pytest.warns(ConvergenceWarning, match=r"not converged in 2 steps.*max_iterations \(2\)"):
        found = LinearClassifier(max_iterations=2).fit(X, y)
    assert found.n_iterations_ == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = LinearClassifier().fit(X, y)
    assert 2 < found.n_iterations_ < 300


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": -1.0},
        {"weight_decay": np.nan},
        {"weight_decay": np.inf},
        {"max_iterations": 0},
        {"tolerance": 0.0},
        {"tolerance": np.nan},
    ],
)
def test_wrong_settings_are_named_in_fit(settings: dict[str, Any]) -> None:
    classifier = LinearClassifier(**settings)
    with pytest.raises(InputError, match=next(iter(settings))):
        classifier.fit([[0.0], [1.0]], [0, 1])
