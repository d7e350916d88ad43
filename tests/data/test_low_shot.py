"""Low-shot splits: nested draws, nothing lost, nothing in two places."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpaan.data import FeatureSet, LowShotSplit, draw_shots, low_shot_split
from cpaan.errors import InputError

# Every row is its own number, so that a row can be followed through a split.
ROWS = FeatureSet(np.arange(60, dtype=np.float64).reshape(-1, 1), [f"c{row % 4}" for row in range(60)])


@given(shots=st.integers(1, 14), seed=st.integers(0, 2**32))
def test_a_draw_parts_the_rows_of_each_class(shots: int, seed: int) -> None:
    known, rest = draw_shots(ROWS, shots, seed)
    assert known.counts.tolist() == [shots] * 4
    assert known.classes == rest.classes == ROWS.classes
    together = np.concatenate([known.features, rest.features]).ravel()
    assert sorted(together) == list(range(60))
    assert [f"c{int(row) % 4}" for row in known.features.ravel()] == known.names.tolist()


@given(few=st.integers(1, 14), many=st.integers(1, 14), seed=st.integers(0, 2**32))
def test_shots_are_nested(few: int, many: int, seed: int) -> None:
    few, many = min(few, many), max(few, many)
    fewer, more = draw_shots(ROWS, few, seed)[0], draw_shots(ROWS, many, seed)[0]
    for name in ROWS.classes:
        np.testing.assert_array_equal(fewer.of_class(name), more.of_class(name)[:few])


def test_the_seed_decides() -> None:
    assert draw_shots(ROWS, 3, 7) == draw_shots(ROWS, 3, 7)
    assert draw_shots(ROWS, 3, 7) == draw_shots(ROWS, 3, np.random.default_rng(7))
    assert draw_shots(ROWS, 3, 7)[0] != draw_shots(ROWS, 3, 8)[0]


@pytest.mark.parametrize(
    ("shots", "message"),
    [
        (0, "shots is 0"),
        (-1, "shots is -1"),
        (1.0, r"shots is 1\.0"),
        (True, "shots is True"),
        (5, "class 'rare' has 5 examples, too few to draw 5 shots and keep one unseen"),
        (9, "class 'rare' has 5 examples"),
    ],
)
def test_wrong_numbers_of_shots(shots: Any, message: str) -> None:
    uneven = FeatureSet(np.zeros((15, 1)), ["common"] * 10 + ["rare"] * 5)
    with pytest.raises(InputError, match=message):
        draw_shots(uneven, shots, 0)


@pytest.mark.parametrize("seed", [-1, "seed", 0.5])
def test_wrong_seeds(seed: Any) -> None:
    with pytest.raises(InputError, match="must be None, a Generator or an int"):
        draw_shots(ROWS, 1, seed)


def test_low_shot_split() -> None:
    split = low_shot_split(ROWS, base=["c3", "c0"], novel=["c2", "c1"], shots=2, random_state=0)
    assert split.base == ROWS.select(["c3", "c0"])
    assert split.novel_classes == split.unseen.classes == ("c2", "c1")
    assert len(split.shots) == 4
    assert len(split.unseen) == 26


def test_wrong_class_lists() -> None:
    with pytest.raises(InputError, match="both base and novel: 'c1'; a class can be one"):
        low_shot_split(ROWS, base=["c0", "c1"], novel=["c1", "c2"], shots=99, random_state=0)
    with pytest.raises(InputError, match="unknown class 'c9'"):
        low_shot_split(ROWS, base=["c0"], novel=["c9"], shots=1, random_state=0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((["a"], ["b"], ["b"], 2), "1, 1, 2 features; they must agree"),
        ((["a", "b"], ["b"], ["b"], 1), "both base and novel: 'b'"),
        ((["a"], ["b"], ["b", "c"], 1), "only one has 'c'"),
    ],
)
def test_parts_that_do_not_fit(parts: tuple[list[str], list[str], list[str], int], message: str) -> None:
    base, shots, unseen, dimension = parts
    with pytest.raises(InputError, match=message):
        LowShotSplit(
            FeatureSet(np.zeros((len(base), 1)), base),
            FeatureSet(np.zeros((len(shots), 1)), shots),
            FeatureSet(np.zeros((len(unseen), dimension)), unseen),
        )


def test_classes_in_another_order() -> None:
    base = FeatureSet([[0.0]], ["a"])
    novel = FeatureSet([[0.0], [1.0]], ["b", "c"])
    with pytest.raises(InputError, match="order differs"):
        LowShotSplit(base, novel, novel.select(["c", "b"]))
