"""The content of a feature file of any format: its rows, and which of them are held out for testing."""

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, require_finite
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError

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
LONGEST_NAME = 1000  # characters of a class name
_WRITABLE_NAMES = (str, int, float, bool)


class FeatureTable(NamedTuple):
    """Rows of a feature file, and a mask of those held out for testing if the file has one."""

    rows: FeatureSet
    is_test: npt.NDArray[np.bool_] | None


def format_of(path: str | os.PathLike[str]) -> Format:
    """Tell the format of a feature file by its first bytes, or else by the ending of its name.

    >>> format_of("missing.hdf5"), format_of("missing")
    ('hdf5', 'npz')
    """
    begin = first_bytes(path, max(map(len, _MAGIC)))
    return next((found for magic, found in _MAGIC.items() if begin.startswith(magic)), format_by_ending(path))


def format_by_ending(path: str | os.PathLike[str]) -> Format:
    """Tell the format to write a file in by the ending of its name: "npz" if the ending is not known.

    >>> format_by_ending("bank.PARQUET")
    'parquet'
    """
    return ENDINGS.get(Path(path).suffix.lower(), "npz")


def first_bytes(path: str | os.PathLike[str], number: int) -> bytes:
    """Read the first bytes of a file; none if there is no file, or a pipe, which might never give any."""
    try:
        if not Path(path).is_file():
            return b""
        with open(path, "rb") as file:
            return file.read(number)
    except (OSError, ValueError):
        return b""  # the reader of the format reports what is wrong


def make_table(path: Path, features: Any, labels: Any, classes: Any = None, is_test: Any = None) -> FeatureTable:
    """Check what was read from a file; messages name the file."""
    if isinstance(features, np.ndarray):
        features.flags.writeable = False  # so that the set need not copy it
    try:
        rows = FeatureSet(features, labels, classes)
        longest = max((len(name) for name in rows.classes if isinstance(name, str | bytes)), default=0)
        if longest > LONGEST_NAME:  # an array of names gives each the room of the longest
            raise InputError(f"a class name has {longest} characters; the most is {LONGEST_NAME}")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    mask = None if is_test is None else as_mask(np.asarray(is_test), len(rows), f"is_test in {path}")
    return FeatureTable(rows, mask)


def as_mask(mask: npt.NDArray[Any], length: int, name: str) -> npt.NDArray[np.bool_]:
    """Read which rows are held out, from bools or from zeros and ones."""
    if mask.shape != (length,):
        raise InputError(f"{name} has shape {mask.shape} for {length} examples; give one bool for each")
    if mask.dtype != bool and not (mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all()):
        raise InputError(f"{name} is {mask.dtype}; give bool")
    return mask.astype(bool)


def cast_features(feature_set: FeatureSet, dtype: npt.DTypeLike | None) -> FeatureArray:
    """Cast features to the type to write them in."""
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
    """Give class names as an array from which they can be read back unchanged."""
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
