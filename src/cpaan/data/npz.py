"""Arrays in NumPy's formats, .npy and .npz, read without pickles and without trust.

A feature file is an archive with `features` (n × D), `labels` (n, indices into `classes`), `classes` (names) and, if
rows are held out for testing, `is_test` (n, bool). Files with `X` and `y` instead, or with class names as labels and no
`classes`, are read as well. Features of a quarter of a gigabyte and more that are not compressed stay in the file and
are read as they are needed; the file must then stay unchanged.
"""

import math
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, class_array, first_bytes, make_table
from cpaan.data.folders import replacing
from cpaan.data.untrusted import reading, require_file, require_plausible
from cpaan.errors import InputError

MAGIC = b"\x93NUMPY"
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]

_ZIP_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 1
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NAMES = ("features", "X", "labels", "y", "classes", "is_test")
_SMALLEST_MAPPED = 2**28
_KINDS = "biufcUSMmV"
_LONGEST_EMPTY = 2**20  # an array without values takes no bytes, however long its other sides
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


# Feature files


def read_npz(path: Path) -> FeatureTable:
    """Read a feature file."""
    arrays = _read_arrays(path)
    features, labels = _either(arrays, ("features", "X"), path), _either(arrays, ("labels", "y"), path)
    classes = arrays.get("classes")
    return make_table(path, features, labels, None if classes is None else classes.tolist(), arrays.get("is_test"))


def read_npz_features(path: Path) -> npt.NDArray[Any]:
    """Read the features of an archive that may have no labels; their values are not checked."""
    return _either(_read_arrays(path), ("features", "X"), path)


def write_npz(path: Path, feature_set: FeatureSet, is_test: npt.NDArray[np.bool_] | None = None) -> None:
    """Write a feature file, whole or not at all; see `cpaan.data.write_features`."""
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
    """Read the arrays of a feature file; the archive may have others."""
    require_file(path, ".npz")
    if first_bytes(path, len(_ZIP_MAGIC)) != _ZIP_MAGIC:
        raise InputError(f"{path} is not a NumPy archive (.npz); write one with cpaan.data.write_features")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is a truncated archive; copy or write it again")
    mapped = {name: map_member(path, name, _SMALLEST_MAPPED) for name in ("features", "X")}
    found = {name: array for name, array in mapped.items() if array is not None}
    return {**found, **read_archive(path, [name for name in _NAMES if name not in found])}


def _either(arrays: Mapping[str, npt.NDArray[Any]], names: tuple[str, str], path: Path) -> npt.NDArray[Any]:
    for name in names:
        if name in arrays:
            return arrays[name]
    found = ", ".join(arrays) or "none that is known"
    raise InputError(f"{path} has no array called {names[0]}; arrays in it: {found}")


# Arrays in files and archives


def read_array_file(path: Path) -> npt.NDArray[Any]:
    """Read a .npy file."""
    require_file(path, ".npy")
    with reading(path), path.open("rb") as file:
        read_header(file, os.path.getsize(path), path)
        file.seek(0)
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def read_archive(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Read those of the named arrays that an archive has."""
    require_file(path, ".npz")
    with reading(path), zipfile.ZipFile(path) as archive:
        known = {name: archive.NameToInfo.get(f"{name}.npy") for name in names}
        members = {name: member for name, member in known.items() if member is not None}
        require_plausible(path, sum(member.file_size for member in members.values()))
        return {name: _read_member(archive, member, path) for name, member in members.items()}


def map_member(path: Path, name: str, smallest: int) -> npt.NDArray[Any] | None:
    """Map an array of an archive for reading.

    Give None if there is no such array, or it is compressed, encrypted, of fewer bytes than `smallest`, or not rows of
    floating-point numbers. An array that is stored as it is lies in one piece somewhere in the archive; every size and
    place is compared with the length of the file, and no checksum is computed.
    """
    with reading(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        member = archive.NameToInfo.get(f"{name}.npy")
        if member is None or member.file_size < smallest:
            return None
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
            return None
        file.seek(_begin(file, member))
        shape, fortran_order, dtype = read_header(file, member.file_size, path, name)
        if dtype.kind != "f" or fortran_order or not all(shape):
            return None
        return np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape)


def read_header(file: IO[bytes], size: int, path: Path, name: str = "it") -> Header:
    """Read the header of an array of `size` bytes, and leave the file where its values begin.

    Refuse an array of Python objects, and one whose shape takes more or fewer bytes than there are.
    """
    start = file.tell()
    reader = _HEADER_READERS.get(np.lib.format.read_magic(file))
    if reader is None:
        raise InputError(f"{path}: {name} is of an unknown version of NumPy's format")
    shape, fortran_order, dtype = reader(file)
    if dtype.hasobject:
        raise InputError(
            f"{path} holds an array of Python objects, which is a pickle and could run code when it is read; write it "
            "again with class names as an array of str or int"
        )
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise InputError(f"{path}: {name} is {dtype}; it must be numbers or text")
    # With Python's integers, which do not overflow, whatever shape the header claims.
    claimed, left = math.prod(shape) * dtype.itemsize, size - (file.tell() - start)
    if claimed != left or min(shape, default=0) < 0 or (not claimed and max(shape) > _LONGEST_EMPTY):
        raise InputError(f"{path} is damaged: {name} has another size than its shape {shape} takes")
    return shape, fortran_order, dtype


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> npt.NDArray[Any]:
    name = member.filename
    if member.compress_type not in _PACKED or member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path}: {name} is encrypted or packed in a way that NumPy does not write; write it again")
    with archive.open(member) as file:
        read_header(file, member.file_size, path, name)
    with archive.open(member) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise InputError(f"{path}: {name} goes on after its last value")
        return array


def _begin(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Find where the content of a member begins, and make sure that all of it is there."""
    length = file.seek(0, 2)
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile(f"{member.filename} begins beyond the end of the file")
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    begin = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if magic != _ZIP_MAGIC or member.compress_size != member.file_size or begin + member.file_size > length:
        raise zipfile.BadZipFile(f"{member.filename} is not where the archive says that it is")
    return int(begin)
