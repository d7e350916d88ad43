"""One contract for every meta-trained classifier in the table of methods, whoever wrote it."""

import pickle
import random
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.low_shot import draw_shots
from cpaan.data.toys import glyph_split, load_glyphs
from cpaan.errors import InputError
from cpaan.evaluation.scores import evaluate_low_shot
from cpaan.methods import CLASSIFIERS, METHODS, Settings, make_classifier

FloatArray = npt.NDArray[np.float64]
Examples = tuple[FloatArray, npt.NDArray[Any]]
D = 6

# What makes a classifier small enough for a test; a class that is not here gets the last one.
SMALL: dict[str, dict[str, Any]] = {
    "SiameseNetwork": {"episodes": 3, "width": 8},
    "MAML": {"episodes": 3, "width": 8},
    "AttentiveWeightGenerator": {"episodes": 3, "base_episodes": 3},
    "PrototypicalNetwork": {"episodes": 3, "width": 8},
    "MatchingNetwork": {"episodes": 3, "width": 8, "context_width": 4},
    "PrototypeMatchingNetwork": {"episodes": 3, "width": 8, "context_width": 4},
}
GENERIC = {"episodes": 3}

# The quick recipe, shortened where it takes more than a second or two.
SHORTENED: dict[str, dict[str, Any]] = {
    "SiameseNetwork": {"episodes": 60},
    "AttentiveWeightGenerator": {"episodes": 60, "base_episodes": 60},
}
SHORT = {"episodes": 10}


def build(name: str, random_state: Any = 0, **changes: Any) -> Any:
    classifier = make_classifier(name, Settings(device="cpu", random_state=random_state))
    small = changes or SMALL.get(type(classifier).__name__, GENERIC)
    return classifier.set_params(**small)  # type: ignore[no-untyped-call]


NAMES = [name for name in CLASSIFIERS if isinstance(make_classifier(name), MetaClassifier)]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def gaussian_classes(n_classes: int, per_class: int, seed: int, dimension: int = D) -> Examples:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 1, dimension))
    X = (centers + rng.normal(size=(n_classes, per_class, dimension))).reshape(-1, dimension)
    return X, np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


def both(first: Examples, second: Examples) -> Examples:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


BASE, NOVEL, OTHER = gaussian_classes(8, 10, seed=0), gaussian_classes(3, 2, seed=1), gaussian_classes(2, 3, seed=2)


@cache
def meta_fitted(name: str) -> Any:
    return build(name).meta_fit(*BASE)


@pytest.fixture
def learned(name: str) -> Any:
    """One that has learned from base classes; what a test does to it does not reach the next."""
    return deepcopy(meta_fitted(name))


def test_it_is_a_method_and_a_classifier_of_the_same_name(name: str) -> None:
    assert METHODS[name].classifier == name
    assert METHODS[name].augmenter is None


def test_it_predicts_over_base_and_novel_classes(learned: Any) -> None:
    X, y = both(BASE, NOVEL)
    assert learned.fit(X, y) is learned
    np.testing.assert_array_equal(learned.classes_, np.unique(y))
    assert learned.base_classes_ == tuple(np.unique(BASE[1]))
    assert learned.scores(X).shape == (len(X), 11)
    assert (learned.predict(X) == y).mean() > 0.8
    assert (learned.predict(NOVEL[0]) == NOVEL[1]).mean() > 0.5
    np.testing.assert_array_equal(learned.classes_[learned.scores(X).argmax(axis=1)], learned.predict(X))


def test_it_takes_novel_classes_alone_and_others_after_them(learned: Any) -> None:
    first = learned.fit(*NOVEL).scores(NOVEL[0])
    assert (learned.predict(NOVEL[0]) == NOVEL[1]).mean() > 0.8
    learned.fit(*OTHER)
    np.testing.assert_array_equal(learned.classes_, np.unique(OTHER[1]))
    assert (learned.predict(OTHER[0]) == OTHER[1]).mean() > 0.8
    np.testing.assert_array_equal(learned.fit(*NOVEL).scores(NOVEL[0]), first)  # nothing of the others is left


def test_fit_leaves_what_was_meta_learned_alone(learned: Any) -> None:
    before = {key: value.clone() for key, value in learned._tensors().items()}
    learned.fit(*both(BASE, NOVEL)).predict(NOVEL[0])
    after = learned._tensors()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_without_meta_fit_it_learns_from_what_fit_is_given_each_time(name: str) -> None:
    classifier = build(name).fit(*BASE)
    assert classifier.base_classes_ == tuple(np.unique(BASE[1]))
    assert classifier.fit(*OTHER).base_classes_ == tuple(np.unique(OTHER[1]))


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones(name: str) -> None:
    X, y = both(BASE, NOVEL)
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed + 17)  # the global state must not matter
        np.random.seed(seed + 18)  # noqa: NPY002
        runs.append(build(name, seed).meta_fit(*BASE).fit(X, y).scores(X))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_the_global_random_state_is_neither_used_nor_changed(name: str) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    build(name).meta_fit(*BASE).fit(*NOVEL).predict(NOVEL[0])
    assert torch.equal(states[0], torch.get_rng_state())
    np.testing.assert_array_equal(states[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert states[2] == random.getstate()


def test_threads_stay_as_they_are(name: str) -> None:
    before = torch.get_num_threads()
    build(name).meta_fit(*BASE).fit(*NOVEL).predict(NOVEL[0])
    assert torch.get_num_threads() == before


def test_a_clone_has_the_same_settings_and_none_of_the_learning(learned: Any) -> None:
    copy = clone(learned)
    assert copy.get_params() == learned.get_params()
    assert not hasattr(copy, "base_classes_")
    assert not hasattr(copy, "meta_fitted_")


def test_saved_and_loaded_it_gives_the_same_scores(learned: Any, tmp_path: Path) -> None:
    X, y = both(BASE, NOVEL)
    expected = learned.fit(X, y).scores(X)
    learned.save(tmp_path / "model")
    loaded = type(learned).load(tmp_path / "model", device="cpu")
    assert loaded.base_classes_ == learned.base_classes_
    np.testing.assert_array_equal(loaded.fit(X, y).scores(X), expected)
    assert type(loaded).__name__ in (tmp_path / "model" / "config.json").read_text()


def test_settings_of_numpy_are_taken_and_saved_as_numbers(name: str, tmp_path: Path) -> None:
    classifier = build(name, np.int64(3))
    given = {key: value for key, value in classifier.get_params().items() if type(value) is int}
    classifier.set_params(**{key: np.int64(value) for key, value in given.items()})
    if "shots" in classifier.get_params():
        classifier.set_params(shots=np.array([1, 2]))
    expected = classifier.meta_fit(*BASE).fit(*NOVEL).scores(NOVEL[0])
    classifier.save(tmp_path / "model")
    loaded = type(classifier).load(tmp_path / "model", device="cpu")
    assert loaded.random_state == 3
    assert all(getattr(loaded, key) == value for key, value in given.items())
    np.testing.assert_array_equal(loaded.fit(*NOVEL).scores(NOVEL[0]), expected)


def test_a_refused_meta_fit_changes_nothing(learned: Any) -> None:
    expected, before = learned.fit(*NOVEL).scores(NOVEL[0]), dict(vars(learned))
    for wrong in ({"episodes": 0}, {"recipe": "slow"}, {"width": -1}):
        given = {key: getattr(learned, key) for key in wrong}
        with pytest.raises(InputError):
            learned.set_params(**wrong).meta_fit(10 * OTHER[0] + 5, OTHER[1])
        learned.set_params(**given)
        assert all(vars(learned)[key] is value for key, value in before.items())
        np.testing.assert_array_equal(learned.scores(NOVEL[0]), expected)


def test_it_survives_pickling(learned: Any) -> None:
    expected = learned.fit(*NOVEL).scores(NOVEL[0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(learned)).scores(NOVEL[0]), expected)


@pytest.mark.parametrize("kind", ["integers", "strings", "booleans"])
def test_labels_keep_their_type(name: str, kind: str) -> None:
    X, _ = gaussian_classes(2 if kind == "booleans" else 4, 6, seed=3)
    index = np.arange(len(X)) // 6
    labels = {"integers": index * 7 - 3, "strings": np.array(list("dbca"))[index], "booleans": index == 1}[kind]
    classifier = build(name).meta_fit(X, labels).fit(X, labels)
    assert classifier.predict(X).dtype == labels.dtype
    np.testing.assert_array_equal(classifier.classes_, np.unique(labels))
    assert (classifier.predict(X) == labels).mean() > 0.8


def test_tensors_and_half_precision_are_read_like_arrays(name: str) -> None:
    X, y = BASE[0].astype(np.float16), np.arange(80) // 10
    expected = build(name).meta_fit(X.astype(np.float64), y).fit(X.astype(np.float64), y).scores(X.astype(np.float64))
    np.testing.assert_allclose(build(name).meta_fit(X, y).fit(X, y).scores(X), expected, atol=1e-9)
    tensor = torch.tensor(X)
    found = build(name).meta_fit(tensor, torch.tensor(y)).fit(tensor, torch.tensor(y)).scores(tensor)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_another_representation_is_refused_by_name(learned: Any) -> None:
    with pytest.raises(InputError, match=r"features have 4 dimensions, but those of meta_fit had 6; .* same represent"):
        learned.fit(NOVEL[0][:, :4], NOVEL[1])


def test_missing_values_are_refused(learned: Any) -> None:
    X = NOVEL[0].copy()
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"(?i)nan"):
        learned.fit(X, NOVEL[1])
    with pytest.raises(ValueError, match=r"(?i)nan"):
        learned.meta_fit(X, NOVEL[1])
    with pytest.raises(ValueError, match=r"(?i)nan"):
        learned.fit(*NOVEL).predict(X)


def test_it_says_when_it_has_not_learned_yet(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        build(name).predict(NOVEL[0])
    with pytest.raises(NotFittedError):
        build(name).save(tmp_path)
    with pytest.raises(InputError, match="unknown recipe 'slow'"):
        build(name).set_params(recipe="slow").meta_fit(*BASE)
    with pytest.raises(InputError, match="random_state cannot be 'lucky'"):
        build(name, random_state="lucky").meta_fit(*BASE)


def test_progress_is_told(name: str) -> None:
    told: list[Any] = []
    build(name).set_params(tell=told.append).meta_fit(*BASE)
    assert told[-1].episode == told[-1].episodes
    assert all(np.isfinite(list(progress.losses.values())).all() for progress in told)


@pytest.mark.parametrize("name", NAMES)  # a fixture that is made once would be drawn into all examples
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    exponent=st.integers(-20, 20),
    dimension=st.sampled_from([1, 2, 40]),
    n_base=st.integers(2, 5),
    per_class=st.integers(1, 3),
    kind=st.sampled_from(["plain", "constant", "duplicated", "one feature constant", "far from zero"]),
    seed=st.integers(0, 3),
)
def test_odd_features_give_finite_scores(
    name: str, exponent: int, dimension: int, n_base: int, per_class: int, kind: str, seed: int
) -> None:
    base = gaussian_classes(n_base, per_class, seed, dimension)
    novel = gaussian_classes(2, 1, seed + 10, dimension)
    X, y = both(base, novel)
    if kind == "constant":
        X[:] = 1.0
    elif kind == "duplicated":
        X[:] = X[[0]]
        X[-1] += 1
    elif kind == "one feature constant":
        X[:, 0] = 3.0
    elif kind == "far from zero":
        X += 1e4
    X *= 10.0**exponent
    classifier = build(name).meta_fit(X[: len(base[0])], base[1])
    for rows in (slice(None), slice(len(base[0]), None)):
        classifier.fit(X[rows], y[rows])
        for queries in (X, np.zeros_like(X), -X):
            assert np.isfinite(classifier.scores(queries)).all()
            probabilities = classifier.predict_proba(queries)
            np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)


@cache
def glyph_task() -> tuple[Any, Any, Any, Any]:
    glyphs = load_glyphs()
    base, novel = glyph_split()
    training, _ = draw_shots(glyphs.select(base), 12, 0)
    shots, unseen = draw_shots(glyphs.select(novel), 1, 0)
    return training, shots, unseen, novel


def test_it_beats_chance_clearly_on_glyphs_with_one_shot(name: str) -> None:
    pytest.importorskip("matplotlib")
    training, shots, unseen, novel = glyph_task()
    kind = type(make_classifier(name)).__name__
    classifier = build(name, **SHORTENED.get(kind, SHORT)).meta_fit(training.features, training.names)
    X, y = np.concatenate([training.features, shots.features]), np.concatenate([training.names, shots.names])
    scores = evaluate_low_shot(classifier.fit(X, y), unseen.features, unseen.names, novel, k=(1,))
    assert scores.lsl[1] > 30  # chance is 100 / 28
