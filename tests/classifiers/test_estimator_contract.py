"""Both classifiers under scikit-learn's own checks, and what they promise beyond those."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from cpaan.classifiers import LinearClassifier, NearestPrototype
from cpaan.classifiers.base import ScoreClassifier

FloatArray = npt.NDArray[np.float64]
CLASSIFIERS: list[Callable[[], Any]] = [NearestPrototype, lambda: LinearClassifier(tolerance=1e-9)]
NAMES = ["nearest_prototype", "linear"]


@parametrize_with_checks([NearestPrototype(), LinearClassifier()])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(params=CLASSIFIERS, ids=NAMES)
def classifier(request: pytest.FixtureRequest) -> Any:
    return request.param()


def blobs(n_classes: int = 4) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    per_class, n_features = 8, 5
    generator = np.random.default_rng(0)
    labels = np.arange(n_classes * per_class) % n_classes
    centres = generator.normal(size=(n_classes, n_features))
    return centres[labels] + generator.normal(size=(len(labels), n_features)), labels


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_scores_have_one_column_per_class_and_decide(classifier: Any, n_classes: int) -> None:
    X, y = blobs(n_classes)
    classifier.fit(X, y)
    scores = classifier.scores(X)
    assert scores.shape == (len(X), n_classes)
    np.testing.assert_array_equal(classifier.classes_[scores.argmax(axis=1)], classifier.predict(X))
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=1e-12)
    decision = classifier.decision_function(X)
    np.testing.assert_allclose(decision, scores[:, 1] - scores[:, 0] if n_classes == 2 else scores)


def test_weights_are_repetitions_and_zero_is_absence(classifier: Any) -> None:
    X, y = blobs()
    weights = np.arange(len(y)) // 4 % 4
    weights[y == 3] = 0  # a whole class is weighed away
    weighted = classifier.fit(X, y, sample_weight=weights).predict_proba(X)
    np.testing.assert_array_equal(classifier.classes_, [0, 1, 2])
    repeated = classifier.fit(np.repeat(X, weights, axis=0), np.repeat(y, weights)).predict_proba(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-6)
    assert not np.allclose(weighted, classifier.fit(X[y < 3], y[y < 3]).predict_proba(X), atol=1e-3)


def test_only_ratios_of_weights_matter(classifier: Any) -> None:
    X, y = blobs()
    weights = 1.0 + np.arange(len(y))
    first = classifier.fit(X, y, sample_weight=weights).scores(X)
    np.testing.assert_allclose(classifier.fit(X, y, sample_weight=1e4 * weights).scores(X), first, atol=1e-6)


def test_translation_of_the_features_changes_no_decision(classifier: Any) -> None:
    X, y = blobs()
    here = classifier.fit(X, y).predict_proba(X)
    offset = 1e5 * np.array([1.0, -1.0, 2.0, 0.5, -3.0])
    there = classifier.fit(X + offset, y).predict_proba(X + offset)
    np.testing.assert_allclose(there, here, atol=1e-6)


def test_order_of_the_examples_does_not_matter(classifier: Any) -> None:
    X, y = blobs()
    order = np.random.default_rng(1).permutation(len(y))
    first = classifier.fit(X, y).scores(X)
    np.testing.assert_allclose(classifier.fit(X[order], y[order]).scores(X), first, atol=1e-6)


@pytest.mark.parametrize("names", [["oak", "elm", "ash", "yew"], [7, -3, 5, 0], [False, True]])
def test_labels_keep_their_type(classifier: Any, names: list[Any]) -> None:
    X, y = blobs(len(names))
    labels = np.array(names)[y]
    classifier.fit(X, labels)
    assert classifier.predict(X).dtype == labels.dtype
    np.testing.assert_array_equal(classifier.classes_, sorted(names))
    assert classifier.score(X, labels) > 0.6


def test_tensors_are_read_like_arrays(classifier: Any) -> None:
    X, y = blobs()
    expected = classifier.fit(X, y).scores(X)
    features = torch.tensor(X, requires_grad=True)
    classifier.fit(features, torch.tensor(y), sample_weight=torch.ones(len(y)))
    np.testing.assert_array_equal(classifier.scores(features), expected)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_read_with_their_names(classifier: Any, library: str) -> None:
    module = pytest.importorskip(library)
    X, y = blobs()
    frame = module.DataFrame({f"feature_{index}": column for index, column in enumerate(X.T)})
    classifier.fit(frame, module.Series(y))
    np.testing.assert_array_equal(classifier.feature_names_in_, [f"feature_{index}" for index in range(5)])
    np.testing.assert_allclose(classifier.scores(frame), classifier.fit(X, y).scores(X))


def test_fitting_draws_no_random_numbers_and_keeps_threads(classifier: Any) -> None:
    X, y = blobs()
    torch_state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = classifier.fit(X, y).scores(X)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(classifier.fit(X, y).scores(X), first)


def test_wrong_inputs_are_named(classifier: Any) -> None:
    X, y = blobs()
    with pytest.raises(ValueError, match="zero"):
        classifier.fit(X, y, sample_weight=np.zeros(len(y)))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        classifier.fit(X, y, sample_weight=-np.ones(len(y)))
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier.fit(X, X[:, 0])
    with pytest.raises(ValueError, match="NaN"):
        classifier.fit(np.where(X > 1, np.nan, X), y)
    with pytest.raises(ValueError, match="expecting 5 features"):
        classifier.fit(X, y).predict(X[:, :3])


def test_a_subclass_must_say_how_it_scores() -> None:
    with pytest.raises(NotImplementedError):
        ScoreClassifier()._score(np.zeros((1, 1)))
