"""Arrays in NumPy's format, alone (.npy) or in archives (.npz), read without pickles and without trust.

What the header of an array claims is held against the bytes that follow it before memory is taken.
"""

import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cpaan.data.limits import reading, require_file, require_plausible
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
