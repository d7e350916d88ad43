"""The linear classifier against scikit-learn, and its optimality conditions."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from cpaan.classifiers import LinearClassifier, linear
from cpaan.classifiers import linear_problem as linear_search
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
        {"precision": "half"},
        {"max_passes": 0},
    ],
)
def test_wrong_settings_are_named_in_fit(settings: dict[str, Any]) -> None:
    classifier = LinearClassifier(**settings)
    with pytest.raises(InputError, match=next(iter(settings))):
        classifier.fit([[0.0], [1.0]], [0, 1])


def confused_classes(
    counts: list[int], n_features: int, *, distance: float = 0.5, seed: int = 6
) -> tuple[FloatArray, Any, FloatArray, Any]:
    """Draw overlapping classes of unequal spread, and many more examples to measure accuracy by."""
    generator = np.random.default_rng(seed)
    scales = np.geomspace(0.1, 3.0, n_features)
    centres = distance * scales * generator.normal(size=(len(counts), n_features))
    spreads = scales * generator.uniform(0.5, 1.5, size=(len(counts), n_features))
    labels, queries = np.repeat(np.arange(len(counts)), counts), np.repeat(np.arange(len(counts)), 400)
    noise, query_noise = (generator.normal(size=(len(y), n_features)) for y in (labels, queries))
    features = centres[labels] + spreads[labels] * noise
    return features, labels, centres[queries] + spreads[queries] * query_noise, queries


def isotropic_centres(counts: list[int], n_features: int, seed: int) -> tuple[FloatArray, Any, FloatArray, Any]:
    """Draw classes that only the directions of small spread tell apart, which is where a search comes last."""
    X, y, queries, expected = confused_classes(counts, n_features, distance=0.0, seed=seed)
    centres = 0.7 * np.random.default_rng(seed).normal(size=(len(counts), n_features))
    return X + centres[y], y, queries + centres[expected], expected


def accuracies(data: tuple[FloatArray, Any, FloatArray, Any], weight_decay: float) -> tuple[float, float]:
    X, y, queries, expected = data
    reference: Any = LogisticRegression(C=1 / (len(y) * weight_decay), tol=1e-6, max_iter=2000)
    found: Any = LinearClassifier(weight_decay=weight_decay, precision="single").fit(X.astype(np.float32), y)
    assert found.n_passes_ <= 20
    return 100 * found.score(queries, expected), 100 * reference.fit(X, y).score(queries, expected)


@pytest.mark.parametrize("weight_decay", [1e-2, 1e-3, 1e-4])
def test_accuracy_in_single_precision_against_scikit_learn(weight_decay: float) -> None:
    found, expected = accuracies(confused_classes([100] * 50, 32), weight_decay)
    assert found == pytest.approx(expected, abs=0.2)
    assert 20 < expected < 95


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # right for one of them: it just ends
@pytest.mark.parametrize("seed", [6, 7, 8])
def test_accuracy_with_classes_of_very_different_size_against_scikit_learn(seed: int) -> None:
    found, expected = accuracies(isotropic_centres([200] * 30 + [5] * 20, 32, seed), 1e-3)
    assert found == pytest.approx(expected, abs=0.2)


def test_probabilities_in_single_precision_approach_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_search, "NEGLIGIBLE_GAIN", 1e-9)
    X, y, queries, _ = confused_classes([60] * 10, 12)
    settings: dict[str, Any] = {"weight_decay": 1e-3, "max_passes": 200}
    exact = LinearClassifier(**settings).fit(X + 1e3, y)
    single = LinearClassifier(**settings, precision="single").fit(X + 1e3, y)
    np.testing.assert_allclose(single.predict_proba(queries + 1e3), exact.predict_proba(queries + 1e3), atol=1e-3)
    np.testing.assert_allclose(single.intercept_.sum(), 0.0, atol=1e-8)
    np.testing.assert_allclose(single.coef_.sum(axis=0), 0.0, atol=1e-8)


def test_single_precision_for_any_unit_and_without_variance() -> None:
    X, y, queries, _ = confused_classes([30] * 4, 6)
    expected = LinearClassifier(precision="single").fit(X, y).predict_proba(queries)
    for unit in (1e-30, 1e30):
        found = LinearClassifier(precision="single", weight_decay=1e-3 * unit**2).fit(unit * X, y)
        np.testing.assert_allclose(found.predict_proba(unit * queries), expected, atol=1e-3)
    flat = LinearClassifier(precision="single").fit(np.ones((10, 2)), [0] * 7 + [1] * 2 + [2])
    np.testing.assert_allclose(flat.predict_proba([[1.0, 1.0]])[0], [0.7, 0.2, 0.1], atol=0.02)


def test_large_problems_alone_are_solved_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(4, 100, 6)
    exact = LinearClassifier(precision="double").fit(X, y)
    np.testing.assert_array_equal(LinearClassifier().fit(X, y).coef_, exact.coef_)
    monkeypatch.setattr(linear, "LARGE", X.size * 4)
    single = LinearClassifier(precision="single").fit(X, y)
    np.testing.assert_array_equal(LinearClassifier().fit(X, y).coef_, single.coef_)
    assert not np.array_equal(single.coef_, exact.coef_)


@pytest.mark.parametrize("precision", ["double", "single"])
def test_training_twice_gives_the_same(precision: str) -> None:
    X, y, _, _ = confused_classes([50] * 10, 20)
    first, second = (LinearClassifier(precision=precision).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    np.testing.assert_array_equal(first.intercept_, second.intercept_)
    assert first.n_passes_ == second.n_passes_


@pytest.mark.parametrize("precision", ["double", "single"])
def test_a_warm_start_reaches_the_same_in_fewer_passes(precision: str) -> None:
    X, y, queries, _ = confused_classes([100] * 20, 16)
    names = np.array([f"class {index}" for index in range(20)])[y]
    few = np.random.default_rng(7).random(len(y)) < 0.9
    cold = LinearClassifier(precision=precision).fit(X, names)
    expected = cold.predict_proba(queries)
    # From other examples of the same classes, from fewer classes, and from more.
    for before in (few, y >= 2, y < 20):
        warm = LinearClassifier(precision=precision, warm_start=True).fit(X[before], names[before]).fit(X, names)
        assert warm.n_passes_ < cold.n_passes_
        np.testing.assert_allclose(warm.predict_proba(queries), expected, atol=1e-4 if precision == "double" else 0.1)
        assert (warm.predict(queries) == cold.predict(queries)).mean() > 0.98
    warm.fit(X[y >= 2], names[y >= 2])
    np.testing.assert_array_equal(warm.classes_, np.unique(names[y >= 2]))


def test_a_warm_start_with_other_features_begins_anew() -> None:
    X, y = blobs(3, 60, 5)
    expected = LinearClassifier().fit(X[:, :3], y).coef_
    np.testing.assert_array_equal(LinearClassifier(warm_start=True).fit(X, y).fit(X[:, :3], y).coef_, expected)
    again = LinearClassifier().fit(X, y).fit(X, y)
    np.testing.assert_array_equal(again.coef_, LinearClassifier().fit(X, y).coef_)


def test_running_out_of_passes_is_told_only_where_it_matters() -> None:
    X, y, _, _ = confused_classes([100] * 20, 16)
    with pytest.warns(ConvergenceWarning, match=r"2 passes.*max_passes \(2\)"):
        found = LinearClassifier(precision="single", max_passes=2).fit(X, y)
    assert found.n_passes_ == 2
    enough = LinearClassifier(precision="single").fit(X, y).n_passes_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LinearClassifier(precision="single", max_passes=enough - 1).fit(X, y)
