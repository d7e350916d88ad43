"""Feature files in parquet, and the columns of Arrow tables.

A file has a column `features` of lists of equal length, or columns f0, f1, …; a column `label`; and a column `is_test`
if rows are held out for testing.
"""

import json
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.folders import replacing
from cpaan.data.untrusted import parse_json, reading, require_file, require_plausible
from cpaan.errors import InputError
from cpaan.extras import import_extra

_PURPOSE = "a parquet file"
_ORDER = b"cpaan.classes"
_WRONG = "is not a parquet file, is damaged or cannot be read"
_NUMBERED = re.compile(r"(f|feature_)(\d+)")


def read_parquet(path: Path) -> FeatureTable:
    """Read a parquet file; check its schema and the sizes of its pages before reading values."""
    require_file(path, ".parquet")
    parquet = import_extra("pyarrow.parquet", _PURPOSE)
    with reading(path, _WRONG):
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
        columns = _checked_columns(schema)
        _require_plausible_size(path, columns, getattr(schema.field(columns[0]).type, "list_size", 1))
        # As a dictionary, a name that many rows share is held once.
        with parquet.ParquetFile(path, read_dictionary=["label"]) as file:
            table = file.read(columns)
        features, labels = feature_matrix(table), label_values(table.column("label"))
        is_test = table.column("is_test").to_numpy() if "is_test" in columns else None
    return make_table(path, features, *_in_order(labels, (schema.metadata or {}).get(_ORDER)), is_test)


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


def _checked_columns(schema: Any) -> list[str]:
    """Give the names of the columns to read, whose types are as they should be."""
    if "label" not in schema.names:
        raise InputError(f"there is no column label; columns: {', '.join(schema.names[:10]) or 'none'}")
    _require_label_type(schema.field("label").type, "label")
    features = _feature_columns(schema.names, "features")
    for name in features:
        kind = schema.field(name).type
        _require_numeric(_list_values(kind, name) if name == "features" else kind, name)
    if "is_test" not in schema.names:
        return [*features, "label"]
    types, kind = import_extra("pyarrow.types", _PURPOSE), schema.field("is_test").type
    if not (types.is_boolean(kind) or types.is_integer(kind)):
        raise InputError(f"column is_test holds {kind}; give bool")
    return [*features, "label", "is_test"]


def _in_order(labels: list[Any], order: bytes | None) -> tuple[Any, list[Any] | None]:
    """Give labels as indices into the classes in the order in which they were written, if that is known."""
    try:
        known = set(labels)
        # Rows may have been removed or added since: the names in the column are what counts.
        classes = [name for name in parse_json(order or b"[]", "the order of classes") if name in known]
        place = {name: index for index, name in enumerate(classes)}
        return np.array([place[label] for label in labels], dtype=np.int64), classes
    except (ValueError, KeyError, TypeError):
        return labels, None


# Columns of Arrow tables


def feature_matrix(table: Any, name: str = "features") -> FeatureArray:
    """Read features from a column of lists of equal length, or else from the columns f0, f1, … of a table."""
    columns = _feature_columns(table.column_names, name)
    if columns == [name]:
        return _matrix_of_lists(table.column(name), name)
    return np.column_stack([_numbers(table.column(column), column) for column in columns])


def label_values(column: Any, name: str = "label") -> list[Any]:
    """Read class names from a column of text or numbers."""
    _require_label_type(column.type, name)
    if column.null_count:
        raise InputError(f"column {name} is missing (null) in {column.null_count} rows; remove or label them")
    if not import_extra("pyarrow.types", "a table of Arrow").is_dictionary(column.type):
        values: list[Any] = column.to_pylist()
        return values
    # Each name is made once, however often it occurs.
    parts = ((chunk.dictionary.to_pylist(), chunk.indices.to_pylist()) for chunk in column.chunks)
    return [names[index] for names, indices in parts for index in indices]


def _feature_columns(names: list[str], name: str) -> list[str]:
    """Find the column of lists, or else f0, f1, … or feature_0, feature_1, … in the order of their numbers."""
    if name in names:
        return [name]
    found = [match for match in map(_NUMBERED.fullmatch, names) if match]
    if not found:
        shown = ", ".join(names[:10]) or "none"
        raise InputError(f"there is no column {name}, and none called f0, f1, …; columns: {shown}")
    return [match.group() for match in sorted(found, key=lambda match: (match[1], int(match[2])))]


def _matrix_of_lists(column: Any, name: str) -> FeatureArray:
    compute = import_extra("pyarrow.compute", "a table of Arrow")
    _list_values(column.type, name)
    if column.null_count:
        raise InputError(f"column {name} is missing (null) in {column.null_count} rows; remove these rows")
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(lengths) > 1:
        raise InputError(
            f"column {name} holds lists of {min(lengths)} to {max(lengths)} numbers; give as many in each row"
        )
    flat = _numbers(compute.list_flatten(column), name)
    return flat.reshape(len(column), lengths[0] if lengths else 0)


def _numbers(column: Any, name: str) -> npt.NDArray[Any]:
    _require_numeric(column.type, name)
    if column.null_count:
        raise InputError(f"column {name} has {column.null_count} missing values (null); remove or impute them")
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers


def _list_values(kind: Any, name: str) -> Any:
    """Give the type of the values in a type of lists."""
    types = import_extra("pyarrow.types", "a table of Arrow")
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise InputError(f"column {name} holds {kind}; it must hold a list of numbers in each row")
    return kind.value_type


def _require_numeric(kind: Any, name: str) -> None:
    types = import_extra("pyarrow.types", "a table of Arrow")
    if not (types.is_floating(kind) or types.is_integer(kind)):
        raise InputError(f"column {name} holds {kind}, not numbers")


def _require_label_type(kind: Any, name: str) -> None:
    types = import_extra("pyarrow.types", "a table of Arrow")
    kind = kind.value_type if types.is_dictionary(kind) else kind
    checks = ("is_string", "is_large_string", "is_string_view", "is_integer", "is_floating", "is_boolean")
    if not any(getattr(types, check)(kind) for check in checks if hasattr(types, check)):
        raise InputError(f"column {name} holds {kind}; class names must be text or numbers")


# Sizes of pages
#
# A page of some bytes can unpack to gigabytes, and Arrow unpacks it whatever the footer says of its size: neither
# `iter_batches` nor pyarrow's metadata limits that, and asking for the metadata of a column ends the process where it
# is damaged (pyarrow 26). So headers of pages are read here. They and the footer are structs of Thrift's compact
# protocol; the numbers of their fields are in `parquet.thrift` of apache/parquet-format.

_MAGIC = b"PAR1"
_END_BYTES = 8
_LONGEST_FOOTER, _LONGEST_HEADER = 2**26, 2**16
_VALUE_BYTES = 8
_DELTA_BYTE_ARRAY = 7
_DEEPEST = 24


def _require_plausible_size(path: Path, columns: list[str], row_values: int) -> None:
    """Refuse a file whose columns would take far more memory than the file is long.

    A row of lists of fixed size takes `row_values` values even if it is null, and then no page has them.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        size = int.from_bytes(content[-_END_BYTES : -len(_MAGIC)], "little")
        begin = len(content) - _END_BYTES - size
        if content[-len(_MAGIC) :] != _MAGIC or begin < 0 or size > _LONGEST_FOOTER:
            raise InputError(f"{path} {_WRONG}: it has no footer")
        footer = _Thrift(content, begin, len(content)).struct()
        rows, chunks = footer[3], [chunk[3] for group in footer[4] for chunk in group[1]]
        unpacked = sum(_unpacked_bytes(content, chunk) for chunk in chunks if chunk[3][0].decode() in columns)
    if rows < 0:
        raise InputError(f"{path} is damaged: its number of rows is negative")
    require_plausible(path, _VALUE_BYTES * rows + max(_VALUE_BYTES * rows * row_values, unpacked))


def _unpacked_bytes(content: mmap.mmap, chunk: dict[int, Any]) -> int:
    """Give the bytes that the pages of a column chunk take in memory.

    Like Arrow, read pages until they have as many values as the chunk claims.
    """
    wanted, place = chunk[5], min(offset for offset in (chunk[9], chunk.get(11, 0)) if offset > 0)
    values = unpacked = 0
    while values < wanted:
        reader = _Thrift(content, place, place + _LONGEST_HEADER)
        page = reader.struct()
        place = reader.place + page[3]
        data, encoding = (page[5], 2) if 5 in page else (page.get(8, {}), 4)  # noqa: PLR2004  # data_page_header
        if data.get(encoding) == _DELTA_BYTE_ARRAY:
            raise InputError("text is packed as DELTA_BYTE_ARRAY, which can grow without limit; write it again")
        if min(page[2], page[3]) < 0 or (data and data[1] < 1) or not (data or 7 in page):  # noqa: PLR2004
            raise ValueError("the header of a page is wrong")
        values, unpacked = values + data.get(1, 0), unpacked + page[2]
    return max(unpacked, _VALUE_BYTES * values)


class _Thrift:
    """Read structs of Thrift's compact protocol as dictionaries from the number of a field to its value."""

    def __init__(self, content: mmap.mmap, place: int, end: int) -> None:
        self.content, self.place, self.end = content, place, end

    def struct(self, depth: int = 0) -> dict[int, Any]:
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("structs in structs without end")
        match kind:
            case 1 | 2 | 3:  # a truth value in a list, or a byte
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9:
                head = self._byte()
                size = self._unsigned() if head >> 4 == 15 else head >> 4  # noqa: PLR2004
                if size > self.end - self.place:  # each takes a byte at least
                    raise ValueError("a list of more values than there are bytes")
                return [self._value(head & 15, depth + 1) for _ in range(size)]
            case 12:
                return self.struct(depth)
        raise ValueError(f"no value of parquet is of kind {kind}")

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
        part = self.content[self.place : min(self.end, self.place + size)]
        if len(part) < size:
            raise ValueError("it ends too early")
        self.place += size
        return part
