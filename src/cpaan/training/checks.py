"""Refusals of wrong numbers, by name."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np

from cpaan.errors import InputError


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a real number, of Python or NumPy; a truth value is none.

    >>> is_number(np.float32(0.5)), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number, or too small.

    >>> check_count("width", 0)
    Traceback (most recent call last):
        ...
    cpaan.errors.InputError: width must be a whole number of at least 1, not 0
    """
    if not _is_count(value, least):
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no positive number.

    >>> check_positive("learning_rate", "fast")
    Traceback (most recent call last):
        ...
    cpaan.errors.InputError: learning_rate must be a positive number, not 'fast'
    """
    if not is_number(value) or not 0 < value < float("inf"):
        raise InputError(f"{name} must be a positive number, not {value!r}")


def read_counts(name: str, values: Any) -> tuple[int, ...]:
    """Read one or more whole numbers of at least 1, from a list, a tuple, an array or the like.

    >>> read_counts("shots", np.array([1, 5]))
    (1, 5)
    """
    listed = tuple(values) if isinstance(values, Sequence) or np.ndim(values) == 1 else ()
    if not listed or not all(_is_count(each, 1) for each in listed):
        raise InputError(f"{name} must be one or more whole numbers of at least 1, as in (1, 5), not {values!r}")
    return tuple(int(each) for each in listed)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
