"""Arrays inside NumPy archives, mapped where they lie.

An archive is a zip file of .npy files. One that is stored as it is, neither compressed nor encrypted, is a plain
array at some place of the archive. Archives may come from anywhere, so every size and place that is read from one is
held against the length of the file before it is used; checksums are not computed.
"""

import math
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
    zipfile.BadZipFile, ValueError
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
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        member = archive.NameToInfo.get(f"{name}.npy")
        if member is None or member.file_size < smallest:
            return None
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
            return None
        begin = _begin(file, member)
        end = begin + member.file_size
        file.seek(begin)
        reader = _HEADER_READERS.get(np.lib.format.read_magic(file))
        if reader is None:
            return None
        shape, fortran_order, dtype = reader(file)
        if dtype.kind != "f" or fortran_order or not all(shape):
            return None
        offset = file.tell()
        # With Python's integers, which do not overflow, whatever shape the header claims.
        if offset + math.prod(shape) * dtype.itemsize != end:
            raise zipfile.BadZipFile(f"{name} has another size than its shape {shape} takes")
        return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


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
