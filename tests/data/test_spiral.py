"""The spiral: where its arms lie, and that they are curved and apart."""

from typing import Any

import numpy as np
import pytest

from cpaan.data import FeatureSet, make_spiral
from cpaan.errors import InputError


@pytest.fixture(scope="module")
def arms() -> FeatureSet:
    split = make_spiral()
    return split.base.concatenate(split.shots).concatenate(split.unseen)


def test_parts() -> None:
    split = make_spiral(shots=3, per_arm=50)
    assert split.base.classes == ("top", "bottom")
    assert split.novel_classes == ("left", "right")
    assert split.base.counts.tolist() == [50, 50]
    assert split.shots.counts.tolist() == [3, 3]
    assert split.unseen.counts.tolist() == [47, 47]


@pytest.mark.parametrize(
    ("name", "direction"), [("top", (0, 1)), ("bottom", (0, -1)), ("left", (-1, 0)), ("right", (1, 0))]
)
def test_arms_lie_where_their_names_say(arms: FeatureSet, name: str, direction: tuple[int, int]) -> None:
    centre = arms.of_class(name).mean(axis=0)
    assert centre @ direction > 0.9 * np.linalg.norm(centre)
    assert np.linalg.norm(centre) > 0.3


def test_arms_do_not_touch(arms: FeatureSet) -> None:
    distances = np.linalg.norm(arms.features[:, None] - arms.features[None], axis=-1)
    apart = arms.labels[:, None] != arms.labels[None]
    to_own = np.where(apart | np.eye(len(arms), dtype=bool), np.inf, distances).min(axis=1)
    assert np.all(to_own < distances[apart].min())
    assert np.abs(arms.features).max() < 1.1


def test_arms_are_curved_copies_of_each_other() -> None:
    split = make_spiral(per_arm=400, noise=0)
    top, left = split.base.of_class("top"), split.unseen.of_class("left")
    quarter_turn = np.array([[0, 1], [-1, 0]])
    gaps = np.linalg.norm((top @ quarter_turn)[:, None] - left[None], axis=-1).min(axis=1)
    assert gaps.max() < 0.05
    straightness = np.linalg.svd(top - top.mean(axis=0), compute_uv=False)
    assert straightness[1] / straightness[0] > 0.2


def test_points_do_not_depend_on_the_shots() -> None:
    few, many = make_spiral(shots=1), make_spiral(shots=5)
    assert few.base == many.base
    for name in ("left", "right"):
        np.testing.assert_array_equal(few.shots.of_class(name), many.shots.of_class(name)[:1])


def test_the_seed_decides() -> None:
    assert make_spiral(random_state=1) == make_spiral(random_state=1)
    assert make_spiral(random_state=1) != make_spiral(random_state=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": 0}, "shots is 0"),
        ({"shots": 10, "per_arm": 10}, "class 'left' has 10 examples"),
        ({"per_arm": 0}, "per_arm is 0"),
        ({"noise": -0.1}, r"noise is -0\.1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"random_state": "x"}, "must be None, a Generator or an int"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_spiral(**options)
