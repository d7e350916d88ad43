"""The content of a feature file of whatever format: labelled rows, and which of them are held out for testing.

Which format a feature file has.
"""

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, require_finite
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError

LONGEST_NAME = 1000
_WRITABLE_NAMES = (str, int, float, bool)


class FeatureTable(NamedTuple):
    """Rows of a feature file.

    >>> FeatureTable(FeatureSet([[0.0], [1.0]], ["a", "b"]), None).rows.n_classes
    2
    """

    rows: FeatureSet
    is_test: npt.NDArray[np.bool_] | None


def make_table(path: Path, features: Any, labels: Any, classes: Any = None, is_test: Any = None) -> FeatureTable:
    """Check what was read from a file; messages name the file.

    >>> make_table(Path("trees.npz"), np.eye(2), ["oak", "elm"]).rows.classes
    ('elm', 'oak')
    """
    if isinstance(features, np.ndarray):
        # Ours alone, so it need not be copied to be kept from changes.
        features.flags.writeable = False
    try:
        rows = FeatureSet(features, labels, classes)
        _require_short_names(rows)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    mask = None if is_test is None else as_mask(np.asarray(is_test), len(rows), f"is_test in {path}")
    return FeatureTable(rows, mask)


def _require_short_names(rows: FeatureSet) -> None:
    longest = max((len(name) for name in rows.classes if isinstance(name, str | bytes)), default=0)
    # An array of names gives each of them the room of the longest.
    if longest > LONGEST_NAME:
        raise InputError(f"a class name has {longest} characters; the most is {LONGEST_NAME}")


def as_mask(mask: npt.NDArray[Any], length: int, name: str) -> npt.NDArray[np.bool_]:
    """Read which rows are held out.

    >>> as_mask(np.array([0, 1]), 2, "is_test")
    array([False,  True])
    """
    if mask.shape != (length,):
        raise InputError(f"{name} has shape {mask.shape} for {length} examples; give one bool for each")
    if mask.dtype != bool and not (mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all()):
        raise InputError(f"{name} is {mask.dtype}; give bool")
    return mask.astype(bool)


def cast_features(feature_set: FeatureSet, dtype: npt.DTypeLike | None) -> FeatureArray:
    """Give features in the type that they shall be written in.

    >>> cast_features(FeatureSet([[0.5]], ["a"]), "float16")
    array([[0.5]], dtype=float16)
    """
    if dtype is None:
        return feature_set.features
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise InputError(f"dtype {dtype!r} is unknown; give float16, float32 or float64") from error
    if wanted not in (np.float16, np.float32, np.float64):
        raise InputError(f"dtype {wanted} cannot hold features; give float16, float32 or float64")
    with np.errstate(over="ignore"):
        features: FeatureArray = feature_set.features.astype(wanted)
    require_finite(features, f"features as {wanted} values")
    return features


def class_array(feature_set: FeatureSet) -> npt.NDArray[Any]:
    """Give class names as an array from which they can be read back as they are.

    >>> class_array(FeatureSet([[0.5], [1.5]], ["oak", "elm"]))
    array(['elm', 'oak'], dtype='<U3')
    """
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


Format: TypeAlias = Literal["npz", "hdf5", "safetensors", "parquet"]

ENDINGS: dict[str, Format] = {
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".hdf": "hdf5",
    ".safetensors": "safetensors",
    ".parquet": "parquet",
}
_MAGIC: dict[bytes, Format] = {b"PK\x03\x04": "npz", b"\x89HDF\r\n\x1a\n": "hdf5", b"PAR1": "parquet"}
_LONGEST = max(map(len, _MAGIC))


def format_of(path: str | os.PathLike[str]) -> Format:
    """Tell the format of a feature file.

    Parameters
    ----------
    path : str or path
        The file, which need not be there.

    Returns
    -------
    {"npz", "hdf5", "safetensors", "parquet"}
        By its first bytes; by the ending of its name where they tell nothing; "npz" where that tells nothing either.

    Examples
    --------
    >>> format_of("missing.hdf5"), format_of("missing")
    ('hdf5', 'npz')
    """
    try:
        # Of a pipe nothing is read: it might never give anything.
        begin = _begin(Path(path)) if Path(path).is_file() else b""
    except (OSError, ValueError):
        begin = b""
    for magic, found in _MAGIC.items():
        if begin.startswith(magic):
            return found
    return format_by_ending(path)


def _begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)


def format_by_ending(path: str | os.PathLike[str]) -> Format:
    """Tell the format that a file is to be written in, by the ending of its name alone.

    >>> format_by_ending("bank.PARQUET")
    'parquet'
    """
    return ENDINGS.get(Path(path).suffix.lower(), "npz")
