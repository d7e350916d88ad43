"""Whole numbers and seeds among the arguments of loaders."""

from numbers import Integral
from typing import TypeAlias

import numpy as np

from cpaan.errors import InputError

RandomState: TypeAlias = int | np.random.Generator | None


def as_whole_number(value: int, name: str, minimum: int) -> int:
    """Check that an argument is a whole number of at least `minimum`.

    >>> as_whole_number(np.int64(3), "shots", minimum=1)
    3
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise InputError(f"{name} is {value!r}; give a whole number of at least {minimum}")
    return int(value)


def as_generator(random_state: RandomState) -> np.random.Generator:
    """Make a generator from a seed or None; a generator is used as it is."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(f"random_state must be None, a Generator or an int ≥ 0, got {random_state!r}") from error
