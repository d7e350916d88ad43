"""Feature files: NumPy archives without pickles.

An archive holds `features` (n × D), `labels` (n, indices into `classes`), `classes` (names) and, where some
rows are held out for testing, `is_test` (n, bool). Files with `X` and `y` instead, or with class names as
labels and no `classes`, are read as well. Features of a quarter of a gigabyte and more that are not compressed stay in
the file and are read as they are needed; the file must then stay as it is.
"""

import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.archive_map import map_member
from cpaan.data.atomic import replacing
from cpaan.data.containers import require_finite
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError

_WRITABLE_NAMES = (str, int, float, bool)
_SMALLEST_MAPPED = 2**28
_ZIP_MAGIC = b"PK\x03\x04"
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError),
    *(SyntaxError, tokenize.TokenError),  # NumPy parses an array's header as a literal of Python
)


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
        The archive.

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
    return _feature_set(_read_arrays(Path(path)), Path(path))


def read_bank(path: str | os.PathLike[str]) -> Bank:
    """Read a feature file, its training and test rows apart.

    Parameters
    ----------
    path : str or path
        The archive.

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
    arrays = _read_arrays(Path(path))
    rows = _feature_set(arrays, Path(path))
    if "is_test" not in arrays:
        return Bank(rows, None)
    is_test = _as_mask(arrays["is_test"], len(rows), f"is_test in {path}")
    if is_test.all():
        raise InputError(f"{path} has test rows only (is_test is true in all of them); nothing to learn from")
    return Bank(rows.take(~is_test), rows.take(is_test) if is_test.any() else None)


def read_bare_features(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Read the features of a file that may have no labels; their values are not checked.

    Raises
    ------
    InputError
        Where the file is missing, damaged, or has no features.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", X=[[0.5], [1.5]])
    ...     read_bare_features(f"{folder}/new.npz").shape
    (2, 1)
    """
    return _features_of(_read_arrays(Path(path)), Path(path))


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
        The archive, under exactly this name. A file that is there already is replaced.
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
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": _cast_features(feature_set, dtype),
        "labels": feature_set.labels,
        "classes": _class_array(feature_set),
    }
    if is_test is not None:
        arrays["is_test"] = _as_mask(np.asarray(is_test), len(feature_set), "is_test")
    with replacing(Path(path)) as temporary, temporary.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays that are known here; others may lie beside them."""
    _require_archive(path)
    names = ("features", "X", "labels", "y", "classes", "is_test")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: _read_array(archive, name, path) for name in names if name in archive.files}
    except _DAMAGE as error:
        if "Object arrays" in str(error):
            raise InputError(
                f"{path} holds an array of Python objects, which is a pickle and could run code when it is "
                "read; write it again with class names as an array of str or int"
            ) from error
        raise InputError(f"{path} is damaged: {error}") from error


def _read_array(archive: Mapping[str, npt.NDArray[Any]], name: str, path: Path) -> npt.NDArray[Any]:
    mapped = map_member(path, name, _SMALLEST_MAPPED) if name in ("features", "X") else None
    return archive[name] if mapped is None else mapped


def _require_archive(path: Path) -> None:
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give the path of a feature file (.npz)")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_ZIP_MAGIC))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if magic != _ZIP_MAGIC:
        raise InputError(f"{path} is no NumPy archive (.npz); write one with cpaan.data.write_features")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is a truncated archive; copy or write it again")


def _feature_set(arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> FeatureSet:
    features = _features_of(arrays, path)
    labels = arrays.get("labels", arrays.get("y"))
    if labels is None:
        raise InputError(f"{path} has no array called labels; arrays in it: {', '.join(arrays)}")
    classes = arrays.get("classes")
    # Ours alone, so it need not be copied to be kept from changes.
    features.flags.writeable = False
    try:
        return FeatureSet(features, labels, None if classes is None else classes.tolist())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _features_of(arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> npt.NDArray[Any]:
    features = arrays.get("features", arrays.get("X"))
    if features is None:
        found = ", ".join(arrays) or "none that is known"
        raise InputError(f"{path} has no array called features; arrays in it: {found}")
    return features


def _as_mask(mask: npt.NDArray[Any], length: int, name: str) -> npt.NDArray[np.bool_]:
    if mask.shape != (length,):
        raise InputError(f"{name} has shape {mask.shape} for {length} examples; give one bool for each")
    if mask.dtype != bool and not (mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all()):
        raise InputError(f"{name} is {mask.dtype}; give bool")
    return mask.astype(bool)


def _cast_features(feature_set: FeatureSet, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    if dtype is None:
        return feature_set.features
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise InputError(f"dtype {dtype!r} is unknown; give float16, float32 or float64") from error
    if wanted not in (np.float16, np.float32, np.float64):
        raise InputError(f"dtype {wanted} cannot hold features; give float16, float32 or float64")
    with np.errstate(over="ignore"):
        features = feature_set.features.astype(wanted)
    require_finite(features, f"features as {wanted} values")
    return features


def _class_array(feature_set: FeatureSet) -> npt.NDArray[Any]:
    names = feature_set.classes
    kinds = {type(name) for name in names}
    cure = "rename the classes to str or int first"
    if len(kinds) != 1 or not kinds <= set(_WRITABLE_NAMES):
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(
            f"class names are of type {found}, but a file can hold names that are all str, all int, "
            f"all float or all bool; {cure}"
        )
    # NumPy cuts trailing NUL characters off strings, and integers beyond 64 bits are objects or floats.
    try:
        array = np.array(names)
    except OverflowError:
        array = np.array(names, dtype=object)
    for name, stored in zip(names, array.tolist(), strict=True):
        if array.dtype == object or type(stored) is not type(name) or stored != name:
            raise InputError(f"class name {name!r} cannot be kept in a file as it is; {cure}")
    return array
