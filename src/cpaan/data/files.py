"""Feature files of every format: NumPy archives, the benchmark's HDF5, safetensors and parquet.

The first bytes of a file, or else its ending, say how to read it; its ending alone says how to write it. All formats
hold features, one label for each row and, except HDF5, which rows are held out for testing. Files are never unpickled,
and what they claim is checked before memory is taken for it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, as_features
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import (
    FeatureTable,
    Format,
    as_mask,
    cast_features,
    first_bytes,
    format_by_ending,
    format_of,
)
from cpaan.data.folders import write_atomically
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.data.npz import MAGIC, read_array_file, read_npz, read_npz_features, write_npz
from cpaan.data.parquet import read_parquet, write_parquet
from cpaan.data.tensor_file import read_tensor_file, write_tensor_file
from cpaan.data.untrusted import require_file
from cpaan.errors import InputError


@dataclass(frozen=True, slots=True)
class Bank:
    """The two parts of a feature file.

    Parameters
    ----------
    train : FeatureSet
        Examples to learn from.
    test : FeatureSet or None
        Examples held out for testing; None if the file has none.
    """

    train: FeatureSet
    test: FeatureSet | None


def read_features(path: str | os.PathLike[str]) -> FeatureSet:
    """Read all rows of a feature file, those for testing included.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    FeatureSet
        Its examples.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/trees.npz", FeatureSet([[0.5], [1.5]], ["oak", "elm"]))
    ...     read_features(f"{folder}/trees.npz").names
    array(['oak', 'elm'], dtype='<U3')
    """
    return read_table(path).rows


def read_bank(path: str | os.PathLike[str]) -> Bank:
    """Read the training rows and the test rows of a feature file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Bank
        Each part has only the classes that have examples in it.

    Examples
    --------
    >>> import tempfile
    >>> trees = FeatureSet([[0.5], [1.5], [0.6]], ["oak", "elm", "oak"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/trees.npz", trees, is_test=[False, False, True])
    ...     bank = read_bank(f"{folder}/trees.npz")
    >>> len(bank.train), bank.test.classes
    (2, ('oak',))
    """
    rows, is_test = read_table(path)
    if is_test is None:
        return Bank(rows, None)
    if is_test.all():
        raise InputError(f"{path} has test rows only (is_test is true in all of them); nothing to learn from")
    return Bank(rows.take(~is_test), rows.take(is_test) if is_test.any() else None)


def write_features(
    path: str | os.PathLike[str],
    feature_set: FeatureSet,
    is_test: npt.ArrayLike | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
) -> None:
    """Write a feature file, whole or not at all.

    Parameters
    ----------
    path : str or path
        The file, replaced if it exists. Its ending selects the format: .npz, .safetensors, .parquet, or .h5 and .hdf5
        for the benchmark's HDF5; any other ending means a NumPy archive.
    feature_set : FeatureSet
        What to write. Class names must be all str, all int, all float or all bool.
    is_test : array of bool, optional
        Which rows are held out for testing.
    dtype : floating dtype, optional
        Type of the features in the file, such as "float16"; by default that of the set.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/trees.npz", FeatureSet([[0.5], [1.5]], ["oak", "elm"]), dtype="float16")
    ...     read_features(f"{folder}/trees.npz").features.dtype
    dtype('float16')
    """
    cast = cast_features(feature_set, dtype)
    chosen = feature_set if dtype is None else FeatureSet(cast, feature_set.labels, feature_set.classes)
    mask = None if is_test is None else as_mask(np.asarray(is_test), len(feature_set), "is_test")
    _, writer = _FORMATS[format_by_ending(path)]
    writer(Path(path), chosen, mask)


def read_table(path: str | os.PathLike[str]) -> FeatureTable:
    """Read all rows of a feature file, and which of them are held out for testing."""
    reader, _ = _FORMATS[format_of(path)]
    return reader(Path(path))


def _read_hdf5(path: Path) -> FeatureTable:
    file = Hdf5Features(path)
    return FeatureTable(file.select(file.classes), None)


def _write_hdf5(path: Path, feature_set: FeatureSet, is_test: npt.NDArray[np.bool_] | None) -> None:
    if is_test is not None and is_test.any() and not is_test.all():
        raise InputError(
            f"{path}: an HDF5 file of the benchmark holds training or test rows; write each to a file of its own, or "
            "both to one .npz"
        )
    names = feature_set.names
    if names.dtype.kind not in "iu" or names.min() < 0:
        raise InputError(
            f"{path}: an HDF5 file of the benchmark knows classes by whole numbers from 0, not by names such as "
            f"{feature_set.classes[0]!r}; number the classes, or write .npz, .safetensors or .parquet"
        )
    write_hdf5(path, feature_set.features, names)


_Reader: TypeAlias = Callable[[Path], FeatureTable]
_Writer: TypeAlias = Callable[[Path, FeatureSet, npt.NDArray[np.bool_] | None], None]
_FORMATS: dict[Format, tuple[_Reader, _Writer]] = {
    "npz": (read_npz, write_npz),
    "hdf5": (_read_hdf5, _write_hdf5),
    "safetensors": (read_tensor_file, write_tensor_file),
    "parquet": (read_parquet, write_parquet),
}


def one_part(table: FeatureTable, part: str) -> FeatureTable:
    """Keep the rows of one part, "train" or "test"; the result has no mask."""
    if part not in ("train", "test"):
        raise InputError(f"a part is train or test, not {part!r}")
    is_test = np.zeros(len(table.rows), dtype=bool) if table.is_test is None else table.is_test
    wanted = is_test if part == "test" else ~is_test
    if not wanted.any():
        raise InputError(f"the file has no {part} rows")
    return FeatureTable(table.rows.take(wanted), None)


def number_classes(table: FeatureTable, names: Path) -> FeatureTable:
    """Replace class names by their indices, and write the list of names to a JSON file."""
    rows = table.rows
    write_atomically(names, json.dumps(rows.classes, ensure_ascii=False).encode())
    return FeatureTable(FeatureSet(rows.features, rows.labels, range(rows.n_classes)), table.is_test)


def read_rows(path: str | os.PathLike[str]) -> FeatureArray:
    """Read the features of all rows of a file; labels may be missing in .npz, .npy and HDF5."""
    path = Path(path)
    require_file(path)
    found = format_of(path)
    if first_bytes(path, len(MAGIC)) == MAGIC:
        values = read_array_file(path)
    elif found == "npz":
        values = read_npz_features(path)
    elif found == "hdf5":
        file = Hdf5Features(path)
        values = file.read(np.arange(file.n))
    else:
        return read_features(path).features
    return as_features(values, str(path), keep_half=True)
