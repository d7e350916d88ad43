"""Feature files of every format that is known here: NumPy archives, the benchmark's HDF5, safetensors, parquet.

What a file holds is told by its first bytes or else its ending; what is written, by the ending alone. All hold
features, one label for each row and, except HDF5, which rows are held out for testing; files are never unpickled, and
what they claim is checked before memory is taken for it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, as_mask, cast_features
from cpaan.data.file_format import Format, format_by_ending, format_of
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.data.npz import read_npz, write_npz
from cpaan.data.parquet import read_parquet, write_parquet
from cpaan.data.tensor_file import read_tensor_file, write_tensor_file
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
