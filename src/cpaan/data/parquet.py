"""Feature files in parquet.

A file has a column `features` of lists of equal length, or columns f0, f1, …; a column `label`, and `is_test` where
rows are held out for testing.

How many values the columns of a parquet file claim to hold, read from its footer alone.

Arrow's own view of a column's metadata ends the process where that is damaged (pyarrow 26), so it is not asked. A
footer is a struct of Thrift's compact protocol; of the format (apache/parquet-format, `parquet.thrift`) these fields
are used: FileMetaData 3 num_rows, 4 row_groups; RowGroup 1 columns; ColumnChunk 3 meta_data; ColumnMetaData 3
path_in_schema, 5 num_values.

Features and labels as columns of an Arrow table, which parquet files and `datasets.Dataset` are read through.

Features and labels out of `datasets.Dataset`, and out of torch's `Dataset` and `DataLoader`.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, as_features, as_labels, label_array
from cpaan.data.feature_set import FeatureSet, raise_unknown
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.folders import replacing
from cpaan.data.untrusted import parse_json, reading, require_file, require_plausible
from cpaan.errors import InputError
from cpaan.extras import import_extra

_MAGIC = b"PAR1"
_END_BYTES = 8
_LONGEST_FOOTER = 2**26
_DEEPEST = 24
_TRUE, _FALSE, _BYTE, _INT16, _INT32, _INT64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_LONG_LIST = 15
_DOUBLE_BYTES = 8


def claimed_values(path: Path, columns: list[str]) -> int:
    """Give the number of rows, and of values in some columns, that a file claims to have, all together.

    Parameters
    ----------
    path : path
        The file.
    columns : list of str
        Names of columns.

    Returns
    -------
    int
        Rows and values.
    """
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - _END_BYTES))
        end = file.read(_END_BYTES)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or size + _END_BYTES > length or size > _LONGEST_FOOTER:
            raise InputError(f"{path} is no parquet file, or it is damaged: it has no footer")
        file.seek(length - _END_BYTES - size)
        footer = _Reader(file.read(size)).struct()
    chunks = [chunk[3] for group in footer[4] for chunk in group[1] if 3 in chunk]  # noqa: PLR2004  # its meta_data
    counts = [chunk[5] for chunk in chunks if chunk[3][0].decode() in columns]
    if footer[3] < 0 or any(count < 0 for count in counts):
        raise InputError(f"{path} is damaged: a number of rows or values is negative")
    return int(footer[3] + sum(counts))


class _Reader:
    """Reads Thrift's compact protocol: structs are dictionaries by the number of a field."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError("structs in structs without end")
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._unsigned() if head >> 4 == _LONG_LIST else head >> 4
            return self._values(size, head & 15, depth)
        if kind == _MAP:
            size = self._unsigned()
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(size)]
        if kind in (_BINARY, _DOUBLE):
            return self._bytes(self._unsigned() if kind == _BINARY else _DOUBLE_BYTES)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        return {_INT16: self._signed, _INT32: self._signed, _INT64: self._signed}[kind]()

    def _values(self, size: int, kind: int, depth: int) -> list[Any]:
        if depth > _DEEPEST or size > len(self.content) - self.place:  # each takes a byte at least
            raise ValueError("a list of more values than there are bytes")
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004  # the highest bit says that more follow
                return value
        raise ValueError("a number without end")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, size: int) -> bytes:
        part = self.content[self.place : self.place + size]
        if len(part) < size:
            raise ValueError("it ends too early")
        self.place += size
        return part


_NUMBERED = re.compile(r"(f|feature_)(\d+)")


def numbered_columns(names: list[str]) -> list[str]:
    """Find the columns f0, f1, … or feature_0, feature_1, … of a table, in the order of their numbers.

    >>> numbered_columns(["f10", "f9", "label", "file"])
    ['f9', 'f10']
    """
    found = [match for match in map(_NUMBERED.fullmatch, names) if match]
    return [match.group() for match in sorted(found, key=lambda match: (match[1], int(match[2])))]


def feature_matrix(table: Any, name: str = "features") -> FeatureArray:
    """Read features from a column of lists of equal length, or else from numbered columns.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    name : str
        The column of lists.

    Returns
    -------
    ndarray of shape (n, D)

    Raises
    ------
    InputError
        Where there are no such columns, or what is in them is no matrix of numbers.
    """
    if name in table.column_names:
        return _matrix_of_lists(table.column(name), name)
    columns = numbered_columns(table.column_names)
    if not columns:
        shown = ", ".join(table.column_names[:10]) or "none"
        raise InputError(f"there is no column {name}, and none called f0, f1, …; columns: {shown}")
    return np.column_stack([_numbers(table.column(column), column) for column in columns])


def label_values(column: Any, name: str = "label") -> list[Any]:
    """Read class names from a column.

    Raises
    ------
    InputError
        Where one is missing, or they are neither text nor numbers.
    """
    types = import_extra("pyarrow.types", "a table of Arrow")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    checks = ("is_string", "is_large_string", "is_string_view", "is_integer", "is_floating", "is_boolean")
    if not any(getattr(types, check)(kind) for check in checks if hasattr(types, check)):
        raise InputError(f"column {name} holds {kind}; class names must be text or numbers")
    if column.null_count:
        raise InputError(f"column {name} is missing (null) in {column.null_count} rows; remove or label them")
    if not types.is_dictionary(column.type):
        values: list[Any] = column.to_pylist()
        return values
    # Each name once, however often it occurs.
    parts = ((chunk.dictionary.to_pylist(), chunk.indices.to_pylist()) for chunk in column.chunks)
    return [names[index] for names, indices in parts for index in indices]


def _matrix_of_lists(column: Any, name: str) -> FeatureArray:
    arrow = import_extra("pyarrow", "a table of Arrow")
    types = arrow.types
    if not (types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)):
        raise InputError(f"column {name} holds {column.type}; it must hold a list of numbers in each row")
    if column.null_count:
        raise InputError(f"column {name} is missing (null) in {column.null_count} rows; remove these rows")
    lengths = arrow.compute.unique(arrow.compute.list_value_length(column)).to_pylist()
    if len(lengths) > 1:
        raise InputError(
            f"column {name} holds lists of {min(lengths)} to {max(lengths)} numbers; give as many in each row"
        )
    flat = _numbers(arrow.compute.list_flatten(column), name)
    return flat.reshape(len(column), lengths[0] if lengths else 0)


def _numbers(column: Any, name: str) -> npt.NDArray[Any]:
    types = import_extra("pyarrow.types", "a table of Arrow")
    if not (types.is_floating(column.type) or types.is_integer(column.type)):
        raise InputError(f"column {name} holds {column.type}, not numbers")
    if column.null_count:
        raise InputError(f"column {name} has {column.null_count} missing values (null); remove or impute them")
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers


_PURPOSE = "a parquet file"
_ORDER = b"cpaan.classes"
_WRONG = "is no parquet file, or it is damaged or may not be read"


def read_parquet(path: Path) -> FeatureTable:
    """Read a parquet file; its schema is checked before values are read."""
    with _opened(path) as file:
        names = file.schema_arrow.names
        if "label" not in names:
            raise InputError(f"{path} has no column label; columns: {', '.join(names[:10]) or 'none'}")
        columns = ["features"] if "features" in names else numbered_columns(names)
        marks = ["is_test"] if "is_test" in names else []
        require_plausible(path, claimed_values(path, columns) * np.dtype(np.float64).itemsize)
        table = file.read([*columns, "label", *marks])
        features, labels = feature_matrix(table), label_values(table.column("label"))
        is_test = table.column("is_test").to_numpy() if marks else None
        order = (file.schema_arrow.metadata or {}).get(_ORDER)
    return make_table(path, features, *_in_order(labels, order), is_test)


def write_parquet(path: Path, feature_set: FeatureSet, is_test: npt.NDArray[np.bool_] | None = None) -> None:
    """Write a parquet file, whole or not at all; see `cpaan.data.write_features`."""
    arrow, parquet = import_extra("pyarrow", _PURPOSE), import_extra("pyarrow.parquet", _PURPOSE)
    classes = class_array(feature_set)
    flat = arrow.array(np.ascontiguousarray(feature_set.features).reshape(-1))
    columns = {
        "features": arrow.FixedSizeListArray.from_arrays(flat, feature_set.dimension),
        "label": arrow.array(classes[feature_set.labels]),
    }
    if is_test is not None:
        columns["is_test"] = arrow.array(is_test)
    table = arrow.table(columns).replace_schema_metadata({_ORDER: json.dumps(classes.tolist())})
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require_file(path, ".parquet")
    parquet = import_extra("pyarrow.parquet", _PURPOSE)
    with reading(path, _WRONG):
        with parquet.ParquetFile(path) as file:
            columns = [file.schema.column(place).path for place in range(len(file.schema))]
        # Names stay a list of distinct ones: written out for every row, a long one would fill the memory.
        packed = ["label"] if "label" in columns else []
        with parquet.ParquetFile(path, read_dictionary=packed) as file:
            yield file


def _in_order(labels: list[Any], order: bytes | None) -> tuple[Any, list[Any] | None]:
    """Give labels as indices into the classes in the order that they were written in, where that is known."""
    try:
        known = set(labels)
        # Rows may have been taken out or added since: the names in the column are what counts.
        classes = [name for name in parse_json(order or b"[]", "the order of classes") if name in known]
        place = {name: index for index, name in enumerate(classes)}
        return np.array([place[label] for label in labels], dtype=np.int64), classes
    except (ValueError, KeyError, TypeError):
        return labels, None


_PAIR = 2


def features_from(
    dataset: Any, features: str = "features", label: str = "label"
) -> tuple[FeatureArray, npt.NDArray[Any]]:
    """Read what an estimator takes from a dataset of Hugging Face or torch.

    Parameters
    ----------
    dataset : datasets.Dataset, torch.utils.data.Dataset or torch.utils.data.DataLoader
        Its items are mappings with the two names below, or pairs of features and label. Those of a loader are
        batches of such; one that shuffles or leaves out its last batch gives rows accordingly.
    features : str, default="features"
        Name of what holds the features of an example: a vector.
    label : str, default="label"
        Name of what holds its class. Where a `datasets.Dataset` knows the names of its classes, they are taken.

    Returns
    -------
    X : ndarray of shape (n, D)
    y : ndarray of shape (n,)
        All of it in memory.

    Raises
    ------
    InputError
        Where items are of another kind, or what is in them is no vector or no label.

    Examples
    --------
    >>> import torch
    >>> pairs = torch.utils.data.TensorDataset(torch.eye(3), torch.tensor([7, 7, 9]))
    >>> X, y = features_from(pairs)
    >>> X.shape, y.tolist()
    ((3, 3), [7, 7, 9])
    """
    library = sys.modules.get("datasets")
    if library is not None and isinstance(dataset, library.DatasetDict | library.IterableDatasetDict):
        raise InputError(f"the dataset has the parts {', '.join(dataset)}; give one of them, as dataset[name]")
    if library is not None and isinstance(dataset, library.Dataset):
        return _from_table(dataset, features, label)
    matrix, labels = _from_items(dataset, features, label)
    names = _class_names(dataset, label) if library is not None else None
    return matrix, label_array(labels if names is None else [names[index] for index in labels])


def _from_table(dataset: Any, features: str, label: str) -> tuple[FeatureArray, npt.NDArray[Any]]:
    for name in (features, label):
        if name not in dataset.column_names:
            raise_unknown([name], dataset.column_names, noun="column")
    # As it is stored: other formats would round double precision.
    table = dataset.select_columns([features, label]).with_format("arrow")[:]
    matrix = as_features(feature_matrix(table, features), features, keep_half=True)
    labels, names = label_values(table.column(label), label), _class_names(dataset, label)
    return matrix, label_array(labels if names is None else [names[index] for index in labels])


def _class_names(dataset: Any, label: str) -> list[str] | None:
    kinds = getattr(dataset, "features", None)
    kind = kinds.get(label) if isinstance(kinds, Mapping) else None
    return getattr(kind, "names", None)


def _from_items(dataset: Any, features: str, label: str) -> tuple[FeatureArray, list[Any]]:
    torch = sys.modules.get("torch")
    batched = torch is not None and isinstance(dataset, torch.utils.data.DataLoader)
    blocks, labels = [], []
    for number, item in enumerate(_items(dataset)):
        values, names = _parted(item, number, features, label)
        shape = tuple(np.shape(values))
        if len(shape) != 1 + batched:
            what = "batch" if batched else "example"
            raise InputError(f"{what} {number} has features of shape {shape}; features must be one vector per example")
        blocks.append(as_features(values if batched else np.asarray(values)[None], features, keep_half=True))
        labels += as_labels(names if batched else [names], len(blocks[-1]), label)
    if not blocks:
        raise InputError("the dataset is empty; give at least one example")
    if len({block.shape[1] for block in blocks}) > 1:
        raise InputError("examples have different numbers of features; give as many for each")
    return np.concatenate(blocks), labels


def _items(dataset: Any) -> Iterator[Any]:
    # Datasets of torch need not stop by themselves when they are read by number: their length says where.
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[index] for index in range(len(dataset)))
    if isinstance(dataset, Iterable):
        return iter(dataset)
    raise InputError(f"a {type(dataset).__name__} is no dataset; give one of datasets or torch, or a DataLoader")


def _parted(item: Any, number: int, features: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        for name in (features, label):
            if name not in item:
                raise_unknown([name], list(item), noun="column")
        return item[features], item[label]
    if isinstance(item, tuple | list) and len(item) == _PAIR:
        return item[0], item[1]
    raise InputError(
        f"item {number} of the dataset is a {type(item).__name__}; items must be pairs of features and label, or "
        f"mappings with {features!r} and {label!r}"
    )
