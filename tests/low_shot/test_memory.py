"""What is kept of base classes stands for all of them."""

import numpy as np
import pytest

from cpaan.classifiers import LinearClassifier, NearestPrototype
from cpaan.low_shot.classifier import ClassMemory


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = np.repeat([2, 0, 1], [40, 10, 25])
    return 1e4 + 3 * rng.normal(size=(3, 6))[targets] + rng.normal(size=(75, 6)), targets


@pytest.mark.parametrize("keep", [0, 1, 7, 20, None])
def test_means_and_weights_are_those_of_all_examples(keep: int | None) -> None:
    X, targets = data()
    classes = np.array(["a", "b", "c"])
    rows, labels, weights = ClassMemory.of(X, targets, classes, keep).training_set()
    assert len(rows) == sum(min(count, max(keep if keep is not None else 99, 1)) for count in (40, 10, 25))
    for index, name in enumerate(classes):
        mine = labels == name
        assert weights[mine].sum() == pytest.approx((targets == index).sum())
        np.testing.assert_allclose(rows[mine].mean(0), X[targets == index].mean(0), rtol=0, atol=1e-8)


def test_all_examples_are_kept_as_they_were_up_to_half_precision() -> None:
    X, targets = data()
    memory = ClassMemory.of(X, targets, np.arange(3), None)
    assert memory.deviations.dtype == np.float16
    rows, labels, weights = memory.training_set()
    order = np.argsort(targets, kind="stable")
    np.testing.assert_array_equal(labels, targets[order])
    np.testing.assert_allclose(rows, X[order], rtol=0, atol=5e-3)  # 2⁻¹¹ of deviations below 5
    np.testing.assert_allclose(weights, 1)


def test_kept_examples_are_spread_over_all() -> None:
    X = np.arange(10.0)[:, np.newaxis]
    memory = ClassMemory.of(X, np.zeros(10, dtype=int), np.array(["only"]), 4)
    np.testing.assert_allclose(memory.means + memory.scales * memory.deviations, [[0], [3], [6], [9]], atol=1e-2)


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_the_unit_of_features_does_not_matter(unit: float) -> None:
    X, targets = data()
    here = ClassMemory.of(X, targets, np.arange(3), 5).training_set()[0]
    there = ClassMemory.of(unit * X, targets, np.arange(3), 5).training_set()[0]
    np.testing.assert_allclose(there / unit, here, rtol=1e-7)


def test_classifiers_learn_nearly_the_same() -> None:
    X, targets = data()
    classes = np.arange(3)
    rows, labels, weights = ClassMemory.of(X, targets, classes, 0).training_set()
    nearest = NearestPrototype().fit(rows, labels, sample_weight=weights)
    np.testing.assert_allclose(nearest.prototypes_, NearestPrototype().fit(X, targets).prototypes_)
    rows, labels, weights = ClassMemory.of(X, targets, classes, None).training_set()
    linear = LinearClassifier().fit(rows, labels, sample_weight=weights)
    np.testing.assert_allclose(linear.coef_, LinearClassifier().fit(X, targets).coef_, atol=2e-3)
