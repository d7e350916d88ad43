"""Feature files of the ImageNet low-shot benchmark, in HDF5, read without ever holding a whole one.

A file has the datasets `all_feats` (n × D), `all_labels` (n, class indices) and `count` (one number: how many of the
rows are in use; the others are padding). Rows are read in blocks of some megabytes, so memory holds the requested rows
and one block.
"""

import math
import os
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, as_features, describe_rows, require_finite
from cpaan.data.feature_set import FeatureSet, IndexArray, as_classes, raise_unknown
from cpaan.data.folders import replacing
from cpaan.data.untrusted import reading, require_file, require_plausible
from cpaan.errors import InputError

_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP, _LZF = 1, 2, 3, 4, 32000
# A filter beyond these is looked for among the plugins of the machine, and would be run.
_KNOWN_FILTERS = {_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP, _LZF}
_LARGEST_CHUNK_BYTES = 2**30
# Deflate makes a thousand bytes of one, and the library unpacks a chunk before it looks at how much that is.
_PACKED_UNCHECKED = 2**18
_MATRIX = 2
_WRONG = "is not an HDF5 file, is damaged or cannot be read"
_MOST_CLASS_INDEX = 2**31
_CHUNK_CACHE_BYTES = 2**23
_BLOCK_BYTES = 2**23
_LARGEST_BLOCK_BYTES = 2**26
# Two requested rows with less than this between them are cheaper to read in one go than one after the other.
_GAP_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class _Header:
    labels: IndexArray
    dimension: int
    dtype: np.dtype[Any]
    gap_rows: int
    block_rows: int


class Hdf5Features:
    """A feature file in HDF5: labels in memory, features on disk until they are requested.

    The file is opened and checked on first use, and is not kept open.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_hdf5(f"{folder}/train.hdf5", [[0.5], [1.5], [2.5]], labels=[7, 3, 7])
    ...     train = Hdf5Features(f"{folder}/train.hdf5")
    ...     train.classes, train.n, train.select([7]).features.tolist()
    ((3, 7), 3, [[0.5], [2.5]])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Hdf5Features({str(self.path)!r})"

    @property
    def labels(self) -> IndexArray:
        """Class index of each row in use, read-only."""
        return self._header.labels

    @property
    def n(self) -> int:
        """Number of rows in use."""
        return len(self._header.labels)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self._header.dimension

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """Class indices that occur, sorted."""
        return tuple(np.unique(self.labels).tolist())

    def read(self, rows: npt.ArrayLike) -> FeatureArray:
        """Read the features of some rows, in any order, as float16 if the file has it, otherwise as float32.

        Values are not checked.
        """
        header = self._header
        wanted = _as_rows(rows, self.n)
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        features: FeatureArray = np.empty((len(wanted), header.dimension), dtype=header.dtype)
        with _opened(self.path) as file, np.errstate(over="ignore"):
            for start, stop in _blocks(ascending, header.gap_rows, header.block_rows):
                inside = ascending[start:stop]
                block = file["all_feats"][int(inside[0]) : int(inside[-1]) + 1]
                features[order[start:stop]] = block[inside - inside[0]]
        return features

    def take(self, rows: npt.ArrayLike, classes: Iterable[Hashable]) -> FeatureSet:
        """Read the examples of some rows; `classes` are the class indices that occur in them, in the order to keep."""
        names = self._as_known(classes)
        wanted = _as_rows(rows, self.n)
        order = np.argsort(names)
        place = np.searchsorted(names, self.labels[wanted], sorter=order)
        indices = order[np.minimum(place, len(names) - 1)]
        strange = np.flatnonzero(names[indices] != self.labels[wanted])
        if len(strange):
            raise InputError(f"{describe_rows(wanted[strange])} of {self.path} are of other classes; add these classes")
        features = self.read(wanted)
        features.flags.writeable = False  # so that the set need not copy it
        try:
            return FeatureSet(features, indices, names.tolist())
        except InputError as error:
            wrong = wanted[~np.isfinite(features).all(axis=1)]
            if not len(wrong):
                raise InputError(f"{self.path}: {error}") from error
            cure = "extract these features again"
            raise InputError(f"{self.path}: all_feats is NaN or infinite in {describe_rows(wrong)}; {cure}") from error

    def select(self, classes: Iterable[Hashable]) -> FeatureSet:
        """Read the examples of some classes, in the order of the file; class names are the class indices."""
        names = self._as_known(classes)
        return self.take(np.flatnonzero(np.isin(self.labels, names)), names.tolist())

    def _as_known(self, classes: Iterable[Hashable]) -> IndexArray:
        names = as_classes(classes)
        known = set(self.classes)
        unknown = [name for name in names if type(name) is not int or name not in known]
        if unknown:
            raise_unknown(unknown, self.classes)
        return np.array(names, dtype=np.int64)

    @cached_property
    def _header(self) -> _Header:
        with _opened(self.path) as file:
            features, labels, count = (_dataset(file, name, self.path) for name in ("all_feats", "all_labels", "count"))
            _require_shapes(features, labels)
            used = _as_count(count, len(features))
            dimension = int(features.shape[1])
            row_bytes = dimension * features.dtype.itemsize
            require_plausible(self.path, used * (row_bytes + labels.dtype.itemsize))
            # A compressed chunk is unpacked whole: better once for all its rows than for each of them.
            chunk_rows = min(features.chunks[0], _LARGEST_BLOCK_BYTES // row_bytes) if features.chunks else 1
            return _Header(
                labels=_as_class_indices(labels[:used]),
                dimension=dimension,
                dtype=np.dtype(np.float16 if features.dtype.itemsize == np.float16().itemsize else np.float32),
                gap_rows=max(_GAP_BYTES // row_bytes, chunk_rows, 1),
                block_rows=max(_BLOCK_BYTES // row_bytes, chunk_rows, 1),
            )


def write_hdf5(path: str | os.PathLike[str], features: Any, labels: npt.ArrayLike) -> None:
    """Write features and class indices in the benchmark's format, whole or not at all.

    float16 is kept, all else is written as float32.
    """
    matrix = as_features(features, "features", keep_half=True)
    if matrix.dtype == np.float64:
        with np.errstate(over="ignore"):
            matrix = matrix.astype(np.float32)
        require_finite(matrix, "features as float32 values")
    indices = np.asarray(labels)
    if indices.shape != (len(matrix),):
        raise InputError(f"labels has shape {indices.shape} for {len(matrix)} examples; give one for each example")
    if indices.dtype.kind not in "iu" or indices.max() > np.iinfo(np.int32).max or indices.min() < 0:
        raise InputError(f"labels are {indices.dtype} and not all class indices; give whole numbers from 0")
    count = np.array([len(matrix)], dtype=np.int32)
    with replacing(Path(path)) as temporary, import_module("h5py").File(temporary, "x") as file:
        file.create_dataset("all_feats", data=matrix)
        file.create_dataset("all_labels", data=indices.astype(np.int32, copy=False))
        file.create_dataset("count", data=count)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require_file(path, ".hdf5")
    h5py = import_module("h5py")
    with reading(path, _WRONG), h5py.File(path, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES) as file:
        yield file


def _dataset(file: Any, name: str, path: Path) -> Any:
    # A group has no shape.
    if name not in file or not hasattr(file[name], "shape"):
        found = ", ".join(file) or "none"
        raise InputError(f"there is no dataset called {name}; found: {found}")
    _require_harmless(file[name], name, path)
    return file[name]


def _require_shapes(features: Any, labels: Any) -> None:
    if len(features.shape) != _MATRIX or features.shape[1] == 0 or features.dtype.kind != "f":
        raise InputError(f"all_feats is {features.dtype} of shape {features.shape}; it must be float of n × D")
    if labels.shape != features.shape[:1]:
        rows = features.shape[0]
        raise InputError(
            f"all_labels has shape {labels.shape} for {rows} rows of all_feats; there must be one for each"
        )


def _as_count(count: Any, rows: int) -> int:
    if count.size != 1:  # it might claim to be any number of them, and is not read
        raise InputError(f"count is {count.size or 0} numbers; it must be one, the rows in use")
    value = np.asarray(count[()]).item()
    if not 1 <= value <= rows or value % 1:
        raise InputError(f"count is {value}; it must be one whole number from 1 to {rows}, the rows of all_feats")
    return int(value)


def _as_class_indices(labels: npt.NDArray[Any]) -> IndexArray:
    whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and bool((np.floor(labels) == labels).all()))
    if not whole or labels.min() < 0 or labels.max() > _MOST_CLASS_INDEX:
        raise InputError(f"all_labels is {labels.dtype} and not all class indices; give whole numbers from 0")
    indices: IndexArray = labels.astype(np.int64)
    indices.flags.writeable = False
    return indices


def _as_rows(rows: npt.ArrayLike, n: int) -> IndexArray:
    wanted = np.asarray(rows)
    if wanted.size == 0:
        raise InputError("no rows are taken; give at least one row number")
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= n:
        raise InputError(f"rows must be row numbers from 0 to {n - 1}")
    return wanted.astype(np.int64, copy=False)


def _blocks(ascending: IndexArray, gap_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Split rows into spans without wide gaps, each no wider than a block."""
    after_gap = np.concatenate([[True], np.diff(ascending) > gap_rows])
    first_of_run = ascending[after_gap][np.cumsum(after_gap) - 1]
    piece = (ascending - first_of_run) // block_rows
    starts = np.flatnonzero(after_gap | np.concatenate([[False], np.diff(piece) != 0]))
    yield from zip(starts.tolist(), [*starts[1:].tolist(), len(ascending)], strict=True)


# Datasets that are safe to read: in the file itself, packed as known, no larger than they say


def _require_harmless(dataset: Any, name: str, path: Path) -> None:
    """Refuse a dataset that would be read from another file, by a foreign filter, or in chunks that fill the memory."""
    if not os.path.samefile(dataset.file.filename, path):
        raise InputError(f"{name} is a link to another file; write its values into this one")
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{name} takes its values from other files; write them into this one")
    if dataset.dtype.kind not in "iuf":
        raise InputError(f"{name} is {dataset.dtype}; it must be numbers")
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(place)[0] for place in range(settings.get_nfilters())]
    foreign = sorted(set(filters) - _KNOWN_FILTERS)
    if foreign or max(Counter(filters).values(), default=0) > 1:
        raise InputError(
            f"{name} is packed by filter {', '.join(map(str, foreign or filters))}, or by one of them twice; "
            "write it again with gzip, lzf or without compression"
        )
    if dataset.chunks is not None:
        _require_chunks(dataset, filters, name, path)


def _require_chunks(dataset: Any, filters: list[int], name: str, path: Path) -> None:
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if size > _LARGEST_CHUNK_BYTES:
        raise InputError(f"{name} has chunks of {size / 2**20:.0f} MiB; write it again with smaller ones")
    require_plausible(path, size)
    for place in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(place)
        if chunk.size > 2 * size + 2**12:
            raise InputError(f"a chunk of {name} is damaged: it has {chunk.size} bytes and should unpack to {size}")
        if _DEFLATE in filters and chunk.size > _PACKED_UNCHECKED:
            _require_unpacks(dataset, chunk, filters, size, name)


def _require_unpacks(dataset: Any, chunk: Any, filters: list[int], size: int, name: str) -> None:
    """Unpack a chunk on trial, no further than its size."""
    skipped, packed = dataset.id.read_direct_chunk(chunk.chunk_offset)
    before = filters[filters.index(_DEFLATE) + 1 :]
    if skipped or any(each != _FLETCHER32 for each in before):
        raise InputError(f"{name} is packed in an unusual way; write it again with gzip or without compression")
    unpacking = zlib.decompressobj()
    unpacking.decompress(packed, size + 64)
    if unpacking.unconsumed_tail:
        raise InputError(f"{name} is damaged or made to do harm: a chunk unpacks to more than its {size} bytes")
