"""Feature files of every format that is known here: NumPy archives, the benchmark's HDF5, safetensors, parquet.

What a file holds is told by its first bytes or else its ending; what is written, by the ending alone. All hold
features, one label for each row and, except HDF5, which rows are held out for testing; files are never unpickled, and
what they claim is checked before memory is taken for it.

What a format may ask for before features can be written in it: one part alone, or numbered classes.

Features without labels: what a classifier is asked about.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, as_features
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, Format, as_mask, cast_features, format_by_ending, format_of
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
        Examples that are held out; None where the file has none.

    Examples
    --------
    >>> bank = Bank(train=FeatureSet([[0.0], [1.0]], ["a", "b"]), test=None)
    >>> bank.train.n_classes
    2
    """

    train: FeatureSet
    test: FeatureSet | None


def read_features(path: str | os.PathLike[str]) -> FeatureSet:
    """Read all rows of a feature file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    FeatureSet
        Its examples, those for testing included.

    Raises
    ------
    InputError
        Where the file is missing, damaged, or no feature file.

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
    """Read a feature file, its training and test rows apart.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Bank
        A class without examples in a part does not appear in that part.

    Raises
    ------
    InputError
        Where the file is missing, damaged, no feature file, or has test rows only.

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
        The file, under exactly this name. Its ending says what is written: .npz, .safetensors, .parquet, or .h5 and
        .hdf5 for the benchmark's HDF5; any other ending means a NumPy archive. A file that is there already is
        replaced.
    feature_set : FeatureSet
        What to write. Its class names must be all str, all int, all float or all bool.
    is_test : array of bool, optional
        Which rows are held out for testing.
    dtype : floating dtype, optional
        The type to write features in, such as "float16"; by default that of the set.

    Raises
    ------
    InputError
        Where class names are of other types, features do not fit `dtype`, or the file cannot be written.

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
    _WRITERS[format_by_ending(path)](Path(path), chosen, mask)


def read_table(path: str | os.PathLike[str]) -> FeatureTable:
    """Read a feature file as it is: all rows, and which of them are held out for testing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/trees.npz", FeatureSet([[0.5], [1.5]], ["oak", "elm"]), is_test=[False, True])
    ...     read_table(f"{folder}/trees.npz").is_test
    array([False,  True])
    """
    return _READERS[format_of(path)](Path(path))


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


_READERS: dict[Format, Callable[[Path], FeatureTable]] = {
    "npz": read_npz,
    "hdf5": _read_hdf5,
    "safetensors": read_tensor_file,
    "parquet": read_parquet,
}
_WRITERS: dict[Format, Callable[[Path, FeatureSet, npt.NDArray[np.bool_] | None], None]] = {
    "npz": write_npz,
    "hdf5": _write_hdf5,
    "safetensors": write_tensor_file,
    "parquet": write_parquet,
}


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


def read_rows(path: str | os.PathLike[str]) -> FeatureArray:
    """Read the features of a file; labels may be missing.

    Parameters
    ----------
    path : str or path
        An archive with `features` or `X` (.npz), one array (.npy), an HDF5 feature file, or safetensors or parquet,
        which must have labels. Of all of them every row is read, those for testing included.

    Returns
    -------
    ndarray of shape (n, D)
        The features, all finite.

    Raises
    ------
    InputError
        Where the file is missing, damaged or holds no features.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", X=np.eye(2, dtype=np.float32))
    ...     read_rows(f"{folder}/new.npz")
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    path = Path(path)
    require_file(path)
    if _is_array(path):
        return as_features(read_array_file(path), str(path), keep_half=True)
    found = format_of(path)
    if found == "npz":
        return as_features(read_npz_features(path), str(path), keep_half=True)
    if found == "hdf5":
        file = Hdf5Features(path)
        return as_features(file.read(np.arange(file.n)), str(path), keep_half=True)
    return read_features(path).features


def _is_array(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False  # whoever reads an archive says what is wrong
