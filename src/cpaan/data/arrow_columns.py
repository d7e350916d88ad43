"""Features and labels as columns of an Arrow table, which parquet files and `datasets.Dataset` are read through."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray
from cpaan.errors import InputError
from cpaan.extras import import_extra

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
