"""Features of all images of an index, into a file; an extraction that was interrupted goes on."""

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
_MATRIX = 2
_ARCHIVES, _HDF5 = (".npz",), (".h5", ".hdf5")


@dataclass(frozen=True)
class Extracted:
    """What an extraction wrote.

    Attributes
    ----------
    n_images, n_classes, dimension : how many of each there are
    skipped : images that were left out, and why
    """

    n_images: int
    n_classes: int
    dimension: int
    skipped: dict[str, str]


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
    """Write the features of all images to a NumPy archive or, of one part, to HDF5.

    Until all is done, features lie in a folder beside the output, from which the same call goes on.

    Parameters
    ----------
    index : the images
    encoder : turns them into features, see `cpaan.representations.encoders`
    output : ``.npz`` with training and test rows, or ``.h5`` in the benchmark's format with rows of one part alone
    batch_size, workers : images at a time, and processes that decode
    on_bad : ``"refuse"`` or ``"skip"`` images that cannot be read
    dtype : ``"float32"`` or ``"float16"``
    tell : called with the number of images done and that of all
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
    table.remove()
    return Extracted(int(kept.sum()), len(np.unique(index.labels[kept])), table.dimension, dict(loader.skipped))


def _fill(
    table: "_Table",
    loader: ImageLoader,
    encoder: Encoder,
    batch_size: int,
    tell: Callable[[int, int], None] | None,
) -> None:
    """Compute what is still missing, and note how far it is every few seconds."""
    total = len(loader.index)
    noted = time.monotonic()
    for batch in loader.batches(np.arange(table.done, total), batch_size):
        if len(batch):
            table.put(batch.rows.numpy(), encoder.encode(batch.pixels))
        table.done = min(table.done + batch_size, total)
        if time.monotonic() - noted >= SECONDS_BETWEEN_NOTES:
            table.note(loader.skipped)
            noted = time.monotonic()
        if tell is not None:
            tell(table.done, total)


def require_output(index: ImageIndex, output: Path, dtype: str) -> None:
    """Refuse an output that could not hold the features, before anything is computed."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype must be float32 or float16, not {dtype!r}")
    if output.suffix not in (*_ARCHIVES, *_HDF5):
        raise InputError(f"{output} must end in .npz or .h5, which say what kind of file to write")
    if output.suffix in _HDF5 and index.is_test.any() and not index.is_test.all():
        raise InputError(
            f"{output}: an HDF5 file of the benchmark holds training or test rows; write each to a file of its own "
            "(--only train, --only test), or both to one .npz"
        )
    require_writable_file(output)


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
    """Features on disk while they are being computed, and how far that is."""

    def __init__(self, output: Path, plan: dict[str, str], n_rows: int) -> None:
        self.folder = output.with_name(output.name + ".partial")
        self.plan, self.n_rows = plan, n_rows
        self.done, self.skipped = 0, dict[str, str]()
        self.table: npt.NDArray[Any] | None = None
        state = self._state()
        if state is None:
            return
        if not isinstance(state, dict) or state.keys() != {"plan", "done", "skipped"}:
            raise InputError(f"{self.folder} is damaged; remove it to begin anew")
        if state["plan"] != plan:
            raise InputError(
                f"{self.folder} is of another extraction (other images, backbone or type); finish that one, or remove "
                "the folder"
            )
        path = self.folder / "features.npy"
        with reading(self.folder, "is damaged; remove it to begin anew"):
            self.done, self.skipped = as_whole_number(state["done"], "done", 0), dict(state["skipped"])
            with path.open("rb") as file:
                # A map for writing would make the file as long as its header says.
                shape, _, dtype = read_header(file, path.stat().st_size, path)
            if len(shape) != _MATRIX or shape[0] != n_rows or self.done > n_rows or dtype != plan["dtype"]:
                raise InputError(f"{self.folder} is damaged; remove it to begin anew")
            self.table = np.load(path, mmap_mode="r+", allow_pickle=False)

    @property
    def dimension(self) -> int:
        return int(self.features().shape[1])

    def features(self) -> npt.NDArray[Any]:
        if self.table is None:
            raise InputError("no features were computed")
        return self.table

    def put(self, rows: npt.NDArray[np.int64], features: npt.NDArray[np.float32]) -> None:
        if self.table is None:
            self._make(features.shape[1])
        table = self.features()
        if features.shape[1] != table.shape[1]:
            raise InputError(f"the backbone gave {table.shape[1]} features before and {features.shape[1]} now")
        if not np.isfinite(features).all():
            raise InputError("the backbone gives features that are not finite; check its weights and its input")
        with np.errstate(over="ignore"):
            table[rows] = features
        if not np.isfinite(table[rows]).all():
            raise InputError(
                f"features up to {np.abs(features).max():.3g} do not fit {table.dtype}; use --dtype float32"
            )

    def note(self, skipped: dict[str, str]) -> None:
        """Note how far it is, so that it can go on from there."""
        if self.table is None:
            return
        if isinstance(self.table, np.memmap):
            self.table.flush()
        state = {"plan": self.plan, "done": self.done, "skipped": skipped}
        write_atomically(self.folder / "progress.json", json.dumps(state).encode())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self, dimension: int) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            path = self.folder / "features.npy"
            self.table = np.lib.format.open_memmap(
                path, mode="w+", dtype=self.plan["dtype"], shape=(self.n_rows, dimension)
            )
            # Claim the room now: where the disk is full, writing to a mapped file would end the process.
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def _state(self) -> Any:
        path = self.folder / "progress.json"
        try:
            return read_json(path) if path.exists() else None
        except InputError as error:
            raise InputError(f"{self.folder} cannot be read ({error}); remove it to begin anew") from error
