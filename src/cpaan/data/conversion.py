"""What a format may ask for before features can be written in it: one part alone, or numbered classes."""

import json
from pathlib import Path

import numpy as np

from cpaan.data.atomic import write_atomically
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable
from cpaan.errors import InputError


def one_part(table: FeatureTable, part: str) -> FeatureTable:
    """Keep the rows of one part.

    Parameters
    ----------
    table : FeatureTable
        All rows.
    part : {"train", "test"}
        Which of them to keep.

    Returns
    -------
    FeatureTable
        Without marks, because all its rows are of one part.

    Examples
    --------
    >>> table = FeatureTable(FeatureSet([[0.0], [1.0]], ["oak", "elm"]), np.array([False, True]))
    >>> one_part(table, "test").rows.classes
    ('elm',)
    """
    if part not in ("train", "test"):
        raise InputError(f"a part is train or test, not {part!r}")
    is_test = np.zeros(len(table.rows), dtype=bool) if table.is_test is None else table.is_test
    wanted = is_test if part == "test" else ~is_test
    if not wanted.any():
        raise InputError(f"the file has no {part} rows")
    return FeatureTable(table.rows.take(wanted), None)


def number_classes(table: FeatureTable, names: Path) -> FeatureTable:
    """Call classes by their place among all, and write the list of their names to a file.

    Parameters
    ----------
    table : FeatureTable
        Rows whose classes have any names that a JSON file can hold.
    names : path
        The file: a list of names, of which number i is called i from now on.

    Returns
    -------
    FeatureTable
        The same rows, their classes called 0, 1, ….

    Examples
    --------
    >>> import tempfile
    >>> table = FeatureTable(FeatureSet([[0.0], [1.0]], ["oak", "elm"]), None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numbered = number_classes(table, Path(folder) / "classes.json")
    ...     numbered.rows.names.tolist(), (Path(folder) / "classes.json").read_text()
    ([1, 0], '["elm", "oak"]')
    """
    rows = table.rows
    write_atomically(names, json.dumps(rows.classes, ensure_ascii=False).encode())
    return FeatureTable(FeatureSet(rows.features, rows.labels, range(rows.n_classes)), table.is_test)
