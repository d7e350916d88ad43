"""Which format a feature file has."""

import os
from pathlib import Path
from typing import Literal, TypeAlias

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
