"""Which library an object belongs to.

Torch, pandas, polars and SciPy are looked up among the modules that are already imported: an object of theirs cannot
exist before that, and so nothing heavy is imported for users who work with NumPy alone.

Features: whatever holds them in, the same kind of container out.

Class names: whatever holds them in, the same kind of container out.

Further examples after those that were given, whose every number stays as it is.
"""

import math
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.memory_map import RowReader
from cpaan.errors import InputError

Container: TypeAlias = Literal["torch", "pandas", "polars", "scipy", "other"]

ROWS_NAMED = 3


def container_of(value: object) -> Container:
    """Tell which library an object with features or labels belongs to.

    Parameters
    ----------
    value : object
        Anything that a user may hand over.

    Returns
    -------
    {"torch", "pandas", "polars", "scipy", "other"}
        "scipy" stands for its sparse matrices and arrays, "other" for NumPy arrays, lists and all that NumPy can read.

    Examples
    --------
    >>> import torch
    >>> container_of(torch.zeros(2, 3)), container_of([[1.0, 2.0]])
    ('torch', 'other')
    """
    torch, pandas, polars, sparse = (sys.modules.get(name) for name in ("torch", "pandas", "polars", "scipy.sparse"))
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index)):
        return "pandas"
    if polars is not None and isinstance(value, (polars.DataFrame, polars.Series)):
        return "polars"
    if sparse is not None and sparse.issparse(value):
        return "scipy"
    return "other"


def tensor_to_numpy(tensor: Any, name: str = "X") -> npt.NDArray[Any]:
    """Bring a torch tensor to NumPy, from any device.

    Parameters
    ----------
    tensor : torch.Tensor
        A dense tensor; bfloat16, which NumPy lacks, becomes float32.
    name : str, default="X"
        What messages call it.

    Returns
    -------
    ndarray
        It shares memory with a tensor on the CPU.

    Examples
    --------
    >>> import torch
    >>> tensor_to_numpy(torch.ones(2, dtype=torch.bfloat16))
    array([1., 1.], dtype=float32)
    """
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor, which is not supported; pass {name}.to_dense()")
    dense = tensor.detach().cpu()
    array: npt.NDArray[Any] = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    return array


def describe_rows(rows: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
    """Name the first few rows and count the rest, for a message.

    Parameters
    ----------
    rows : sequence of int
        Row numbers, from 0.

    Returns
    -------
    str
        Such as "rows 3, 17, 20 and 4 more".

    Examples
    --------
    >>> describe_rows([3])
    'row 3'
    >>> describe_rows([3, 17, 20, 21, 30])
    'rows 3, 17, 20 and 2 more'
    """
    named = ", ".join(str(int(row)) for row in rows[:ROWS_NAMED])
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {named}{more}"


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


_MATRIX_OF_LABELS = 2


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
        return _restore_pandas_of_labels(names, like)
    if container == "polars":
        column = like.to_series(0) if len(like.shape) == _MATRIX_OF_LABELS else like
        return sys.modules["polars"].Series(column.name, names, dtype=column.dtype)
    return _restore_array(names, like.dtype) if isinstance(like, np.ndarray) else label_array(names)


def _restore_array(names: list[Hashable], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "O":
        return _object_array(names)
    if dtype.kind in "US":
        # Names may be longer than those that came in: never cut them to that width.
        dtype = np.result_type(dtype, np.array(names, dtype=dtype.kind))
    return np.array(names, dtype=dtype)


def _restore_pandas_of_labels(names: list[Hashable], like: Any) -> Any:
    column = like.iloc[:, 0] if len(like.shape) == _MATRIX_OF_LABELS else like
    # Through an array of objects: pandas would read tuples as a second level.
    return sys.modules["pandas"].Series(_object_array(names), name=column.name).astype(column.dtype)


def _label_sequence(y: Any, name: str) -> Iterable[Any]:
    if isinstance(y, str | bytes):
        raise InputError(f"{name} is one {type(y).__name__}; give a sequence with one label for each example")
    container = container_of(y)
    array: Any = tensor_to_numpy(y, name) if container == "torch" else y
    shape = getattr(array, "shape", None)
    if shape is not None and len(shape) != 1:
        if len(shape) != _MATRIX_OF_LABELS or shape[1] != 1:
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


_MATRIX_OF_APPENDING = 2


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
    if container_of(y) in ("pandas", "polars") and len(y.shape) == _MATRIX_OF_APPENDING:
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
