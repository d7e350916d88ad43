"""Features without labels: what a classifier is asked about."""

import os
from pathlib import Path

import numpy as np

from cpaan.data.archive import read_features
from cpaan.data.array_file import MAGIC, read_array_file
from cpaan.data.containers import FeatureArray, as_features
from cpaan.data.file_format import format_of
from cpaan.data.hdf5 import Hdf5Features
from cpaan.data.limits import require_file
from cpaan.data.npz import read_npz_features


def read_rows(path: str | os.PathLike[str]) -> FeatureArray:
    """Read the features of a file; labels may be missing.

    Parameters
    ----------
    path : str or path
        An archive with `features` or `X` (.npz), one array (.npy), an HDF5 feature file, or safetensors or parquet,
        which must have labels. Of all of them every row is read, those for testing included.

    Returns
    -------
    ndarray of shape (n, D)
        The features, all finite.

    Raises
    ------
    InputError
        Where the file is missing, damaged or holds no features.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", X=np.eye(2, dtype=np.float32))
    ...     read_rows(f"{folder}/new.npz")
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    path = Path(path)
    require_file(path)
    if _is_array(path):
        return as_features(read_array_file(path), str(path), keep_half=True)
    found = format_of(path)
    if found == "npz":
        return as_features(read_npz_features(path), str(path), keep_half=True)
    if found == "hdf5":
        file = Hdf5Features(path)
        return as_features(file.read(np.arange(file.n)), str(path), keep_half=True)
    return read_features(path).features


def _is_array(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False  # whoever reads an archive says what is wrong
