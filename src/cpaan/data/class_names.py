"""Class names and indices into them: reading, checking and naming them in messages."""

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import as_labels, container_of, describe_rows, tensor_to_numpy
from cpaan.errors import InputError

IndexArray: TypeAlias = npt.NDArray[np.int64]

_NAMES_SHOWN = 5


def show_names(names: Sequence[Hashable]) -> str:
    """List class names for a message, cut short where there are many.

    Parameters
    ----------
    names : sequence of hashable
        The names.

    Returns
    -------
    str
        Such as "'a', 'b' and 3 more".

    Examples
    --------
    >>> show_names("abcdefg")
    "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def raise_unknown(unknown: Sequence[Hashable], known: Sequence[Hashable], noun: str = "class") -> NoReturn:
    """Refuse names that there are not, offering those that are close.

    Parameters
    ----------
    unknown, known : sequence of hashable
        The names that were asked for in vain, and those that there are.
    noun : str, default="class"
        What the names are names of.

    Examples
    --------
    >>> raise_unknown(["oka"], ["oak", "elm"])
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: no class is called 'oka'; close to it: 'oak'
    """
    by_text = {str(name): name for name in known}
    close = [by_text[text] for text in difflib.get_close_matches(str(unknown[0]), by_text, n=_NAMES_SHOWN)]
    hint = f"close to it: {show_names(close)}" if close else f"there are: {show_names(known)}"
    raise InputError(f"no {noun} is called {show_names(unknown)}; {hint}")


def factorise(labels: Sequence[Hashable]) -> tuple[tuple[Hashable, ...], IndexArray]:
    """Find the distinct class names, and each example's index among them.

    Parameters
    ----------
    labels : sequence of hashable
        Class name of each example.

    Returns
    -------
    classes : tuple of hashable
        Sorted, or in the order of first appearance where they cannot be sorted.
    indices : ndarray of int64
        Index into `classes` of each example.

    Examples
    --------
    >>> factorise(["oak", "elm", "oak"])
    (('elm', 'oak'), array([1, 0, 1]))
    """
    distinct: list[Any] = list(dict.fromkeys(labels))
    try:
        distinct.sort()
    except TypeError:
        # Names of mixed types have no order; those of their first appearance serve as well.
        distinct = list(dict.fromkeys(labels))
    position = {name: index for index, name in enumerate(distinct)}
    return tuple(distinct), np.array([position[label] for label in labels], dtype=np.int64)


def as_classes(classes: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Read distinct class names.

    Parameters
    ----------
    classes : iterable of hashable
        The names.

    Returns
    -------
    tuple of hashable
        The same, in the same order.

    Raises
    ------
    InputError
        Where there are none, or one occurs twice, is missing or cannot be hashed.

    Examples
    --------
    >>> as_classes(np.array([3, 1]))
    (3, 1)
    """
    names = as_labels(classes, name="classes")
    if not names:
        raise InputError("classes is empty; give at least one class name")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"classes has {show_names(twice)} more than once; class names must be distinct")
    return tuple(names)


def as_indices(labels: Any, length: int, n_classes: int) -> IndexArray:
    """Read labels that are indices into the classes.

    Parameters
    ----------
    labels : array, tensor, series or sequence of int
        The indices.
    length : int
        How many there must be.
    n_classes : int
        They must be less than this.

    Returns
    -------
    ndarray of int64
        The indices; it may share memory with `labels`.

    Raises
    ------
    InputError
        Where they are no integers, not so many, or out of range.

    Examples
    --------
    >>> as_indices([1, 0, 1], length=3, n_classes=2)
    array([1, 0, 1])
    """
    indices = tensor_to_numpy(labels, "labels") if container_of(labels) == "torch" else np.asarray(labels)
    if indices.shape != (length,):
        raise InputError(f"labels has shape {indices.shape} for {length} examples; give one for each example")
    if indices.dtype.kind not in "iu":
        raise InputError(
            f"labels are {indices.dtype}, but must be integer indices into classes where classes is given; "
            "to give class names, leave classes out"
        )
    wrong = np.flatnonzero((indices < 0) | (indices >= n_classes))
    if len(wrong):
        raise InputError(f"labels must be from 0 to {n_classes - 1}; they are not in {describe_rows(wrong)}")
    return indices.astype(np.int64, copy=False)
