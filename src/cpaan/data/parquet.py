"""Feature files in parquet.

A file has a column `features` of lists of equal length, or columns f0, f1, …; a column `label`, and `is_test` where
rows are held out for testing.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.arrow_columns import feature_matrix, label_values, numbered_columns
from cpaan.data.atomic import replacing
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.json_file import parse_json
from cpaan.data.limits import reading, require_file, require_plausible
from cpaan.data.parquet_footer import claimed_values
from cpaan.errors import InputError
from cpaan.extras import import_extra

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
