"""Class names: whatever holds them in, the same kind of container out."""

import math
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers.kinds import container_of, describe_rows, tensor_to_numpy
from cpaan.errors import InputError

_MATRIX = 2


def as_labels(y: Any, length: int | None = None, name: str = "y") -> list[Hashable]:
    """Read class names, one for each example, from whatever holds them.

    Parameters
    ----------
    y : array, tensor, series or sequence
        Class names of any hashable type. A single column is read as its values.
    length : int, optional
        How many there must be.
    name : str, default="y"
        What messages call it.

    Returns
    -------
    list of hashable
        The names; NumPy and torch scalars have become Python scalars.

    Raises
    ------
    InputError
        Where a label is missing (None, NaN) or cannot be hashed, or the number of labels is wrong.

    Examples
    --------
    >>> as_labels(np.array(["cat", "dog"]))
    ['cat', 'dog']
    >>> as_labels([("oak", 1), ("elm", 2)], length=2)
    [('oak', 1), ('elm', 2)]
    """
    labels = list(_label_sequence(y, name))
    if length is not None and len(labels) != length:
        raise InputError(f"{name} has {len(labels)} labels for {length} examples; give one for each example")
    # Most labels are of a type that needs no look at each of them.
    if set(map(type, labels)) <= {str, int, bool}:
        return labels
    labels = [_plain(label) for label in labels]
    missing = [row for row, label in enumerate(labels) if _is_missing(label)]
    if missing:
        raise InputError(f"{name} is missing (None or NaN) in {describe_rows(missing)}; remove or label them")
    for row, label in enumerate(labels):
        if not _is_hashable(label):
            kind = type(label).__name__
            raise InputError(
                f"{name} holds a {kind} in row {row}, which cannot be a class name; use a hashable type "
                "such as str, int or tuple"
            )
    return labels


def label_array(values: Iterable[Hashable]) -> npt.NDArray[Any]:
    """Put class names into a one-dimensional array, of numbers or strings where nothing is lost by it.

    Parameters
    ----------
    values : iterable of hashable
        The names.

    Returns
    -------
    ndarray
        Of booleans, integers, floats or strings if all names are such, otherwise of objects.

    Examples
    --------
    >>> label_array(["a", "bc"])
    array(['a', 'bc'], dtype='<U2')
    >>> label_array([("a", 1), ("b", 2)])
    array([('a', 1), ('b', 2)], dtype=object)
    """
    names = list(values)
    kinds = {type(name) for name in names}
    if kinds == {int, float} or (len(kinds) == 1 and kinds <= {bool, int, float, str}):
        try:
            array = np.array(names)
        except OverflowError:
            return _object_array(names)
        # NumPy cuts trailing NUL characters off strings and rounds integers beyond 64 bits.
        if array.dtype != object and array.tolist() == names:
            return array
    return _object_array(names)


def restore_labels(values: Iterable[Hashable], like: Any) -> Any:
    """Put class names into the kind of container that other class names came in.

    Parameters
    ----------
    values : iterable of hashable
        The names, of the same kind as those in `like`.
    like : array, tensor, series or sequence
        What came in: its type, device and name are kept.

    Returns
    -------
    ndarray, torch.Tensor or series
        An array also where a list came in: of numbers or strings, or of objects for all other names.

    Examples
    --------
    >>> restore_labels(["oak", "elm"], like=["elm", "oak", "elm"])
    array(['oak', 'elm'], dtype='<U3')
    >>> restore_labels([1, 0], like=np.array([0, 1], dtype=np.int16))
    array([1, 0], dtype=int16)
    """
    names = list(values)
    container = container_of(like)
    if container == "torch":
        return sys.modules["torch"].tensor(names, dtype=like.dtype, device=like.device)
    if container == "pandas":
        return _restore_pandas(names, like)
    if container == "polars":
        column = like.to_series(0) if len(like.shape) == _MATRIX else like
        return sys.modules["polars"].Series(column.name, names, dtype=column.dtype)
    return _restore_array(names, like.dtype) if isinstance(like, np.ndarray) else label_array(names)


def _restore_array(names: list[Hashable], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "O":
        return _object_array(names)
    if dtype.kind in "US":
        # Names may be longer than those that came in: never cut them to that width.
        dtype = np.result_type(dtype, np.array(names, dtype=dtype.kind))
    return np.array(names, dtype=dtype)


def _restore_pandas(names: list[Hashable], like: Any) -> Any:
    column = like.iloc[:, 0] if len(like.shape) == _MATRIX else like
    # Through an array of objects: pandas would read tuples as a second level.
    return sys.modules["pandas"].Series(_object_array(names), name=column.name).astype(column.dtype)


def _label_sequence(y: Any, name: str) -> Iterable[Any]:
    if isinstance(y, str | bytes):
        raise InputError(f"{name} is one {type(y).__name__}; give a sequence with one label for each example")
    container = container_of(y)
    array: Any = tensor_to_numpy(y, name) if container == "torch" else y
    shape = getattr(array, "shape", None)
    if shape is not None and len(shape) != 1:
        if len(shape) != _MATRIX or shape[1] != 1:
            raise InputError(f"{name} has shape {tuple(shape)}, but must have one label for each example")
        array = array.iloc[:, 0] if container == "pandas" else array[:, 0]
    if container in ("pandas", "polars"):
        return list(array)
    # Dates stay NumPy scalars: tolist would turn those in nanoseconds into integers.
    if isinstance(array, np.ndarray) and array.dtype.kind not in "mM":
        values: list[Any] = array.tolist()
        return values
    try:
        return list(array)
    except TypeError as error:
        raise InputError(f"{name} is no sequence of labels: {error}") from error


def _plain(label: Any) -> Any:
    if isinstance(label, str | int | float | tuple) and not isinstance(label, np.generic):
        return label
    if isinstance(label, np.generic) and label.dtype.kind not in "mM":
        return label.item()
    if container_of(label) == "torch" and label.ndim == 0:
        return label.item()
    return label


def _is_missing(label: Any) -> bool:
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(label, np.datetime64 | np.timedelta64):
        return bool(np.isnat(label))
    return isinstance(label, float) and math.isnan(label)


def _is_hashable(label: Any) -> bool:
    try:
        hash(label)
    except (TypeError, ValueError):  # the latter where NumPy has a timedelta64 without a unit
        return False
    # A tensor hashes by identity, so that two equal ones would be two classes.
    return container_of(label) == "other"


def _object_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    # Assigned one by one: NumPy would make a second dimension of tuples.
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array
