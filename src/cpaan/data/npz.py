"""Feature files as NumPy archives without pickles.

An archive holds `features` (n × D), `labels` (n, indices into `classes`), `classes` (names) and, where some rows are
held out for testing, `is_test` (n, bool). Files with `X` and `y` instead, or with class names as labels and no
`classes`, are read as well. Features of a quarter of a gigabyte and more that are not compressed stay in the file and
are read as they are needed; the file must then stay as it is.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.archive_map import map_member
from cpaan.data.array_file import read_archive
from cpaan.data.atomic import replacing
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.limits import require_file
from cpaan.errors import InputError

_SMALLEST_MAPPED = 2**28
_MAGIC = b"PK\x03\x04"
_NAMES = ("features", "X", "labels", "y", "classes", "is_test")


def read_npz(path: Path) -> FeatureTable:
    """Read an archive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_npz(Path(folder) / "trees.npz", FeatureSet([[0.5], [1.5]], ["oak", "elm"]))
    ...     read_npz(Path(folder) / "trees.npz").rows.names
    array(['oak', 'elm'], dtype='<U3')
    """
    arrays = _read_arrays(path)
    features, labels = _either(arrays, ("features", "X"), path), _either(arrays, ("labels", "y"), path)
    classes = arrays.get("classes")
    return make_table(path, features, labels, None if classes is None else classes.tolist(), arrays.get("is_test"))


def read_npz_features(path: Path) -> npt.NDArray[Any]:
    """Read the features of an archive that may have no labels; their values are not checked.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", X=[[0.5], [1.5]])
    ...     read_npz_features(Path(folder) / "new.npz").shape
    (2, 1)
    """
    return _either(_read_arrays(path), ("features", "X"), path)


def write_npz(path: Path, feature_set: FeatureSet, is_test: npt.NDArray[np.bool_] | None = None) -> None:
    """Write an archive, whole or not at all; see `cpaan.data.write_features`."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": feature_set.features,
        "labels": feature_set.labels,
        "classes": class_array(feature_set),
    }
    if is_test is not None:
        arrays["is_test"] = is_test
    with replacing(path) as temporary, temporary.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays that are known here; others may lie beside them."""
    _require_archive(path)
    mapped = {name: map_member(path, name, _SMALLEST_MAPPED) for name in ("features", "X")}
    found = {name: array for name, array in mapped.items() if array is not None}
    return {**found, **read_archive(path, [name for name in _NAMES if name not in found])}


def _either(arrays: Mapping[str, npt.NDArray[Any]], names: tuple[str, str], path: Path) -> npt.NDArray[Any]:
    """Give the array of one name or the other."""
    for name in names:
        if name in arrays:
            return arrays[name]
    found = ", ".join(arrays) or "none that is known"
    raise InputError(f"{path} has no array called {names[0]}; arrays in it: {found}")


def _require_archive(path: Path) -> None:
    require_file(path, ".npz")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if magic != _MAGIC:
        raise InputError(f"{path} is no NumPy archive (.npz); write one with cpaan.data.write_features")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is a truncated archive; copy or write it again")
