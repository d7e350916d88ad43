"""The numbers of meta-training: what is taken, and what is refused by name."""

from typing import Any

import numpy as np
import pytest

from cpaan.classifiers.meta import MetaRecipe
from cpaan.errors import InputError

NUMBERS: dict[str, Any] = {
    **{"episodes": 2, "ways": 3, "shots": (1, 5), "queries": 1},
    **{"learning_rate": 1e-3, "halve_every": 10, "weight_decay": 0.0},
}


@pytest.mark.parametrize("shots", [(1, 5), [1, 5], np.array([1, 5]), range(1, 6, 4), (np.int8(1), np.int64(5))])
def test_shots_are_any_sequence_of_whole_numbers(shots: Any) -> None:
    found = MetaRecipe(**{**NUMBERS, "shots": shots}).shots
    assert found == (1, 5)
    assert [type(each) for each in found] == [int, int]


@pytest.mark.parametrize(
    "shots", [5, (1.5,), (), (0,), (True,), "15", np.array([1.0]), np.array([[1, 2]]), np.array(3), {1: 2}, None]
)
def test_wrong_shots_are_refused(shots: Any) -> None:
    with pytest.raises(InputError, match="shots must be one or more whole numbers of at least 1"):
        MetaRecipe(**{**NUMBERS, "shots": shots})


@pytest.mark.parametrize("name", ["episodes", "ways", "queries", "halve_every"])
def test_counts_are_whole_numbers_of_python_or_numpy(name: str) -> None:
    assert getattr(MetaRecipe(**{**NUMBERS, name: np.int32(7)}), name) == 7
    for wrong in (True, 0, -1, 2.0, "2", None):
        with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, not {wrong!r}"):
            MetaRecipe(**{**NUMBERS, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *(("learning_rate", wrong, "must be a positive number") for wrong in ("x", 0, -1.0, np.nan, np.inf, True)),
        *(("weight_decay", wrong, "must be a number of at least 0") for wrong in ("x", -1, np.nan, np.inf, None)),
    ],
)
def test_wrong_rates_are_refused(name: str, wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"{name} {message}, not {wrong!r}"):
        MetaRecipe(**{**NUMBERS, name: wrong})
