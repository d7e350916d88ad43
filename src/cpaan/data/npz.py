"""Feature files as NumPy archives without pickles.

An archive holds `features` (n × D), `labels` (n, indices into `classes`), `classes` (names) and, where some rows are
held out for testing, `is_test` (n, bool). Files with `X` and `y` instead, or with class names as labels and no
`classes`, are read as well. Features of a quarter of a gigabyte and more that are not compressed stay in the file and
are read as they are needed; the file must then stay as it is.

Arrays in NumPy's format, alone (.npy) or in archives (.npz), read without pickles and without trust.

What the header of an array claims is held against the bytes that follow it before memory is taken.

Arrays inside NumPy archives, mapped where they lie.

An archive is a zip file of .npy files. One that is stored as it is, neither compressed nor encrypted, is a plain
array at some place of the archive. Archives may come from anywhere, so every size and place that is read from one is
held against the length of the file before it is used; checksums are not computed.
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
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.folders import replacing
from cpaan.data.untrusted import reading, require_file, require_plausible
from cpaan.errors import InputError

MAGIC = b"\x93NUMPY"
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]

_ENCRYPTED = 1
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = "biufcUSMmV"
# Of an array without any values, which takes no bytes whatever its other sides.
_LONGEST_EMPTY = 2**20
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_header(file: IO[bytes], size: int, path: Path, name: str = "it") -> Header:
    """Read the header of an array, and leave the file where its values begin.

    Parameters
    ----------
    file : binary file
        At the beginning of the array.
    size : int
        Bytes of the array, its header included.
    path : path
        The file that it lies in.
    name : str
        What messages call the array.

    Returns
    -------
    shape : tuple of int
    fortran_order : bool
    dtype : numpy.dtype

    Raises
    ------
    InputError
        Where the array holds Python objects, or its shape does not take as many bytes as there are.

    Examples
    --------
    >>> from io import BytesIO
    >>> file = BytesIO()
    >>> np.save(file, np.eye(2))
    >>> size = file.tell()
    >>> _ = file.seek(0)
    >>> read_header(file, size, Path("trees.npy"))
    ((2, 2), False, dtype('float64'))
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


def read_array_file(path: Path) -> npt.NDArray[Any]:
    """Read a .npy file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/new.npy", np.eye(2))
    ...     read_array_file(Path(folder) / "new.npy").shape
    (2, 2)
    """
    require_file(path, ".npy")
    with reading(path), path.open("rb") as file:
        read_header(file, os.path.getsize(path), path)
        file.seek(0)
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def read_archive(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Read some arrays of an archive; those that are not there are left out.

    Parameters
    ----------
    path : path
        The archive.
    names : iterable of str
        Which arrays.

    Returns
    -------
    dict of str to ndarray

    Raises
    ------
    InputError
        Where the archive is damaged, or made to do harm.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/trees.npz", X=np.eye(2), y=[0, 1])
    ...     sorted(read_archive(Path(folder) / "trees.npz", ["X", "classes"]))
    ['X']
    """
    require_file(path, ".npz")
    with reading(path), zipfile.ZipFile(path) as archive:
        known = {name: archive.NameToInfo.get(f"{name}.npy") for name in names}
        members = {name: member for name, member in known.items() if member is not None}
        require_plausible(path, sum(member.file_size for member in members.values()))
        return {name: _read_member(archive, member, path) for name, member in members.items()}


def is_stored(member: zipfile.ZipInfo) -> bool:
    """Tell whether a member lies in its archive as it is, neither compressed nor encrypted."""
    return member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _ENCRYPTED


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


_LOCAL_HEADER = struct.Struct("<4s22xHH")
_MAGIC = b"PK\x03\x04"


def map_member(path: Path, name: str, smallest: int) -> npt.NDArray[Any] | None:
    """Map an array of an archive for reading, if that can be done.

    Parameters
    ----------
    path : path
        The archive.
    name : str
        The array's name.
    smallest : int
        Arrays of fewer bytes are not mapped.

    Returns
    -------
    ndarray or None
        None where there is no such array, or it is compressed, encrypted, small, or not of floating-point rows.

    Raises
    ------
    InputError
        Where the archive contradicts itself.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trees.npz"
    ...     np.savez(path, features=np.eye(2))
    ...     print(map_member(path, "features", smallest=0))
    [[1. 0.]
     [0. 1.]]
    """
    with reading(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        member = archive.NameToInfo.get(f"{name}.npy")
        if member is None or member.file_size < smallest or not is_stored(member):
            return None
        begin = _begin(file, member)
        file.seek(begin)
        shape, fortran_order, dtype = read_header(file, member.file_size, path, name)
        if dtype.kind != "f" or fortran_order or not all(shape):
            return None
        return np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape)


def _begin(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Find where the content of a member begins, and make sure that all of it is there."""
    length = file.seek(0, 2)
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile(f"{member.filename} begins beyond the end of the file")
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    begin = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if magic != _MAGIC or member.compress_size != member.file_size or begin + member.file_size > length:
        raise zipfile.BadZipFile(f"{member.filename} is not where the archive says that it is")
    return int(begin)


_SMALLEST_MAPPED = 2**28
_MAGIC_OF_NPZ = b"PK\x03\x04"
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
            magic = file.read(len(_MAGIC_OF_NPZ))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if magic != _MAGIC_OF_NPZ:
        raise InputError(f"{path} is no NumPy archive (.npz); write one with cpaan.data.write_features")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is a truncated archive; copy or write it again")
