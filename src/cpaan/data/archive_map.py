"""Arrays inside NumPy archives, mapped where they lie.

An archive is a zip file of .npy files. One that is stored as it is, neither compressed nor encrypted, is a plain
array at some place of the archive. Archives may come from anywhere, so every size and place that is read from one is
held against the length of the file before it is used; checksums are not computed.
"""

import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cpaan.data.array_file import is_stored, read_header
from cpaan.data.limits import reading

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
