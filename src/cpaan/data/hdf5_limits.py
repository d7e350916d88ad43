"""Datasets of HDF5 files that are safe to read: in the file itself, packed as known, no larger than they say."""

import math
import os
import zlib
from collections import Counter
from typing import Any

from cpaan.data.limits import require_plausible
from cpaan.errors import InputError

_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP, _LZF = 1, 2, 3, 4, 32000
# A filter beyond these is looked for among the plugins of the machine, and would be run.
_KNOWN_FILTERS = {_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP, _LZF}
_LARGEST_CHUNK_BYTES = 2**30
# Deflate makes a thousand bytes of one, and the library unpacks a chunk before it looks at how much that is.
_PACKED_UNCHECKED = 2**18


def require_harmless(dataset: Any, name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a dataset that would be read from another file, by a foreign filter, or in chunks that fill the memory.

    Parameters
    ----------
    dataset : h5py.Dataset
        What is to be read.
    name : str
        Its name in the file.
    path : str or path
        The file.

    Raises
    ------
    InputError
        Where it is refused.

    Examples
    --------
    >>> import h5py, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, h5py.File(f"{folder}/trees.h5", "w") as file:
    ...     file["labels"] = [1, 2]
    ...     require_harmless(file["labels"], "labels", file.filename)
    """
    if not os.path.samefile(dataset.file.filename, path):
        raise InputError(f"{path}: {name} is a link to another file; write its values into this one")
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name} takes its values from other files; write them into this one")
    if dataset.dtype.kind not in "iuf":
        raise InputError(f"{path}: {name} is {dataset.dtype}; it must be numbers")
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(place)[0] for place in range(settings.get_nfilters())]
    foreign = sorted(set(filters) - _KNOWN_FILTERS)
    if foreign or max(Counter(filters).values(), default=0) > 1:
        raise InputError(
            f"{path}: {name} is packed by filter {', '.join(map(str, foreign or filters))}, or by one of them twice; "
            "write it again with gzip, lzf or without compression"
        )
    if dataset.chunks is not None:
        _require_chunks(dataset, filters, name, path)


def _require_chunks(dataset: Any, filters: list[int], name: str, path: str | os.PathLike[str]) -> None:
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if size > _LARGEST_CHUNK_BYTES:
        raise InputError(f"{path}: {name} has chunks of {size / 2**20:.0f} MiB; write it again with smaller ones")
    require_plausible(path, size)
    for place in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(place)
        if chunk.size > 2 * size + 2**12:
            raise InputError(f"{path} is damaged: a chunk of {name} has {chunk.size} bytes and should unpack to {size}")
        if _DEFLATE in filters and chunk.size > _PACKED_UNCHECKED:
            _require_unpacks(dataset, chunk, filters, size, f"{path}: {name}")


def _require_unpacks(dataset: Any, chunk: Any, filters: list[int], size: int, where: str) -> None:
    """Unpack a chunk for a trial, no further than it may go."""
    skipped, packed = dataset.id.read_direct_chunk(chunk.chunk_offset)
    before = filters[filters.index(_DEFLATE) + 1 :]
    if skipped or any(each != _FLETCHER32 for each in before):
        raise InputError(f"{where} is packed in an unusual way; write it again with gzip or without compression")
    unpacking = zlib.decompressobj()
    unpacking.decompress(packed, size + 64)
    if unpacking.unconsumed_tail:
        raise InputError(f"{where} is damaged or made to do harm: a chunk unpacks to more than its {size} bytes")
