"""The low-shot protocol against loops, with this library's and with scikit-learn's classifiers."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from cpaan.classifiers import LinearClassifier, NearestPrototype
from cpaan.classifiers.base import class_scores
from cpaan.errors import InputError
from cpaan.evaluation.scores import LowShotScores, evaluate_low_shot

FloatArray = npt.NDArray[np.float64]
NAMES = np.array([f"class {index}" for index in range(9)])
NOVEL = NAMES[6:]


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
    with pytest.raises(InputError, match="label_space holds classes outside classes: 'another'"):
        evaluate_low_shot(classifier, X, y, [*NOVEL, "another"])
    with pytest.raises(InputError, match="8 labels for the 180 examples"):
        evaluate_low_shot(classifier, X, y[:8], NOVEL)
    with pytest.raises(InputError, match="y_true holds classes outside"):
        evaluate_low_shot(classifier, X, ["unheard of", *y[1:]], NOVEL)
    with pytest.raises(InputError, match="no decision_function and no predict_proba"):
        class_scores(object(), X)
    one_against_one: Any = SVC(decision_function_shape="ovo")
    with pytest.raises(InputError, match="36 scores for 9 classes"):
        class_scores(one_against_one.fit(X, y), X)
