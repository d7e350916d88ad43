"""The nearest prototype against loops and scikit-learn's nearest centroid."""

import tracemalloc

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import NearestCentroid

from cpaan.classifiers import NearestPrototype


def random_data(n: int = 60) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    generator = np.random.default_rng(3)
    return generator.normal(size=(n, 6)), generator.integers(0, 5, n), generator.uniform(0.1, 2.0, n)


def test_prototypes_and_scores_against_loops() -> None:
    X, y, weights = random_data()
    classifier = NearestPrototype().fit(X, y, sample_weight=weights)
    scores = classifier.scores(X)
    for column, label in enumerate(classifier.classes_):
        members = [row for row in range(len(y)) if y[row] == label]
        prototype = sum(weights[row] * X[row] for row in members) / sum(weights[row] for row in members)
        np.testing.assert_allclose(classifier.prototypes_[column], prototype)
        for row in range(len(X)):
            assert np.isclose(scores[row, column], -sum((X[row] - prototype) ** 2))


def test_predictions_against_scikit_learn() -> None:
    X, y, _ = random_data()
    queries = np.random.default_rng(4).normal(size=(200, 6))
    expected = NearestCentroid().fit(X, y).predict(queries)
    np.testing.assert_array_equal(NearestPrototype().fit(X, y).predict(queries), expected)


def test_rotations_and_scalings_keep_the_predictions() -> None:
    X, y, _ = random_data()
    rotation, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(6, 6)))
    moved = 3.7 * X @ rotation
    expected = NearestPrototype().fit(X, y).predict(X)
    np.testing.assert_array_equal(NearestPrototype().fit(moved, y).predict(moved), expected)


def test_a_prototype_has_distance_zero_to_itself_far_from_the_origin() -> None:
    X = 1e6 + np.arange(8.0).reshape(4, 2)
    scores = NearestPrototype().fit(X, [0, 1, 2, 3]).scores(X)
    np.testing.assert_allclose(np.diag(scores), 0.0, atol=1e-9)
    assert (scores <= 0).all()
    assert np.isclose(scores[0, 1], -8.0)


def test_ties_go_to_the_first_class() -> None:
    classifier = NearestPrototype().fit([[1.0], [-1.0]], ["b", "a"])
    assert classifier.predict([[0.0]]) == "a"


def test_scoring_needs_no_array_of_examples_times_classes_times_features() -> None:
    generator = np.random.default_rng(6)
    X, y = generator.normal(size=(400, 256)), np.arange(400) % 200
    classifier = NearestPrototype().fit(X, y)
    tracemalloc.start()
    classifier.scores(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * 200 * 256 * 8 / 10
