"""Accuracy against loops, its label spaces and its ties."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from cpaan.errors import InputError
from cpaan.evaluation.scores import accuracy, harmonic_mean, top_k_accuracy


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
        ([[0.0, 1.0]], [0], 0, "k is 0"),
    ],
)
def test_wrong_scores_are_named(scores: Any, targets: Any, k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        top_k_accuracy(scores, targets, k)


@pytest.mark.parametrize(
    ("classes", "truth", "space", "message"),
    [
        (["a", "b"], ["c"], None, "y_true holds classes outside the label space: 'c'"),
        (["a", "b"], ["a"], ["b"], "y_true holds classes outside the label space: 'a'"),
        (["a", "b"], ["a"], ["a", "z"], "label_space holds classes outside classes: 'z'"),
        (["a", "b"], ["a"], [], "y_true holds classes outside"),
        (["a", "b"], ["a"], ["a", None], "^label_space is missing"),
        (["a", "b"], ["a"], [*"abzyx"], r"classes: 'x', 'y', 'z'$"),
        (["a", "b"], ["a"], [*"abzyxvw"], r"classes: 'v', 'w', 'x' and 2 more$"),
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
