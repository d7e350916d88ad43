"""Features and class names: any container in, the same kind of container out.

NumPy arrays, lists, torch tensors, SciPy's sparse matrices, and frames and series of pandas and polars are understood.
Torch, pandas, polars and SciPy are looked up among the modules already imported: an object of theirs cannot exist
before that, and nothing heavy is imported for users who work with NumPy alone.
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
FeatureArray: TypeAlias = npt.NDArray[np.floating[Any]]

_MATRIX = 2
_ROWS_NAMED = 3


def container_of(value: object) -> Container:
    """Tell which library an object belongs to.

    "scipy" stands for sparse matrices and arrays, "other" for NumPy arrays, lists and all else that NumPy can read.
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
    """Convert a dense torch tensor on any device; it shares memory if on the CPU, and bfloat16 becomes float32."""
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor, which is not supported; pass {name}.to_dense()")
    dense = tensor.detach().cpu()
    array: npt.NDArray[Any] = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    return array


def describe_rows(rows: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
    """Name the first few rows and count the rest, for a message: "rows 3, 17, 20 and 2 more"."""
    named = ", ".join(str(int(row)) for row in rows[:_ROWS_NAMED])
    more = f" and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {named}{more}"


# Features


def as_features(X: Any, name: str = "X", *, keep_half: bool = False) -> FeatureArray:
    """Read finite features (n × D) from any container; the array may share memory with `X`.

    float32 and float64 are kept, integers and booleans become float32, Python objects float64, a sparse matrix becomes
    dense. float16 becomes float32, in which sums over many rows are safe, unless `keep_half` is set.

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
    """Refuse features that are NaN or infinite, naming the rows."""
    wrong = [start + np.flatnonzero(~np.isfinite(block).all(axis=1)) for start, block in RowReader(features).blocks()]
    rows = np.concatenate([np.arange(0), *wrong])
    if len(rows):
        verb = "are" if name.endswith("s") else "is"
        these = "this row" if len(rows) == 1 else "these rows"
        raise InputError(f"{name} {verb} NaN or infinite in {describe_rows(rows)}; remove or impute {these}")


def restore_features(array: npt.NDArray[Any], like: Any) -> Any:
    """Put features into the kind of container that other features came in; a list gives an array.

    Floating type, device and column names are kept. Integers and booleans give float32, because synthetic features are
    not integers. Rows of a data frame are numbered from 0.
    """
    container = container_of(like)
    if container in ("pandas", "polars") and like.shape[1] != array.shape[1]:
        raise InputError(f"{array.shape[1]} features do not fit the {like.shape[1]} columns of the data frame")
    if container == "torch":
        dtype = like.dtype if like.dtype.is_floating_point else sys.modules["torch"].float32
        return sys.modules["torch"].tensor(array, dtype=dtype, device=like.device)
    if container == "pandas":
        dtypes = [dtype if dtype.kind == "f" else np.dtype(np.float32) for dtype in like.dtypes]
        # By position, and named last, because names may occur twice.
        return sys.modules["pandas"].DataFrame(array).astype(dict(enumerate(dtypes))).set_axis(like.columns, axis=1)
    if container == "polars":
        whole = sys.modules["polars"].Float32
        return _polars_frame(array, {name: kind if kind.is_float() else whole for name, kind in like.schema.items()})
    if container == "scipy":
        return type(like)(array.astype(_floating_dtype(like.dtype), copy=False))
    return array.astype(_floating_dtype(np.asarray(like).dtype), copy=False)


def append_features(X: Any, further: npt.NDArray[Any]) -> Any:
    """Append rows to features of any container, whose every number stays as it is.

    Integers become floating-point numbers that hold them exactly. The result is of the type of `X` and shares no memory
    with it; rows of a data frame are numbered from 0.

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


def _append_array(X: Any, further: npt.NDArray[Any]) -> Any:
    given = np.asarray(X)
    dtype = _exact_dtype(given.dtype)
    both = np.concatenate([given.astype(dtype, copy=False), further.astype(dtype, copy=False)])
    return both.tolist() if isinstance(X, list) else both


def _append_sparse(X: Any, further: npt.NDArray[Any]) -> Any:
    dtype = _exact_dtype(X.dtype)
    # Of the same class, since vstack makes a matrix or an array depending on both.
    parts = [X.astype(dtype), type(X)(further.astype(dtype, copy=False))]
    return sys.modules["scipy.sparse"].vstack(parts, format=X.format)


def _append_torch(X: Any, further: npt.NDArray[Any]) -> Any:
    torch = sys.modules["torch"]
    dtype = X.dtype
    if not dtype.is_floating_point:
        dtype = torch.float32 if dtype.itemsize < torch.int32.itemsize else torch.float64
    return torch.cat([X.detach().to(dtype), torch.tensor(further, dtype=dtype, device=X.device)])


def _append_pandas(X: Any, further: npt.NDArray[Any]) -> Any:
    # Floating types of every sort are kept, also sparse and nullable ones.
    dtypes = [dtype if dtype.kind == "f" else _exact_dtype(getattr(dtype, "numpy_dtype", dtype)) for dtype in X.dtypes]
    # By position, and named last, because names may occur twice.
    parts = [X.set_axis(range(X.shape[1]), axis=1), sys.modules["pandas"].DataFrame(further)]
    parts = [part.astype(dict(enumerate(dtypes))) for part in parts]
    return sys.modules["pandas"].concat(parts, ignore_index=True).set_axis(X.columns, axis=1)


def _append_polars(X: Any, further: npt.NDArray[Any]) -> Any:
    polars = sys.modules["polars"]
    short = (polars.Boolean, polars.Int8, polars.UInt8, polars.Int16, polars.UInt16)
    whole = {name: polars.Float32 if kind in short else polars.Float64 for name, kind in X.schema.items()}
    schema = {name: kind if kind.is_float() else whole[name] for name, kind in X.schema.items()}
    return X.cast(schema).vstack(_polars_frame(further, schema))


def _polars_frame(array: npt.NDArray[Any], schema: dict[str, Any]) -> Any:
    polars = sys.modules["polars"]
    # By columns: not every version of polars makes a frame without rows from an array.
    columns = {name: polars.Series(name, column.copy()) for name, column in zip(schema, array.T, strict=True)}
    return polars.DataFrame(columns).cast(schema)


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
        raise InputError(f"{name} is not a table of numbers: {error}") from error


def _nullable_to_numpy(frame: Any, name: str) -> npt.NDArray[Any]:
    """Read a pandas frame whose columns have different or nullable types."""
    kinds = zip(frame.columns, [dtype.kind for dtype in frame.dtypes], strict=True)
    shown = ", ".join(repr(column) for column in [column for column, kind in kinds if kind not in "biuf"][:_ROWS_NAMED])
    message = f"{name} has columns that are not numbers, such as {shown}; drop or encode them"
    try:
        array: npt.NDArray[Any] = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise InputError(message) from error
    if any(isinstance(value, str) for value in frame.to_numpy().flat):  # pandas reads "1" as a number
        raise InputError(message)
    return array


def _floating_dtype(dtype: np.dtype[Any], name: str = "X") -> np.dtype[Any]:
    """Give the floating type to compute with for values of a type."""
    if dtype.kind == "f":
        return min(dtype.newbyteorder("="), np.dtype(np.float64), key=lambda kind: kind.itemsize)
    if dtype.kind in "biu":
        return np.dtype(np.float32)
    if dtype.kind == "O":
        return np.dtype(np.float64)
    if dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} is {dtype}; pass real and imaginary parts as columns")
    raise InputError(f"{name} holds {dtype}, not numbers; encode it as numbers first")


def _exact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the floating type that holds every number of a type, up to 2⁵³."""
    if dtype.kind == "O":
        return np.dtype(np.float64)
    return dtype if dtype.kind == "f" else np.result_type(dtype, np.float32)


def _cast(array: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> FeatureArray:
    if array.dtype == object and any(isinstance(value, str | bytes) for value in array.flat):
        raise InputError(f"{name} holds text, not numbers; encode it as numbers first")
    try:
        return array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds values that are not numbers: {error}") from error


# Class names


def as_labels(y: Any, length: int | None = None, name: str = "y") -> list[Hashable]:
    """Read hashable class names, none missing, from any container; NumPy and torch scalars become Python scalars.

    >>> as_labels(np.array(["cat", "dog"]))
    ['cat', 'dog']
    """
    labels = list(_label_sequence(y, name))
    if length is not None and len(labels) != length:
        raise InputError(f"{name} has {len(labels)} labels for {length} examples; give one for each example")
    if set(map(type, labels)) <= {str, int, bool}:  # most labels are, and need no further check
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
    """Put class names into an array: of numbers or strings if that loses nothing, otherwise of objects."""
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
    """Put class names into the kind of container that other class names came in; a list gives an array."""
    names = list(values)
    container = container_of(like)
    if container == "torch":
        return sys.modules["torch"].tensor(names, dtype=like.dtype, device=like.device)
    if container == "pandas":
        column = like.iloc[:, 0] if len(like.shape) == _MATRIX else like
        # Through an array of objects: pandas would read tuples as a second level.
        return sys.modules["pandas"].Series(_object_array(names), name=column.name).astype(column.dtype)
    if container == "polars":
        column = like.to_series(0) if len(like.shape) == _MATRIX else like
        return sys.modules["polars"].Series(column.name, names, dtype=column.dtype)
    return _restore_array(names, like.dtype) if isinstance(like, np.ndarray) else label_array(names)


def append_labels(y: Any, further: Iterable[Hashable]) -> Any:
    """Append class names to those of any container; a sequence other than a list gives an array."""
    names = [*as_labels(y), *further]
    if isinstance(y, list):
        return names
    column = restore_labels(names, like=y)
    if container_of(y) in ("pandas", "polars") and len(y.shape) == _MATRIX:
        frame = column.to_frame()
        frame.columns = y.columns
        return frame
    return column


def _restore_array(names: list[Hashable], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "O":
        return _object_array(names)
    if dtype.kind in "US":
        # Names may be longer than those that came in, and must not be cut.
        dtype = np.result_type(dtype, np.array(names, dtype=dtype.kind))
    return np.array(names, dtype=dtype)


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
    # Dates stay NumPy scalars: tolist would turn those in nanoseconds into integers.
    if isinstance(array, np.ndarray) and array.dtype.kind not in "mM":
        values: list[Any] = array.tolist()
        return values
    try:
        return list(array)
    except TypeError as error:
        raise InputError(f"{name} is not a sequence of labels: {error}") from error


def _plain(label: Any) -> Any:
    is_date = isinstance(label, np.datetime64 | np.timedelta64)
    is_scalar = isinstance(label, np.generic) or (container_of(label) == "torch" and label.ndim == 0)
    return label.item() if is_scalar and not is_date else label


def _is_missing(label: Any) -> bool:
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(label, np.datetime64 | np.timedelta64):
        return bool(np.isnat(label))
    return isinstance(label, float) and math.isnan(label)


def _is_hashable(label: Any) -> bool:
    try:
        hash(label)
    except (TypeError, ValueError):  # NumPy raises the latter for a timedelta64 without a unit
        return False
    # A tensor hashes by identity: two equal ones would be two classes.
    return container_of(label) == "other"


def _object_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    # One by one: NumPy would make a second dimension of tuples.
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array
