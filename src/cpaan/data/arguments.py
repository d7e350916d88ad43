"""Arguments that several loaders take: whole numbers and seeds."""

from numbers import Integral
from typing import TypeAlias

import numpy as np

from cpaan.errors import InputError

RandomState: TypeAlias = int | np.random.Generator | None


def as_whole_number(value: int, name: str, minimum: int) -> int:
    """Read a whole number.

    Parameters
    ----------
    value : int
        What was given.
    name : str
        Name of the argument, for the message.
    minimum : int
        The least that it may be.

    Returns
    -------
    int
        The number.

    Raises
    ------
    InputError
        Where it is no whole number or too small.

    Examples
    --------
    >>> as_whole_number(np.int64(3), "shots", minimum=1)
    3
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise InputError(f"{name} is {value!r}; give a whole number of at least {minimum}")
    return int(value)


def as_generator(random_state: RandomState) -> np.random.Generator:
    """Make a generator of random numbers.

    Parameters
    ----------
    random_state : int, numpy.random.Generator or None
        A seed; a generator is used as it is, and None seeds afresh.

    Returns
    -------
    numpy.random.Generator
        The generator.

    Raises
    ------
    InputError
        Where it is no seed.

    Examples
    --------
    >>> int(as_generator(0).integers(100)) == int(as_generator(0).integers(100))
    True
    """
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(f"random_state {random_state!r} is no seed; give a whole number from 0") from error
