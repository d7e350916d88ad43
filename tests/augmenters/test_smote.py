"""SMOTE: every example on a segment to a near neighbour, as imbalanced-learn has it, and few examples no harm."""

import numpy as np
import numpy.typing as npt
import pytest
from imblearn.over_sampling import SMOTE

from cpaan import InputError
from cpaan.augmenters.smote import Smote

FloatArray = npt.NDArray[np.float64]
BASE = np.arange(12.0).reshape(6, 2), ["a"] * 3 + ["b"] * 3
EXAMPLES = np.random.default_rng(0).normal(size=(12, 2)) * [1.0, 3.0]


def on_segments(made: FloatArray, examples: FloatArray, k: int) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Tell for each made example which ordered pairs (i, one of its k neighbours) it lies between: (made, n, k)."""
    distances = np.linalg.norm(examples[:, None] - examples[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    ends = examples[np.argsort(distances, axis=1)[:, :k]]
    lines = ends - examples[:, None]
    offsets = made[:, None, None] - examples[None, :, None]
    g = np.clip((offsets * lines).sum(-1) / np.square(lines).sum(-1), 0, 1)
    return np.abs(offsets - g[..., None] * lines).max(-1) < 1e-9, g


def imbalanced_learn(k: int, number: int) -> FloatArray:
    rng = np.random.default_rng(1)
    X = np.concatenate([EXAMPLES, rng.normal(size=(number + len(EXAMPLES), 2))])
    y = np.repeat([0, 1], [len(EXAMPLES), number + len(EXAMPLES)])
    made: FloatArray = SMOTE(k_neighbors=k, random_state=0).fit_resample(X, y)[0][len(X) :]
    return made


@pytest.mark.parametrize("k", [1, 3, 5])
def test_examples_lie_on_segments_to_near_neighbours_as_in_imbalanced_learn(k: int) -> None:
    ours, _ = Smote(neighbors=k, random_state=0).fit(*BASE).augment(EXAMPLES, ["new"] * 12, per_class=4000)
    theirs = imbalanced_learn(k, 4000)
    for made in (ours, theirs):
        between, _ = on_segments(made, EXAMPLES, k)
        assert between.any((1, 2)).all()
        assert between.any(0).all()  # every segment is used
    if k == 1:  # a wider neighbourhood is told apart
        wider, _ = Smote(neighbors=4, random_state=0).fit(*BASE).augment(EXAMPLES, ["new"] * 12, per_class=400)
        assert not on_segments(wider, EXAMPLES, 1)[0].any((1, 2)).all()
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.1)
    np.testing.assert_allclose(np.cov(ours.T), np.cov(theirs.T), atol=0.3)


def test_places_on_a_segment_are_uniform_and_examples_take_part_alike() -> None:
    two = np.array([[0.0, 0.0], [4.0, 8.0]])
    made, _ = Smote(random_state=0).fit(*BASE).augment(two, ["new"] * 2, per_class=8000)
    np.testing.assert_allclose(made[:, 1], 2 * made[:, 0], atol=1e-12)
    deciles = np.quantile(made[:, 0] / 4, np.arange(1, 10) / 10)
    np.testing.assert_allclose(deciles, np.arange(1, 10) / 10, atol=0.03)


def test_fewer_examples_have_fewer_neighbours() -> None:
    three = EXAMPLES[:3]
    made, _ = Smote(neighbors=5, random_state=0).fit(*BASE).augment(three, ["new"] * 3, per_class=300)
    assert on_segments(made, three, 2)[0].any((1, 2)).all()


def test_a_single_example_is_copied_or_refused() -> None:
    X, y = np.concatenate([EXAMPLES[:1], EXAMPLES]), ["single"] + ["many"] * 12
    made, names = Smote(random_state=0).fit(*BASE).augment(X, y, per_class=3)
    np.testing.assert_array_equal(made[names == "single"], np.repeat(EXAMPLES[:1], 3, axis=0))
    with pytest.raises(InputError, match=r"one example only of 'single'.*give two examples at least"):
        Smote(single="refuse").fit(*BASE).augment(X, y)


def test_twins_are_neighbours_and_nobody_is_his_own() -> None:
    examples = np.array([[0.0, 0.0]] * 3 + [[1.0, 1.0]])
    made, _ = Smote(neighbors=1, random_state=0).fit(*BASE).augment(examples, ["new"] * 4, per_class=400)
    moved = (made != 0).any(1)
    assert moved.sum() == 100  # the fourth example alone has a neighbour elsewhere


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match="neighbors is 0; give a whole number of at least 1"):
        Smote(neighbors=0).fit(*BASE)
    with pytest.raises(InputError, match="unknown single 'drop'; choose one of copy, refuse"):
        Smote(single="drop").fit(*BASE)
