"""Features: whatever holds them in, the same kind of container out."""

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.containers.kinds import ROWS_NAMED, container_of, describe_rows, tensor_to_numpy
from cpaan.data.memory_map import RowReader
from cpaan.errors import InputError

FeatureArray: TypeAlias = npt.NDArray[np.floating[Any]]

_MATRIX = 2


def as_features(X: Any, name: str = "X", *, keep_half: bool = False) -> FeatureArray:
    """Read features from whatever holds them.

    Parameters
    ----------
    X : array, tensor, sparse matrix, data frame or nested list
        One row for each example, one column for each feature.
    name : str, default="X"
        What messages call it.
    keep_half : bool, default=False
        Keep float16. By default it becomes float32, in which sums over many rows are safe.

    Returns
    -------
    ndarray of shape (n, D)
        float32 or float64 as given; integers and booleans become float32, Python objects float64.
        It may share memory with `X`. A sparse matrix is written out in full.

    Raises
    ------
    InputError
        Where `X` is no finite, two-dimensional table of real numbers.

    Examples
    --------
    >>> as_features([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    array = _as_array(X, name)
    if array.ndim != _MATRIX:
        raise InputError(
            f"{name} has shape {array.shape}, but must have two dimensions: one row for each example, "
            "one column for each feature. Reshape your data: "
            f"{name}.reshape(1, -1) for one example, {name}.reshape(-1, 1) for one feature"
        )
    for size, noun in zip(array.shape, ("sample(s)", "feature(s)"), strict=True):
        if size == 0:
            raise InputError(f"{name} has 0 {noun} (shape={array.shape}) while a minimum of 1 is required.")
    dtype = _floating_dtype(array.dtype, name)
    if dtype == np.float16 and not keep_half:
        dtype = np.dtype(np.float32)
    features = _cast(array, dtype, name)
    require_finite(features, name)
    return features


def require_finite(features: FeatureArray, name: str = "features") -> None:
    """Refuse features that are NaN or infinite, naming the rows.

    Parameters
    ----------
    features : ndarray of shape (n, D)
        The features.
    name : str, default="features"
        What the message calls them.

    Raises
    ------
    InputError
        Where a value is NaN or infinite.

    Examples
    --------
    >>> require_finite(np.zeros((2, 3)))
    >>> require_finite(np.array([[0.0], [np.nan]]))
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: features are NaN or infinite in row 1; remove or impute this row
    """
    wrong = [start + np.flatnonzero(~np.isfinite(block).all(axis=1)) for start, block in RowReader(features).blocks()]
    rows = np.concatenate([np.arange(0), *wrong])
    if len(rows):
        verb = "are" if name.endswith("s") else "is"
        these = "this row" if len(rows) == 1 else "these rows"
        raise InputError(f"{name} {verb} NaN or infinite in {describe_rows(rows)}; remove or impute {these}")


def restore_features(array: npt.NDArray[Any], like: Any) -> Any:
    """Put features into the kind of container that other features came in.

    Parameters
    ----------
    array : ndarray of shape (n, D)
        The features.
    like : array, tensor, sparse matrix, data frame or nested list
        What came in. Its floating type, device and column names are kept; where it holds integers or
        booleans, float32 is given back, because synthetic features are no integers.

    Returns
    -------
    ndarray, torch.Tensor, sparse matrix or data frame
        An array also where a list came in. Rows of a data frame are numbered afresh.

    Examples
    --------
    >>> import torch
    >>> restore_features(np.ones((1, 2)), like=torch.zeros(5, 2, dtype=torch.float16))
    tensor([[1., 1.]], dtype=torch.float16)
    """
    container = container_of(like)
    if container == "torch":
        torch = sys.modules["torch"]
        dtype = like.dtype if like.dtype.is_floating_point else torch.float32
        return torch.tensor(array, dtype=dtype, device=like.device)
    if container == "scipy":
        return type(like)(array.astype(_floating_dtype(like.dtype), copy=False))
    if container == "other":
        return array.astype(_floating_dtype(np.asarray(like).dtype), copy=False)
    if like.shape[1] != array.shape[1]:
        raise InputError(f"{array.shape[1]} features do not fit the {like.shape[1]} columns of the data frame")
    return _restore_pandas(array, like) if container == "pandas" else _restore_polars(array, like)


def _restore_pandas(array: npt.NDArray[Any], like: Any) -> Any:
    frame = sys.modules["pandas"].DataFrame(array)
    # Columns are cast by position and named last, because names may occur twice.
    dtypes = [dtype if dtype.kind == "f" else np.dtype(np.float32) for dtype in like.dtypes]
    frame = frame.astype(dict(enumerate(dtypes)))
    frame.columns = like.columns
    return frame


def _restore_polars(array: npt.NDArray[Any], like: Any) -> Any:
    polars = sys.modules["polars"]
    schema = {name: dtype if dtype.is_float() else polars.Float32 for name, dtype in like.schema.items()}
    return polars.DataFrame(array, schema=list(schema)).cast(schema)


def _as_array(X: Any, name: str) -> npt.NDArray[Any]:
    container = container_of(X)
    if container == "scipy":
        dense: npt.NDArray[Any] = X.toarray()
        return dense
    if container == "torch":
        return tensor_to_numpy(X, name)
    if container == "pandas":
        array: npt.NDArray[Any] = X.to_numpy()
        return _nullable_to_numpy(X, name) if array.dtype == object else array
    try:
        return np.asarray(X)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} is no table of numbers: {error}") from error


def _nullable_to_numpy(frame: Any, name: str) -> npt.NDArray[Any]:
    """Read a pandas frame whose columns have different or nullable types."""
    try:
        array: npt.NDArray[Any] = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise _not_numbers(frame, name) from error
    # Text such as "1" would be taken for a number.
    if any(isinstance(value, str) for value in frame.to_numpy().flat):
        raise _not_numbers(frame, name)
    return array


def _not_numbers(frame: Any, name: str) -> InputError:
    kinds = [dtype.kind for dtype in frame.dtypes]
    columns = [column for column, kind in zip(frame.columns, kinds, strict=True) if kind not in "biuf"]
    shown = ", ".join(repr(column) for column in columns[:ROWS_NAMED])
    return InputError(f"{name} has columns that are not numbers, such as {shown}; drop or encode them")


def _floating_dtype(dtype: np.dtype[Any], name: str = "X") -> np.dtype[Any]:
    """Give the floating type in which values of a type are kept."""
    if dtype.kind == "f":
        return min(dtype.newbyteorder("="), np.dtype(np.float64), key=lambda kind: kind.itemsize)
    if dtype.kind in "biu":
        return np.dtype(np.float32)
    if dtype.kind == "O":
        return np.dtype(np.float64)
    if dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} is {dtype}; pass real and imaginary parts as columns")
    raise InputError(f"{name} holds {dtype}, not numbers; encode it as numbers first")


def _cast(array: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> FeatureArray:
    if array.dtype == object and any(isinstance(value, str | bytes) for value in array.flat):
        raise InputError(f"{name} holds text, not numbers; encode it as numbers first")
    try:
        return array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds values that are not numbers: {error}") from error
