"""Write the features of all images of an index to a file; an interrupted extraction resumes."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.data.folders import require_writable_file, write_atomically
from cpaan.data.hdf5 import write_hdf5
from cpaan.data.npz import read_header
from cpaan.data.untrusted import read_json, reading
from cpaan.errors import InputError
from cpaan.representations.encoders import Encoder
from cpaan.representations.images import ImageIndex
from cpaan.representations.loading import ImageLoader

SECONDS_BETWEEN_NOTES = 10.0
_MATRIX = 2  # dimensions
_ARCHIVES, _HDF5 = (".npz",), (".h5", ".hdf5")
_DAMAGED = "is damaged; remove it to start over"


@dataclass(frozen=True)
class Extracted:
    """What an extraction wrote."""

    n_images: int
    n_classes: int
    dimension: int
    skipped: dict[str, str]  # images that were left out, and why


def extract_features(
    index: ImageIndex,
    encoder: Encoder,
    output: Path,
    *,
    batch_size: int = 256,
    workers: int = 0,
    on_bad: str = "refuse",
    dtype: str = "float32",
    tell: Callable[[int, int], None] | None = None,
) -> Extracted:
    """Write the features of all images to a file.

    Until all are computed, features are kept in a folder next to the output, from which the same call resumes.

    Parameters
    ----------
    index : ImageIndex
        The images.
    encoder : Encoder
        Made by `cpaan.representations.encoders.make_encoder`.
    output : Path
        ``.npz`` with training and test rows, or ``.h5`` in the benchmark's format with one of both.
    batch_size, workers : int
        Images per batch, and processes that decode them.
    on_bad : {"refuse", "skip"}
        What to do with unreadable images.
    dtype : {"float32", "float16"}
        Type of the features in the file.
    tell : callable, optional
        Called with the number of images done and the total.
    """
    require_output(index, output, dtype)
    loader = ImageLoader(index, encoder.resize, workers=workers, on_bad=on_bad, decode=encoder.decode)
    table = _Table(output, {"images": index.fingerprint, "encoder": encoder.identity, "dtype": dtype}, len(index))
    loader.skipped.update(table.skipped)
    try:
        _fill(table, loader, encoder, batch_size, tell)
    finally:
        table.note(loader.skipped)
        loader.close()
    kept = np.array([entry.name not in loader.skipped for entry in index.entries])
    loader.require_readable(int(kept.sum()))
    _write(output, index, table.features(), kept)
    shutil.rmtree(table.folder, ignore_errors=True)
    n_classes, dimension = len(np.unique(index.labels[kept])), table.features().shape[1]
    return Extracted(int(kept.sum()), n_classes, dimension, dict(loader.skipped))


def require_output(index: ImageIndex, output: Path, dtype: str) -> None:
    """Refuse an output that cannot hold the features, before anything is computed."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype must be float32 or float16, got {dtype!r}")
    if output.suffix not in (*_ARCHIVES, *_HDF5):
        raise InputError(f"{output} must end in .npz or .h5, which determines the kind of file")
    if output.suffix in _HDF5 and index.is_test.any() and not index.is_test.all():
        raise InputError(
            f"{output}: an HDF5 file of the benchmark holds training or test rows; write each to a separate file "
            "(--only train, --only test), or both to one .npz"
        )
    require_writable_file(output)


def _fill(
    table: "_Table", loader: ImageLoader, encoder: Encoder, batch_size: int, tell: Callable[[int, int], None] | None
) -> None:
    """Compute the missing rows, and note the progress every few seconds."""
    total = len(loader.index)
    noted = time.monotonic()
    for batch in loader.batches(np.arange(table.done, total), batch_size):
        if len(batch.rows):
            table.put(batch.rows.numpy(), encoder.encode(batch.pixels))
        table.done = min(table.done + batch_size, total)
        if time.monotonic() - noted >= SECONDS_BETWEEN_NOTES:
            table.note(loader.skipped)
            noted = time.monotonic()
        if tell is not None:
            tell(table.done, total)


def _write(output: Path, index: ImageIndex, features: npt.NDArray[Any], kept: npt.NDArray[np.bool_]) -> None:
    if not kept.all():
        features = features[kept]
    labels = index.labels[kept]
    if output.suffix in _HDF5:
        write_hdf5(output, features, labels)
        return
    present = np.unique(labels)
    names = [index.classes[label] for label in present]
    write_features(output, FeatureSet(features, np.searchsorted(present, labels), names), index.is_test[kept])


class _Table:
    """Features on disk while an extraction runs, and how far it got."""

    def __init__(self, output: Path, identity: dict[str, str], n_rows: int) -> None:
        self.folder = output.with_name(output.name + ".partial")
        self.identity, self.n_rows = identity, n_rows
        self.done, self.skipped = 0, dict[str, str]()
        self._table: npt.NDArray[Any] | None = None
        if (self.folder / "progress.json").exists():
            self._resume()

    def features(self) -> npt.NDArray[Any]:
        """Return all rows; those not yet computed, and of unreadable images, are zero."""
        if self._table is None:
            raise InputError("no features were computed")
        return self._table

    def put(self, rows: npt.NDArray[np.int64], features: npt.NDArray[np.float32]) -> None:
        """Store the features of some rows."""
        if self._table is None:
            self._table = self._create(features.shape[1])
        table = self._table
        if features.shape[1] != table.shape[1]:
            raise InputError(f"the backbone returned {table.shape[1]} features before and {features.shape[1]} now")
        if not np.isfinite(features).all():
            raise InputError("the backbone's features are not finite; check its weights and its input")
        with np.errstate(over="ignore"):
            table[rows] = features
        if not np.isfinite(table[rows]).all():
            raise InputError(
                f"features up to {np.abs(features).max():.3g} do not fit {table.dtype}; use --dtype float32"
            )

    def note(self, skipped: dict[str, str]) -> None:
        """Save the progress, from which another call resumes."""
        if self._table is None:
            return
        if isinstance(self._table, np.memmap):
            self._table.flush()
        state = {"plan": self.identity, "done": self.done, "skipped": skipped}
        write_atomically(self.folder / "progress.json", json.dumps(state).encode())

    def _create(self, dimension: int) -> npt.NDArray[Any]:
        path, shape = self.folder / "features.npy", (self.n_rows, dimension)
        try:
            self.folder.mkdir(exist_ok=True)
            table = np.lib.format.open_memmap(path, mode="w+", dtype=self.identity["dtype"], shape=shape)
            # Claim the space now: on a full disk, writing to a mapped file would kill the process.
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        return table

    def _resume(self) -> None:
        try:
            state = read_json(self.folder / "progress.json")
        except InputError as error:
            raise InputError(f"{self.folder} {_DAMAGED} ({error})") from error
        if not isinstance(state, dict) or state.keys() != {"plan", "done", "skipped"}:
            raise InputError(f"{self.folder} {_DAMAGED}")
        if state["plan"] != self.identity:
            raise InputError(
                f"{self.folder} belongs to another extraction (other images, backbone or type); finish that one, or "
                "remove the folder"
            )
        path = self.folder / "features.npy"
        with reading(self.folder, _DAMAGED):
            self.done, self.skipped = as_whole_number(state["done"], "done", 0), dict(state["skipped"])
            with path.open("rb") as file:
                # Mapping the file for writing would extend it to the size that its header claims.
                shape, _, dtype = read_header(file, path.stat().st_size, path)
            fits = len(shape) == _MATRIX and shape[0] == self.n_rows and dtype == self.identity["dtype"]
            if not fits or self.done > self.n_rows:
                raise InputError(f"{self.folder} {_DAMAGED}")
            self._table = np.load(path, mmap_mode="r+", allow_pickle=False)
