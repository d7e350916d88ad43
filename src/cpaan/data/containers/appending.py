"""Further examples after those that were given, whose every number stays as it is."""

import sys
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers.kinds import container_of
from cpaan.data.containers.labels import as_labels, restore_labels

_MATRIX = 2


def append_features(X: Any, further: npt.NDArray[Any]) -> Any:
    """Put features after others.

    Parameters
    ----------
    X : array, tensor, sparse matrix, data frame or nested list
        What was given. Whole numbers become floating numbers that hold them exactly, because what follows are none.
    further : ndarray of shape (m, D)
        What is put after it; there may be none.

    Returns
    -------
    array, tensor, sparse matrix, data frame or nested list
        Of the type that `X` has; it shares no memory with it. Rows of a data frame are numbered afresh.

    Examples
    --------
    >>> append_features(np.zeros((1, 2), np.float32), np.ones((1, 2)))
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    >>> append_features([[1, 2]], np.array([[0.5, 0.25]]))
    [[1.0, 2.0], [0.5, 0.25]]
    """
    append = {
        "torch": _append_torch,
        "pandas": _append_pandas,
        "polars": _append_polars,
        "scipy": _append_sparse,
        "other": _append_array,
    }
    return append[container_of(X)](X, further)


def append_labels(y: Any, further: Iterable[Hashable]) -> Any:
    """Put class names after others.

    Parameters
    ----------
    y : array, tensor, series, data frame of one column or sequence
        What was given.
    further : iterable of hashable
        What is put after it.

    Returns
    -------
    array, tensor, series, data frame or list
        Of the type that `y` has; an array where it was another sequence than a list.

    Examples
    --------
    >>> append_labels(np.array(["oak", "elm"]), ["maple"])
    array(['oak', 'elm', 'maple'], dtype='<U5')
    >>> append_labels([1, 2], [1])
    [1, 2, 1]
    """
    names = [*as_labels(y), *further]
    if isinstance(y, list):
        return names
    column = restore_labels(names, like=y)
    if container_of(y) in ("pandas", "polars") and len(y.shape) == _MATRIX:
        frame = column.to_frame()
        frame.columns = y.columns
        return frame
    return column


def _holding(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the floating type that holds every number of a type, up to 2⁵³."""
    return dtype if dtype.kind == "f" else np.result_type(dtype, np.float32)


def _append_array(X: Any, further: npt.NDArray[Any]) -> Any:
    given = np.asarray(X)
    dtype = np.dtype(np.float64) if given.dtype == object else _holding(given.dtype)
    both = np.concatenate([given.astype(dtype, copy=False), further.astype(dtype, copy=False)])
    return both.tolist() if isinstance(X, list) else both


def _append_sparse(X: Any, further: npt.NDArray[Any]) -> Any:
    dtype = _holding(X.dtype)
    # The class tells matrices from arrays, which vstack keeps where both are of one sort.
    parts = [X.astype(dtype), type(X)(further.astype(dtype, copy=False))]
    return sys.modules["scipy.sparse"].vstack(parts, format=X.format)


def _append_torch(X: Any, further: npt.NDArray[Any]) -> Any:
    torch = sys.modules["torch"]
    dtype = X.dtype
    if not dtype.is_floating_point:
        dtype = torch.float32 if dtype.itemsize < torch.int32.itemsize else torch.float64
    return torch.cat([X.detach().to(dtype), torch.tensor(further, dtype=dtype, device=X.device)])


def _append_pandas(X: Any, further: npt.NDArray[Any]) -> Any:
    pandas = sys.modules["pandas"]
    # Columns are cast by position and named last, because names may occur twice.
    dtypes = {place: _pandas_dtype(dtype) for place, dtype in enumerate(X.dtypes)}
    parts = [X.set_axis(range(X.shape[1]), axis=1).astype(dtypes), pandas.DataFrame(further).astype(dtypes)]
    frame = pandas.concat(parts, ignore_index=True)
    frame.columns = X.columns
    return frame


def _pandas_dtype(dtype: Any) -> Any:
    """Leave floating types of every sort, also sparse and nullable ones, and find one for whole numbers."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float64) if dtype.kind == "O" else _holding(getattr(dtype, "numpy_dtype", dtype))


def _append_polars(X: Any, further: npt.NDArray[Any]) -> Any:
    polars = sys.modules["polars"]
    short = (polars.Boolean, polars.Int8, polars.UInt8, polars.Int16, polars.UInt16)
    whole = {name: polars.Float32 if dtype in short else polars.Float64 for name, dtype in X.schema.items()}
    schema = {name: dtype if dtype.is_float() else whole[name] for name, dtype in X.schema.items()}
    # A frame of no rows cannot be made of an array by rows in every version of polars.
    made = {name: polars.Series(name, column.copy()) for name, column in zip(schema, further.T, strict=True)}
    return X.cast(schema).vstack(polars.DataFrame(made).cast(schema))
