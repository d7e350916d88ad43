"""Accuracy against loops, its label spaces and ties; the protocol with our classifiers and scikit-learn's."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import top_k_accuracy_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from cpaan.classifiers import LinearClassifier, NearestPrototype
from cpaan.classifiers.base import class_scores
from cpaan.errors import InputError
from cpaan.evaluation.scores import LowShotScores, accuracy, evaluate_low_shot, harmonic_mean, top_k_accuracy

FloatArray = npt.NDArray[np.float64]
NAMES = np.array([f"class {index}" for index in range(9)])
NOVEL = NAMES[6:]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_accuracy_against_scikit_learn(k: int) -> None:
    generator = np.random.default_rng(0)
    scores, targets = generator.normal(size=(300, 7)), generator.integers(0, 7, 300)
    expected = top_k_accuracy_score(targets, scores, k=k, labels=np.arange(7))
    assert top_k_accuracy(scores, targets, k) == pytest.approx(expected)
    if k == 1:
        assert top_k_accuracy(scores, targets) == top_k_accuracy(scores, targets, 1)


def test_ties_count_against_the_target() -> None:
    scores = np.zeros((4, 4))
    assert [top_k_accuracy(scores, np.arange(4), k) for k in (1, 2, 3)] == [0.0, 0.0, 0.0]
    pair = [[2.0, 2.0, 1.0, 0.0]]
    assert [top_k_accuracy(pair, [0], k) for k in (1, 2)] == [0.0, 1.0]
    assert top_k_accuracy([[-np.inf, -np.inf, 0.0]], [0], 2) == 0.0


def test_the_order_of_the_columns_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    scores, targets = generator.integers(0, 3, (200, 6)).astype(float), generator.integers(0, 6, 200)
    order = generator.permutation(6)
    moved = np.argsort(order)[targets]
    for k in (1, 3):
        assert top_k_accuracy(scores[:, order], moved, k) == top_k_accuracy(scores, targets, k)


def test_nothing_is_missed_with_as_many_guesses_as_classes() -> None:
    assert top_k_accuracy(np.zeros((3, 2)), [0, 1, 1], 5) == 1.0


@pytest.mark.parametrize("k", [1, 2])
def test_label_space_against_a_loop(k: int) -> None:
    generator = np.random.default_rng(2)
    classes = np.array(["yew", "ash", "elm", "oak", "fir"])
    space = ["oak", "yew", "fir"]
    scores, truth = generator.normal(size=(100, 5)), generator.choice(space, 100)
    hits = 0
    for row, label in zip(scores, truth, strict=True):
        ranked = sorted(space, key=lambda name: -row[list(classes).index(name)])
        hits += label in ranked[:k]
    assert accuracy(scores, classes, truth, space, k) == pytest.approx(hits / 100)


def test_columns_outside_the_label_space_are_ignored() -> None:
    generator = np.random.default_rng(3)
    scores, truth = generator.normal(size=(50, 4)), generator.integers(2, 4, 50)
    shifted = scores.copy()
    shifted[:, :2] += 100.0
    assert accuracy(shifted, range(4), truth, [2, 3]) == accuracy(scores, range(4), truth, [2, 3]) > 0
    assert accuracy(shifted, range(4), truth) == 0.0


def test_labels_may_be_any_hashable() -> None:
    classes = [("oak", 1), "oak", 7]
    assert accuracy([[3.0, 2.0, 1.0]], classes, [("oak", 1)]) == 1.0


@pytest.mark.parametrize(
    ("scores", "targets", "k", "message"),
    [
        ([[0.0, np.nan]], [0], 1, "NaN"),
        ([0.0, 1.0], [0], 1, "shape"),
        (np.zeros((0, 3)), [], 1, "shape"),
        ([["a", "b"]], [0], 1, "numbers"),
        ([[0.0, 1.0]], [2], 1, "from 0 to 1"),
        ([[0.0, 1.0]], [-1], 1, "from 0 to 1"),
        ([[0.0, 1.0]], [0.5], 1, "integers"),
        ([[0.0, 1.0]], [0, 1], 1, "1 integers"),
        ([[0.0, 1.0]], [0], 0, "k must be at least 1, got 0"),
    ],
)
def test_wrong_scores_are_named(scores: Any, targets: Any, k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        top_k_accuracy(scores, targets, k)


@pytest.mark.parametrize(
    ("classes", "truth", "space", "message"),
    [
        (["a", "b"], ["c"], None, "y_true contains classes outside the label space: 'c'"),
        (["a", "b"], ["a"], ["b"], "y_true contains classes outside the label space: 'a'"),
        (["a", "b"], ["a"], ["a", "z"], "label_space contains classes outside classes: 'z'"),
        (["a", "b"], ["a"], [], "y_true contains classes outside"),
        (["a", "b"], ["a"], ["a", None], "^label_space is missing"),
        (["a", "b"], ["a"], [*"abzyx"], r"classes: 'x', 'y', 'z'$"),
        (["a", "b"], ["a"], [*"abzyxvwut"], r"classes: 't', 'u', 'v', 'w', 'x' and 2 more$"),
        (["a", "a"], ["a"], None, "twice"),
        (["a"], ["a"], None, "classes has 1 labels for 2"),
        (["a", "b"], ["a", "b"], None, "y_true has 2 labels for 1"),
    ],
)
def test_wrong_labels_are_named(classes: Any, truth: Any, space: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        accuracy([[0.0, 1.0]], classes, truth, space)


def test_harmonic_mean() -> None:
    assert harmonic_mean(0.0, 0.0) == harmonic_mean(0.0, 80.0) == 0.0
    assert harmonic_mean(30.0, 60.0) == harmonic_mean(60.0, 30.0) == pytest.approx(1 / ((1 / 30 + 1 / 60) / 2))
    assert harmonic_mean(50.0, 50.0) == 50.0
    assert np.isnan(harmonic_mean(np.nan, 50.0))
    with pytest.raises(InputError, match="negative"):
        harmonic_mean(-1.0, 50.0)


def data(seed: int, n: int = 180) -> tuple[FloatArray, Any]:
    labels = np.arange(n) % 9
    centres = np.random.default_rng(0).normal(size=(9, 4))
    return centres[labels] + 0.8 * np.random.default_rng(seed).normal(size=(n, 4)), NAMES[labels]


def loop_percent(scores: FloatArray, truth: Any, space: Any, k: int) -> float:
    hits = 0
    for row, label in zip(scores, truth, strict=True):
        ranked = sorted(space, key=lambda name: -row[list(NAMES).index(name)])
        hits += label in ranked[:k]
    return 100 * hits / len(truth)


@pytest.mark.parametrize(
    "classifier",
    [NearestPrototype(), LinearClassifier(), GaussianNB()],
)
def test_scores_against_loops(classifier: Any) -> None:
    classifier.fit(*data(1))
    X, y = data(2)
    found = evaluate_low_shot(classifier, X, y, NOVEL)
    scores, novel = class_scores(classifier, X), np.isin(y, NOVEL)
    for k in (1, 5):
        assert found.lsl[k] == pytest.approx(loop_percent(scores[novel], y[novel], NOVEL, k))
        assert found.glsl[k] == pytest.approx(loop_percent(scores, y, NAMES, k))
        assert found.glsl_base[k] == pytest.approx(loop_percent(scores[~novel], y[~novel], NAMES, k))
        assert found.glsl_novel[k] == pytest.approx(loop_percent(scores[novel], y[novel], NAMES, k))
        base_share = (~novel).mean()
        assert found.glsl[k] == pytest.approx(base_share * found.glsl_base[k] + (1 - base_share) * found.glsl_novel[k])
        assert found.lsl[k] >= found.glsl_novel[k]
    assert found.lsl[5] == 100.0  # there are three novel classes
    assert found.glsl[1] < found.glsl[5] < 100.0


def test_a_bias_towards_base_classes_hurts_glsl_alone() -> None:
    classifier = LinearClassifier().fit(*data(1))
    X, y = data(2)
    before = evaluate_low_shot(classifier, X, y, NOVEL)
    classifier.intercept_ = classifier.intercept_ + 100.0 * ~np.isin(NAMES, NOVEL)
    after = evaluate_low_shot(classifier, X, y, NOVEL)
    assert after.lsl == before.lsl
    assert after.glsl_novel == {1: 0.0, 5: 0.0}
    assert after.glsl_harmonic[1] == 0.0 < before.glsl_harmonic[1]


def test_scores_are_frozen_and_flat_on_demand() -> None:
    scores = LowShotScores(lsl={1: 80.0}, glsl={1: 50.0}, glsl_base={1: 60.0}, glsl_novel={1: 30.0})
    assert scores.as_dict() == {
        "lsl_top1": 80.0,
        "glsl_top1": 50.0,
        "glsl_base_top1": 60.0,
        "glsl_novel_top1": 30.0,
        "glsl_harmonic_top1": 40.0,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        scores.lsl = {}  # type: ignore[misc]


def test_without_base_examples_their_part_is_not_a_number() -> None:
    classifier = NearestPrototype().fit(*data(1))
    X, y = data(2)
    novel = np.isin(y, NOVEL)
    found = evaluate_low_shot(classifier, X[novel], y[novel], NOVEL, k=[1])
    assert np.isnan(found.glsl_base[1])
    assert np.isnan(found.glsl_harmonic[1])
    assert found.glsl == found.glsl_novel


@pytest.mark.parametrize(
    "classifier",
    [
        NearestPrototype(),
        LinearClassifier(),
        RidgeClassifier(),
        KNeighborsClassifier(n_neighbors=3),
    ],
)
def test_two_classes_have_two_columns(classifier: Any) -> None:
    X, y = data(1)
    chosen = np.isin(y, [NAMES[0], NAMES[8]])
    classifier.fit(X[chosen], y[chosen])
    scores = class_scores(classifier, X)
    assert scores.shape == (len(X), 2)
    np.testing.assert_array_equal(classifier.classes_[scores.argmax(axis=1)], classifier.predict(X))


def test_wrong_inputs_are_named() -> None:
    X, y = data(1)
    classifier: Any = NearestPrototype().fit(X, y)
    with pytest.raises(InputError, match="no example of a novel class"):
        evaluate_low_shot(classifier, X, y, ["another"])
    with pytest.raises(InputError, match="label_space contains classes outside classes: 'another'"):
        evaluate_low_shot(classifier, X, y, [*NOVEL, "another"])
    with pytest.raises(InputError, match="8 labels for the 180 examples"):
        evaluate_low_shot(classifier, X, y[:8], NOVEL)
    with pytest.raises(InputError, match="y_true contains classes outside"):
        evaluate_low_shot(classifier, X, ["unheard of", *y[1:]], NOVEL)
    with pytest.raises(InputError, match="no decision_function and no predict_proba"):
        class_scores(object(), X)
    one_against_one: Any = SVC(decision_function_shape="ovo")
    with pytest.raises(InputError, match="36 scores for 9 classes"):
        class_scores(one_against_one.fit(X, y), X)
