"""Odd numbers, for every augmenter and every classifier: what comes out is finite, or the cause is named."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cpaan import (
    CPAAN,
    Anchored,
    CosineClassifier,
    DeviationTransfer,
    EmpiricalBayes,
    FeatureHallucination,
    FeatureImagination,
    LinearClassifier,
    LowShotClassifier,
    NearestPrototype,
    PooledGaussian,
)
from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.distribution_calibration import DistributionCalibration
from cpaan.augmenters.smote import Smote
from cpaan.errors import InputError
from cpaan.methods import CLASSIFIERS, Settings, augmenter_classes, make_classifier, set_numbers

FloatArray = npt.NDArray[np.floating[Any]]

pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning"),  # NumPy tells of overflow that way
    pytest.mark.filterwarnings("ignore::UserWarning"),  # few classes, few steps: all known here
]

# What makes those that are trained small enough; each has its own names for the number of steps.
TINY: dict[str, dict[str, Any]] = {
    "CPAAN": {"episodes": 3, "width": 16, "noise_dimension": 4, "novel_per_episode": 2, "batch_size": 40},
    "FeatureHallucination": {"iterations": 3, "centroids": 4},
    "FeatureImagination": {"episodes": 3},
    "SiameseNetwork": {"episodes": 3, "width": 8},
    "MAML": {"episodes": 3, "width": 8},
    "AttentiveWeightGenerator": {"episodes": 3, "base_episodes": 3},
    "PrototypicalNetwork": {"episodes": 3, "width": 8},
    "MatchingNetwork": {"episodes": 3, "width": 8, "context_width": 4},
    "PrototypeMatchingNetwork": {"episodes": 3, "width": 8, "context_width": 4},
}
FAST = (Anchored, DeviationTransfer, DistributionCalibration, EmpiricalBayes, PooledGaussian, Smote)
TRAINED = tuple(kind for kind in augmenter_classes() if kind not in FAST)
NAME = attrgetter("__name__")
KINDS: dict[str, Callable[[FloatArray, int], FloatArray]] = {
    "spread": lambda X, _: X,
    "non-negative": lambda X, _: np.maximum(X, 0),
    "zero": lambda X, _: 0 * X,
    "constant": lambda X, _: np.ones_like(X),
    "the same in a class": lambda X, per_class: np.repeat(X[::per_class], per_class, axis=0),
    "one row for all": lambda X, _: np.repeat(X[:1], len(X), axis=0),
    "collinear": lambda X, _: X[:, :1] * np.arange(1, X.shape[1] + 1),
    "far away": lambda X, _: X + 1e6,
    "columns of all sizes": lambda X, _: X * np.logspace(-20, 0, X.shape[1]),
    "rows of all sizes": lambda X, _: X * np.logspace(-20, 0, len(X))[:, np.newaxis],
    "an outlier": lambda X, _: X * np.where(np.arange(len(X)) == 0, 1e10, 1)[:, np.newaxis],
}
ROOM = 100  # times the largest feature given, below which what is made must stay


def build(kind: Any, **changes: Any) -> Any:
    """Make an augmenter or classifier of a few steps."""
    estimator = kind(random_state=0) if issubclass(kind, BaseAugmenter) else kind()
    wanted = {"device": "cpu", "random_state": 0, **TINY.get(kind.__name__, {}), **changes}
    return set_numbers(estimator, wanted, strict=False)


def table(kind: str, n_classes: int, per_class: int, dimension: int, scale: float, dtype: Any) -> Any:
    """Draw classes of an odd kind; returns features and whole numbers for labels."""
    rng = np.random.default_rng(n_classes)
    centers = 4 * rng.normal(size=(n_classes, 1, dimension))
    X = (centers + rng.normal(size=(n_classes, per_class, dimension))).reshape(-1, dimension)
    limit = float(np.finfo(dtype).max) / 2
    features = np.clip(KINDS[kind](X, per_class) * scale, -limit, limit).astype(dtype)
    return features, np.repeat(np.arange(n_classes), per_class)


tables = st.builds(
    table,
    st.sampled_from(list(KINDS)),
    st.sampled_from([2, 4, 7]),
    st.integers(1, 4),
    st.sampled_from([1, 2, 20]),
    st.sampled_from([1e-20, 1e-4, 1.0, 1e4, 1e20]),
    st.sampled_from([np.float16, np.float32, np.float64]),
)


@st.composite
def raw_tables(draw: st.DrawFn) -> Any:
    """Draw features number by number: zeros, numbers below the smallest normal one, and all up to 1e20."""
    n_classes, per_class, dimension = draw(st.sampled_from([4, 5])), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width: Any = draw(st.sampled_from([16, 32, 64]))
    limit = 2.0**15 if width == 16 else 2.0**66
    numbers = st.floats(-limit, limit, width=width)
    features = draw(arrays_of.arrays(f"float{width}", (n_classes * per_class, dimension), elements=numbers))
    return features, np.repeat(np.arange(n_classes), per_class)


def check_made(made: Any, names: Any, shots: Any, labels: Any, per_class: int) -> None:
    assert type(made) is type(shots)
    assert made.dtype == shots.dtype
    assert made.shape == (per_class * len(np.unique(labels)), shots.shape[1])
    assert np.isfinite(made).all()
    assert names.tolist() == np.repeat(np.unique(labels), per_class).tolist()


def check_augmenter(kind: Any, X: FloatArray, y: Any, **changes: Any) -> None:
    """Fit, augment and resample; what does not fit into the type given is refused, and nothing else is."""
    room = float(np.abs(X).max()) * ROOM < float(np.finfo(X.dtype).max)
    shots, labels, before = X[: len(X) // 2].copy(), y[: len(X) // 2] + 1000, X.copy()
    try:
        augmenter = build(kind, **changes)
        if len(np.unique(y)) < 4 and kind.__name__ == "CPAAN":
            augmenter.fit_direct(X, y, shots, labels)
        else:
            augmenter.fit(X, y)
        made, names = augmenter.augment(shots, labels, per_class=3)
        check_made(made, names, shots, labels, 3)
        kept = (y != 0) | (np.arange(len(y)) == 0)  # one example of the first class
        X_new, y_new = build(kind, **changes).fit_resample(X[kept], y[kept])
        assert X_new.dtype == X.dtype
        assert X_new[: kept.sum()].tobytes() == X[kept].tobytes()
        assert np.isfinite(X_new).all()
        assert set(y_new[kept.sum() :].tolist()) <= {0}
    except InputError as error:
        if room or "go beyond" not in str(error):
            raise
    assert X.tobytes() == before.tobytes()
    assert shots.tobytes() == before[: len(shots)].tobytes()


@pytest.mark.parametrize("kind", FAST, ids=NAME)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=tables | raw_tables())
def test_augmenters_make_finite_examples_of_odd_classes(kind: Any, data: Any) -> None:
    check_augmenter(kind, *data)


@pytest.mark.parametrize("kind", TRAINED, ids=NAME)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=tables | raw_tables())
def test_trained_augmenters_make_finite_examples_of_odd_classes(kind: Any, data: Any) -> None:
    check_augmenter(kind, *data)


def fitted_classifier(name: str, X: FloatArray, y: Any) -> Any:
    classifier = build(type(make_classifier(name, Settings(device="cpu"))))
    if hasattr(classifier, "meta_fit"):
        classifier.meta_fit(X, y)
    return classifier.fit(X, y)


def check_answers(classifier: Any, X: FloatArray, labels: Any) -> None:
    scores, probabilities = classifier.scores(X), classifier.predict_proba(X)
    assert scores.shape == probabilities.shape == (len(X), len(labels))
    assert scores.dtype == probabilities.dtype == np.float64
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert set(classifier.predict(X).tolist()) <= set(labels.tolist())


@pytest.fixture(params=list(CLASSIFIERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=tables)
def test_classifiers_give_finite_answers_for_odd_classes(name: str, data: Any) -> None:
    X, y = data
    check_answers(fitted_classifier(name, X, y), np.concatenate([X, -X[:2], 0 * X[:1]]), np.unique(y))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=raw_tables())
def test_classifiers_give_finite_answers_for_any_numbers(name: str, data: Any) -> None:
    X, y = data
    check_answers(fitted_classifier(name, X, y), np.concatenate([X, -X[:2], 0 * X[:1]]), np.unique(y))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=tables | raw_tables(),
    augmenter=st.sampled_from(FAST),
    classifier=st.sampled_from([None, NearestPrototype, LinearClassifier, CosineClassifier]),
)
def test_a_low_shot_classifier_gives_finite_answers_for_odd_classes(data: Any, augmenter: Any, classifier: Any) -> None:
    X, y = data
    model = LowShotClassifier(augmenter=build(augmenter, per_class=3), classifier=classifier and classifier()).fit(X, y)
    check_answers(model, X, np.unique(y))
    model.add_classes(X[:1] / 2, [100]).add_classes(X[-2:] / 2, [101, 100])
    check_answers(model, X, np.array([*np.unique(y), 100, 101]))


def near_the_limit_of_half_precision() -> Any:
    X = 2e4 * np.random.default_rng(0).normal(size=(16, 3))
    return np.clip(X, -6e4, 6e4).astype(np.float16), np.repeat(np.arange(4), 4)


def test_what_half_precision_cannot_hold_is_refused_with_the_cure() -> None:
    """Found by the tests above: draws about features near the limit came back infinite."""
    X, y = near_the_limit_of_half_precision()
    augmenter = PooledGaussian(random_state=0).fit(X, y)
    with pytest.raises(InputError, match=r"go beyond 6\.55e\+04, the largest number that float16 holds; .*float64"):
        augmenter.augment(X, y + 1000, per_class=1000)
    with pytest.raises(InputError, match="float16 holds"):
        PooledGaussian(random_state=0, per_class=1000).fit_resample(X[3:], y[3:])
    tensors = torch.tensor(X)
    with pytest.raises(InputError, match="float16 holds"):
        augmenter.augment(tensors, y + 1000, per_class=1000)
    made, _ = augmenter.augment(X.astype(np.float64), y + 1000, per_class=1000)
    assert np.abs(made).max() > np.finfo(np.float16).max


def test_a_low_shot_classifier_makes_examples_of_half_precision_shots_in_a_wider_type() -> None:
    X, y = near_the_limit_of_half_precision()
    model = LowShotClassifier(augmenter=PooledGaussian(random_state=0, per_class=1000)).fit(X, y)
    check_answers(model.add_classes(X[:1], [100]), X, np.array([*range(4), 100]))


def test_calibrated_distributions_are_drawn_in_the_type_of_the_features() -> None:
    """Found by the tests above: deviations beyond single precision became infinite on the way."""
    X, y = table("spread", 4, 4, 3, 1e40, np.float64)
    made, _ = DistributionCalibration(random_state=0).fit(X, y).augment(X, y + 1000, per_class=20)
    assert np.isfinite(made).all()
    assert np.abs(made).max() > 1e40


MANY, WIDE = 10_000, 4096


@pytest.mark.parametrize("kind", FAST, ids=NAME)
def test_augmenters_serve_ten_thousand_classes(kind: Any) -> None:
    # The temperature of deviation transfer comes from the distances of all base classes, which takes seconds.
    base = table("spread", 1000 if kind is DeviationTransfer else MANY, 1, 2, 1.0, np.float32)
    X, y = table("spread", MANY, 1, 2, 1.0, np.float32)
    made, names = build(kind).fit(*base).augment(X, y + MANY, per_class=1)
    check_made(made, names, X, y + MANY, 1)


# Those that decompose a matrix of all features do so for minutes in as many dimensions as these, like CPAAN where it
# estimates centres.
@pytest.mark.parametrize(
    ("kind", "changes", "dimension"),
    [
        (CPAAN, {"center": "shots"}, WIDE),
        (DeviationTransfer, {}, WIDE),
        (DistributionCalibration, {}, WIDE),
        (EmpiricalBayes, {}, 300),
        (FeatureHallucination, {}, WIDE),
        (FeatureImagination, {}, 300),
        (PooledGaussian, {}, 300),
        (Smote, {}, WIDE),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_augmenters_serve_thousands_of_dimensions(kind: Any, changes: Any, dimension: int) -> None:
    check_augmenter(kind, *table("collinear", 4, 2, dimension, 1e-20, np.float32), **changes)


@pytest.mark.parametrize("name", ["nearest-prototype", "cosine"])
def test_classifiers_serve_ten_thousand_classes(name: str) -> None:
    X, y = table("spread", MANY, 1, 2, 1.0, np.float32)
    classifier = make_classifier(name)
    if name == "cosine":
        classifier.set_params(max_iterations=1)  # type: ignore[no-untyped-call]
    check_answers(classifier.fit(X, y), X[:3], np.unique(y))  # type: ignore[attr-defined]


def test_classifiers_serve_thousands_of_dimensions(name: str) -> None:
    X, y = table("collinear", 4, 2, WIDE, 1e20, np.float64)
    check_answers(fitted_classifier(name, X, y), X, np.unique(y))
