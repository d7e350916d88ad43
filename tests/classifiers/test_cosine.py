"""The cosine classifier against loops, finite differences, and what it promises about scale and balance."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpaan.classifiers import cosine
from cpaan.classifiers.cosine import CosineClassifier, CosineProblem, normalized
from cpaan.data import glyph_split, load_glyphs
from cpaan.data.low_shot import draw_shots
from cpaan.errors import InputError
from cpaan.evaluation.scores import evaluate_low_shot

FloatArray = npt.NDArray[np.float64]
CLASSES, FEATURES = 4, 6


def random_data(n: int = 60) -> tuple[FloatArray, npt.NDArray[np.intp], FloatArray]:
    generator = np.random.default_rng(0)
    y = np.r_[np.arange(CLASSES), generator.choice(CLASSES, n - CLASSES, p=[0.7, 0.2, 0.05, 0.05])]
    X = generator.normal(size=(CLASSES, FEATURES))[y] + generator.normal(size=(n, FEATURES))
    return X, y, generator.uniform(0.5, 2.0, n)


def slow_objective(
    weights: FloatArray, directions: FloatArray, y: npt.NDArray[np.intp], v: FloatArray, scale: float
) -> float:
    """Sum over classes, then over examples, one at a time."""
    total = 0.0
    for c in range(CLASSES):
        members = [i for i in range(len(y)) if y[i] == c]
        for i in members:
            scores = [scale * float(directions[i] @ w / np.linalg.norm(w)) for w in weights]
            log_probability = scores[c] - np.log(sum(np.exp(s) for s in scores))
            total -= v[i] * log_probability / sum(v[j] for j in members) / CLASSES
    return total


def problem_and_point(scale: float = 7.0) -> tuple[CosineProblem, FloatArray, tuple[Any, ...]]:
    X, y, v = random_data()
    directions = normalized(X)
    shares = v / np.bincount(y, v)[y] / CLASSES
    weights = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))
    return CosineProblem(directions, y, shares, scale), weights, (directions, y, v, scale)


def test_value_against_loops_and_gradient_against_finite_differences() -> None:
    problem, weights, rest = problem_and_point()
    value, gradient = problem.objective(weights)
    assert value == pytest.approx(slow_objective(weights, *rest))
    for index in np.ndindex(weights.shape):
        step = np.zeros_like(weights)
        step[index] = 1e-6
        slope = (slow_objective(weights + step, *rest) - slow_objective(weights - step, *rest)) / 2e-6
        assert gradient[index] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("setting", [("BLOCK_ENTRIES", 40), ("LARGE", 1)])
def test_blocks_and_single_precision_give_the_same(setting: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    value, gradient = problem_and_point()[0].objective(problem_and_point()[1])
    monkeypatch.setattr(cosine, *setting)
    problem, weights, _ = problem_and_point()
    assert problem.directions.dtype == (np.float32 if setting[0] == "LARGE" else np.float64)
    found, slope = problem.objective(weights)
    assert found == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(slope, gradient, atol=1e-6)


def test_imprinted_weights_and_scores_against_loops() -> None:
    X, y, v = random_data()
    classifier = CosineClassifier(max_iterations=0, scale=3.0).fit(X, y, sample_weight=v)
    means = [sum(v[i] * X[i] for i in range(len(y)) if y[i] == c) / v[y == c].sum() for c in range(CLASSES)]
    origin = sum(means) / CLASSES
    for c in range(CLASSES):
        parts = [v[i] * (X[i] - origin) / np.linalg.norm(X[i] - origin) for i in range(len(y)) if y[i] == c]
        weight = sum(parts) / np.linalg.norm(sum(parts))
        np.testing.assert_allclose(classifier.weights_[c], weight)
        expected = [3.0 * float((x - origin) @ weight) / np.linalg.norm(x - origin) for x in X]
        np.testing.assert_allclose(classifier.scores(X)[:, c], expected)


def test_training_lowers_the_objective_and_ends_where_it_is_flat() -> None:
    problem, _, _ = problem_and_point()
    X, y, v = random_data()
    values = []
    for steps in (0, 3, 300):
        classifier = CosineClassifier(scale=7.0, center=False, max_iterations=steps).fit(X, y, sample_weight=v)
        values.append(problem.objective(classifier.weights_))
    assert values[0][0] > values[1][0] > values[2][0]
    assert np.abs(values[2][1]).max() < 1e-5 < np.abs(values[1][1]).max()


def test_every_class_counts_the_same_however_many_examples_it_has() -> None:
    X, y, _ = random_data()
    many = np.where(y == 0, 50, 1)
    classifier = CosineClassifier()
    first = classifier.fit(X, y).scores(X)
    np.testing.assert_allclose(classifier.fit(X, y, sample_weight=many).scores(X), first, atol=1e-9)


def test_weights_are_repetitions() -> None:
    X, y, _ = random_data()
    times = np.arange(len(y)) % 3 + 1
    weighted = CosineClassifier().fit(X, y, sample_weight=times).scores(X)
    repeated = CosineClassifier().fit(np.repeat(X, times, axis=0), np.repeat(y, times)).scores(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-7)


@given(st.integers(-100, 100))
def test_units_do_not_matter_and_lengths_only_about_the_origin(exponent: int) -> None:
    X, y, _ = random_data()
    classifier = CosineClassifier(max_iterations=3)
    expected = classifier.fit(X, y).scores(X)
    np.testing.assert_allclose(classifier.fit(X * 10.0**exponent, y).scores(X * 10.0**exponent), expected, atol=1e-9)
    plain = CosineClassifier(center=False).fit(X, y)
    lengths = np.random.default_rng(2).uniform(0.1, 10, (len(X), 1))
    np.testing.assert_allclose(plain.scores(lengths * X), plain.scores(X), atol=1e-12)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("X", [np.zeros((4, 3)), np.ones((4, 3)), np.diag([1.0, -1.0, 0.0, 0.0])[:, :3]])
def test_zero_vectors_have_scores_of_zero_and_break_nothing(center: bool, X: FloatArray) -> None:
    classifier = CosineClassifier(center=center).fit(X, [0, 1, 2, 2])
    assert np.isfinite(classifier.scores(X)).all()
    np.testing.assert_array_equal(classifier.scores(classifier.mean_[np.newaxis]), 0)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)


def test_order_of_the_examples_does_not_matter() -> None:
    X, y, _ = random_data()
    order = np.random.default_rng(3).permutation(len(y))
    found = CosineClassifier().fit(X[order], y[order]).scores(X)
    np.testing.assert_allclose(found, CosineClassifier().fit(X, y).scores(X), atol=1e-9)


def test_a_glyph_is_told_from_27_others_by_one_example() -> None:
    pytest.importorskip("matplotlib")
    glyphs = load_glyphs()
    base, novel = (glyphs.select(names) for names in glyph_split())
    training, _ = draw_shots(base, 12, 0)
    shots, unseen = draw_shots(novel, 1, 0)
    X, y = np.concatenate([training.features, shots.features]), np.concatenate([training.names, shots.names])
    scores = evaluate_low_shot(CosineClassifier().fit(X, y), unseen.features, unseen.names, novel.classes, k=(1,))
    assert scores.lsl[1] > 30  # chance is 100 / 28


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0.0}, "scale must be a positive number, not 0.0"),
        ({"max_iterations": -1}, "max_iterations must be a whole number of at least 0, not -1"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CosineClassifier(**settings).fit([[0.0], [1.0]], [0, 1])
