"""One estimator for the whole job: base classes, added classes, saving, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import cpaan
from cpaan import (
    CPAAN,
    CosineClassifier,
    EmpiricalBayes,
    FeatureImagination,
    LinearClassifier,
    LowShotClassifier,
    NearestPrototype,
    PooledGaussian,
    PrototypicalNetwork,
)
from cpaan.centers import Calibrated
from cpaan.errors import InputError
from cpaan.evaluation import evaluate_low_shot
from cpaan.methods import set_numbers


def make_cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


GAN = make_cpaan(recipe="quick", episodes=3, center="shots", random_state=0, device="cpu", novel_per_episode=2, width=8)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        LowShotClassifier(augmenter=PooledGaussian(random_state=0)),
        LowShotClassifier(augmenter=EmpiricalBayes(random_state=0), classifier=LinearClassifier(), keep=20),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def make(n_classes: int = 8, per_class: int = 20, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 5))
    y = np.repeat(np.arange(n_classes), per_class)
    return centers[y] + rng.normal(size=(len(y), 5)), np.array([f"class {i}" for i in range(n_classes)])[y], y


X, Y, CODES = make()
BASE, NOVEL = CODES < 6, CODES >= 6
SHOTS = np.flatnonzero(NOVEL)[[0, 1, 20, 21, 22]]  # two of class 6, three of class 7


def fitted(**settings: Any) -> Any:
    return LowShotClassifier(**{"augmenter": EmpiricalBayes(random_state=0), **settings}).fit(X[BASE], Y[BASE])


CLASSIFIERS = [None, LinearClassifier(), CosineClassifier(), LogisticRegression(), RidgeClassifier(), LinearSVC()]


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: type(c).__name__)
def test_it_answers_base_classes_and_then_all(classifier: Any) -> None:
    model = fitted(classifier=classifier)
    assert model.classes_.tolist() == [f"class {i}" for i in range(6)]
    assert model.novel_classes_ == ()
    assert model.score(X[BASE], Y[BASE]) > 0.9
    assert model.add_classes(X[SHOTS], Y[SHOTS]) is model
    assert model.classes_.tolist() == [f"class {i}" for i in range(8)]
    assert model.base_classes_.tolist() == [f"class {i}" for i in range(6)]
    assert model.novel_classes_ == ("class 6", "class 7")
    assert model.score(X, Y) > 0.85
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), 8)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(1)], model.predict(X))
    assert model.decision_function(X).shape == (len(X), 8)


def test_it_is_what_one_would_write_by_hand() -> None:
    model = fitted().add_classes(X[SHOTS], Y[SHOTS])
    augmenter = EmpiricalBayes(random_state=0).fit(X[BASE], Y[BASE])
    made, made_labels = augmenter.augment(X[SHOTS], Y[SHOTS])
    by_hand: Any = NearestPrototype().fit(
        np.concatenate([X[BASE], X[SHOTS], made]), np.concatenate([Y[BASE], Y[SHOTS], made_labels])
    )
    np.testing.assert_allclose(model.classifier_.prototypes_, by_hand.prototypes_, atol=1e-9)
    linear = fitted(classifier=LinearClassifier(), keep="all").add_classes(X[SHOTS], Y[SHOTS])
    by_hand = LinearClassifier().fit(
        np.concatenate([X[BASE], X[SHOTS], made]), np.concatenate([Y[BASE], Y[SHOTS], made_labels])
    )
    np.testing.assert_allclose(linear.predict_proba(X), by_hand.predict_proba(X), atol=5e-3)


@pytest.mark.parametrize("augmenter", [EmpiricalBayes(random_state=0), GAN], ids=["closed form", "network"])
def test_one_by_one_is_the_same_as_together(augmenter: Any) -> None:
    together = fitted(augmenter=augmenter).add_classes(X[SHOTS], Y[SHOTS])
    apart = fitted(augmenter=augmenter)
    for rows in (SHOTS[2:4], SHOTS[:2], SHOTS[4:]):  # another order of classes, and one class in two parts
        apart.add_classes(X[rows], Y[rows])
    np.testing.assert_allclose(apart.predict_proba(X), together.predict_proba(X), atol=1e-6)
    fewer = fitted(augmenter=augmenter).add_classes(X[SHOTS[:4]], Y[SHOTS[:4]])
    assert not np.allclose(fewer.predict_proba(X), together.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("augmenter", [EmpiricalBayes(random_state=0), GAN], ids=["closed form", "network"])
def test_a_class_as_large_as_base_classes_needs_no_synthetic_examples(augmenter: Any) -> None:
    model = fitted(augmenter=augmenter).add_classes(X[NOVEL], Y[NOVEL])
    plain = NearestPrototype().fit(X, Y)
    np.testing.assert_allclose(model.classifier_.prototypes_, plain.prototypes_, atol=1e-9)


def test_only_what_the_classifier_needs_is_kept() -> None:
    assert len(fitted().base_.deviations) == 0
    assert fitted(classifier=LinearClassifier()).base_.kept.tolist() == [20] * 6
    assert fitted(classifier=LinearClassifier(), keep=3).base_.kept.tolist() == [3] * 6
    means_alone = fitted(classifier=LinearClassifier(), keep=0)
    assert len(means_alone.base_.deviations) == 0
    assert means_alone.score(X[BASE], Y[BASE]) > 0.8


def test_what_raises_changes_nothing() -> None:
    model = fitted().add_classes(X[SHOTS[:2]], Y[SHOTS[:2]])
    before = model.predict_proba(X)
    for features, labels, message in (
        (X[:2], Y[:2], "already base classes: 'class 0'; leave them out"),
        (X[:2], [1, 2], "labels of base classes are text and the new ones whole numbers"),
        (X[:2, :3], ["n", "n"], "features"),
        (np.full((1, 5), np.nan), ["n"], "NaN"),
        (X[:2], [0.5, 0.7], "Unknown label type"),
    ):
        with pytest.raises(InputError, match=message):
            model.add_classes(features, labels)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.novel_classes_ == ("class 6",)


def test_fit_begins_anew() -> None:
    model = fitted().add_classes(X[SHOTS], Y[SHOTS])
    model.fit(X[BASE], Y[BASE])
    assert len(model.classes_) == 6
    assert model.novel_classes_ == ()


def test_too_few_base_classes_can_be_told_apart_and_none_added() -> None:
    few = CODES < 3
    with pytest.warns(UserWarning, match=r"add_classes\(\) is unavailable: meta-training needs at least 4"):
        model: Any = LowShotClassifier(augmenter=GAN).fit(X[few], Y[few])
    assert model.augmenter_ is None
    assert model.score(X[few], Y[few]) > 0.9
    with pytest.raises(InputError, match=r"add_classes\(\) is unavailable.*at least 4 base classes"):
        model.add_classes(X[SHOTS], Y[SHOTS])


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="unknown recipe"):
        fitted(augmenter=CPAAN(recipe="slow"))
    with pytest.raises(InputError, match="keep is 'most'"):
        fitted(keep="most")
    with pytest.raises(InputError, match="keep is -1"):
        fitted(keep=-1)
    with pytest.raises(InputError, match="no decision_function and no predict_proba to rank classes by; choose"):
        fitted(classifier=EmpiricalBayes())


def test_the_defaults_are_the_papers_network_and_the_nearest_prototype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.low_shot.classifier.CPAAN", lambda: clone(GAN))
    model: Any = cpaan.LowShotClassifier().fit(X[BASE], Y[BASE]).add_classes(X[SHOTS], Y[SHOTS])
    assert isinstance(model.augmenter_, CPAAN)
    assert isinstance(model.classifier_, NearestPrototype)
    assert model.get_params() == {"augmenter": None, "classifier": None, "keep": "auto"}


def test_other_classifiers_get_examples_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def gan(**settings: Any) -> Any:
        asked.append(settings)
        return clone(GAN)

    monkeypatch.setattr("cpaan.low_shot.classifier.CPAAN", gan)
    for classifier in (None, NearestPrototype(), LinearClassifier(), KNeighborsClassifier()):
        LowShotClassifier(classifier=classifier).fit(X[BASE], Y[BASE])
    assert asked == [{}, {}, {}, {"center": Calibrated(noise=0)}]


def test_nested_parameters_clone_and_search() -> None:
    model: Any = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0), classifier=LinearClassifier())
    model.set_params(augmenter__ridge=0.5, classifier__weight_decay=0.1)
    copy = clone(model)
    assert (copy.augmenter.ridge, copy.classifier.weight_decay) == (0.5, 0.1)
    assert copy.augmenter is not model.augmenter
    search = GridSearchCV(model, {"classifier__weight_decay": [1e-3, 1e3]}, cv=2).fit(X[BASE], Y[BASE])
    assert search.best_params_ == {"classifier__weight_decay": 1e-3}
    assert not hasattr(model.augmenter, "classes_")  # what was given stays as it is


def test_tensors_and_frames() -> None:
    pandas = pytest.importorskip("pandas")
    expected = fitted().add_classes(X[SHOTS], Y[SHOTS]).predict(X)
    frame = pandas.DataFrame(X, columns=list("abcde"))
    model = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0)).fit(frame[BASE], pandas.Series(Y[BASE]))
    model.add_classes(frame.iloc[SHOTS], pandas.Series(Y[SHOTS]))
    np.testing.assert_array_equal(model.predict(frame), expected)
    numbers = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0))
    numbers.fit(torch.tensor(X[BASE]), torch.tensor(CODES[BASE])).add_classes(X[SHOTS], torch.tensor(CODES[SHOTS]))
    np.testing.assert_array_equal([f"class {i}" for i in numbers.predict(torch.tensor(X))], expected)


def test_a_meta_trained_classifier_is_meta_trained_on_base_classes() -> None:
    model = fitted(classifier=PrototypicalNetwork(episodes=2, random_state=0, device="cpu"))
    model.add_classes(X[SHOTS], Y[SHOTS])
    assert model.classifier_.base_classes_ == tuple(f"class {i}" for i in range(6))
    own = fitted(augmenter=FeatureImagination(episodes=2, random_state=0, device="cpu"))
    assert isinstance(own.classifier_, PrototypicalNetwork)


SAVED = [
    *({"classifier": classifier} for classifier in (None, LinearClassifier(weight_decay=0.01), CosineClassifier())),
    {"classifier": PrototypicalNetwork(episodes=2, random_state=0, device="cpu")},
    {"augmenter": GAN, "keep": 5},
    {"augmenter": FeatureImagination(episodes=2, random_state=0, device="cpu")},
]


@pytest.mark.parametrize("settings", SAVED, ids=str)
def test_what_is_saved_answers_and_takes_classes(settings: dict[str, Any], tmp_path: Path) -> None:
    model = fitted(**settings).add_classes(X[SHOTS[:2]], Y[SHOTS[:2]])
    model.save(tmp_path / "model")
    again = LowShotClassifier.load(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-12)
    assert again.novel_classes_ == ("class 6",)
    assert again.keep == model.keep
    assert type(again.classifier) is type(model.classifier)
    for each in (model, again):
        each.add_classes(X[SHOTS[2:]], Y[SHOTS[2:]])
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-6, atol=1e-9)
    assert {path.suffix for path in (tmp_path / "model").rglob("*") if path.is_file()} == {".json", ".safetensors"}
    same = type(model.augmenter_).load(tmp_path / "model", device="cpu")  # the folder is one of an augmenter as well
    assert same.augment(X[SHOTS], Y[SHOTS])[0].shape[1] == 5


@pytest.mark.parametrize(
    "names", [[f"name {i}" * i for i in range(1, 9)], list(range(-3, 5)), [2.0 * i for i in range(8)]]
)
def test_labels_come_back_as_they_were(names: list[Any], tmp_path: Path) -> None:
    labels = np.array(names)[CODES]
    model = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0)).fit(X[BASE], labels[BASE])
    for rows in (None, SHOTS):
        if rows is not None:
            model.add_classes(X[rows], labels[rows])
        model.save(tmp_path / "model")
        again = LowShotClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(again.classes_, model.classes_)
        assert again.predict(X).dtype == model.predict(X).dtype
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert set(model.classes_.tolist()) == set(names)


def test_names_of_columns_are_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcde"))
    LowShotClassifier(augmenter=EmpiricalBayes()).fit(frame[BASE], Y[BASE]).save(tmp_path / "model")
    with pytest.raises(ValueError, match="feature names"):
        LowShotClassifier.load(tmp_path / "model").predict(frame[list("edcba")])


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot save a LogisticRegression; choose one of NearestPrototype"):
        fitted(classifier=LogisticRegression()).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    EmpiricalBayes().fit(X[BASE], Y[BASE]).save(tmp_path / "alone")
    with pytest.raises(InputError, match=r"holds a EmpiricalBayes without a classifier, .* save a LowShotClassifier"):
        LowShotClassifier.load(tmp_path / "alone")
    fitted().save(tmp_path / "model")
    EmpiricalBayes().fit(2 * X[BASE], Y[BASE]).save(tmp_path / "model")
    with pytest.raises(InputError, match="not the one that its classifier was fitted with"):
        LowShotClassifier.load(tmp_path / "model")
    with pytest.raises(InputError, match="does not exist"):
        LowShotClassifier.load(tmp_path / "nowhere")


def test_a_model_of_too_few_base_classes_is_saved_without_an_augmenter(tmp_path: Path) -> None:
    few = CODES < 3
    with pytest.warns(UserWarning, match="fitted without an augmenter"):
        model: Any = LowShotClassifier(augmenter=GAN).fit(X[few], Y[few])
    model.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "classifier" / "config.json").read_text())["augmenter"] is None
    again = LowShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X[few]), model.predict(X[few]))
    with pytest.raises(InputError, match="at least 4 base classes"):
        again.add_classes(X[SHOTS], Y[SHOTS])


class TwoMinds(LinearSVC):
    """Has probabilities that do not go with its decisions, as an SVC's do not always."""

    def predict_proba(self, X: Any) -> Any:
        return np.eye(len(self.classes_))[np.zeros(len(X), dtype=int)]


def test_the_benchmark_scores_what_is_answered() -> None:
    two_minds: Any = TwoMinds
    model = fitted(classifier=two_minds(), keep="all").add_classes(X[SHOTS], Y[SHOTS])
    answered = 100 * (model.predict(X) == Y).mean()
    assert answered > 50
    assert evaluate_low_shot(model.classifier_, X, Y, model.novel_classes_, k=[1]).glsl[1] == pytest.approx(answered)
    np.testing.assert_array_equal(model.predict_proba(X), model.classifier_.predict_proba(X))
