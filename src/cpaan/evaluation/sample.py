"""A small sample of what a run saw and made, from which its figures are drawn.

`sample/real.npz` has real examples, shots and examples of the nearest base classes of a few novel classes;
`sample/METHOD.npz` has what a method made of the same shots and, where it has one, its neighbourhood α. Both are NumPy
archives without pickles, of at most about a megabyte each however large the bank is.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpaan.data.folders import replacing
from cpaan.data.npz import read_archive
from cpaan.data.untrusted import plain_name, reading
from cpaan.errors import InputError

Features = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
Names = tuple[str, ...]
Part = TypeVar("Part", "RealSample", "MadeSample")

SAMPLE = "sample"
REAL = "real"
_MATRIX = 2
# What half precision holds with three digits.
_HALF_RANGE = (1e-2, 6e4)


@dataclass(frozen=True, eq=False)
class RealSample:
    """Real examples of a few novel classes and of the base classes nearest to them.

    Attributes
    ----------
    classes, base_classes : names of the novel and of the base classes that are shown
    shots_per_class : K, of the smallest cells
    real, shots, base : features of test examples, of the shots of the first trial, and of base classes
    real_labels, shot_labels, base_labels : indices into `classes` and `base_classes`
    real_places : for each real example, its place among the test examples of its class
    real_counts : for each novel class, how many test examples it has
    nearest : for each novel class, indices of base classes, the nearest prototype first
    distances : and how far that is from the prototype of its shots
    """

    classes: Names
    base_classes: Names
    shots_per_class: int
    real: Features
    real_labels: Indices
    real_places: Indices
    real_counts: Indices
    shots: Features
    shot_labels: Indices
    base: Features
    base_labels: Indices
    nearest: Indices
    distances: Features

    def __post_init__(self) -> None:
        _require(type(self.shots_per_class) is int and self.shots_per_class > 0, "shots_per_class")
        n, n_base, dimension = len(self.classes), len(self.base_classes), self.real.shape[-1]
        for name, labels, most in (("real", self.real_labels, n), ("shots", self.shot_labels, n)):
            _require_rows(name, getattr(self, name), labels, most, dimension)
        _require_rows("base", self.base, self.base_labels, n_base, dimension)
        _require(self.real_places.shape == self.real_labels.shape, "real_places")
        _require(self.real_counts.shape == (n,), "real_counts")
        _require(self.nearest.ndim == _MATRIX and len(self.nearest) == n, "nearest")
        _require(self.distances.shape == self.nearest.shape, "distances")
        _require(bool(((self.nearest >= 0) & (self.nearest < n_base)).all()), "nearest")


@dataclass(frozen=True, eq=False)
class MadeSample:
    """What one method made of the shots of a sample.

    Attributes
    ----------
    made, made_labels : features, and indices into the classes of the sample
    alpha : similarity of novel classes (rows) to base classes (columns); without rows where the method has none
    alpha_novel, alpha_base : names of its rows and of its columns
    """

    made: Features
    made_labels: Indices
    alpha: Features
    alpha_novel: Names
    alpha_base: Names

    def __post_init__(self) -> None:
        _require(self.made.ndim == _MATRIX and self.made_labels.shape == (len(self.made),), "made")
        _require(bool((self.made_labels >= 0).all()), "made_labels")
        _require(self.alpha.shape == (len(self.alpha_novel), len(self.alpha_base)), "alpha")


@dataclass(frozen=True, eq=False)
class Sample:
    """The sample of a run: what is real, and what each method made of it."""

    real: RealSample
    made: dict[str, MadeSample]


def write_part(folder: Path, name: str, part: RealSample | MadeSample) -> None:
    """Write one file of a sample, whole or not at all."""
    (folder / SAMPLE).mkdir(exist_ok=True)
    arrays = {field.name: _stored(getattr(part, field.name)) for field in fields(part)}
    with replacing(part_path(folder, name)) as temporary, temporary.open("xb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def part_path(folder: Path, name: str) -> Path:
    """Say where a run keeps the real part of its sample, or that of a method."""
    return folder / SAMPLE / f"{plain_name(name, folder)}.npz"


def read_sample(folder: Path, methods: tuple[str, ...]) -> Sample | None:
    """Read the sample of a run; None where it has none, as runs of older versions.

    Parameters
    ----------
    folder : of the run
    methods : of the run, in the order wanted; those without a sample are left out
    """
    if not part_path(folder, REAL).exists():
        return None
    real = _read_part(part_path(folder, REAL), RealSample)
    found = [method for method in methods if part_path(folder, method).exists()]
    made = {method: _read_part(part_path(folder, method), MadeSample) for method in found}
    for method, part in made.items():
        fits = not len(part.made) or part.made_labels.max() < len(real.classes)
        if not fits or part.made.shape[1] != real.real.shape[1]:
            raise InputError(f"{part_path(folder, method)} is of another run than {REAL}.npz beside it")
    return Sample(real, made)


def _read_part(path: Path, kind: type[Part]) -> Part:
    names = [field.name for field in fields(kind)]
    with reading(path, "is damaged; remove it, and the report is made without it"):
        arrays = read_archive(path, names)
        return kind(**{name: _restored(arrays[name], name) for name in names})


def _stored(value: Any) -> NDArray[Any]:
    if isinstance(value, tuple):
        return np.array(value, dtype=np.str_)
    array = np.asarray(value)
    if array.dtype.kind != "f" or not array.size:
        return array
    largest = float(np.abs(array).max())
    # In half precision, where that is enough: what is drawn has three digits at most.
    return array.astype(np.float16 if _HALF_RANGE[0] < largest < _HALF_RANGE[1] else np.float32)


def _restored(array: NDArray[Any], name: str) -> Any:
    if array.dtype.kind == "U":
        _require(array.ndim == 1, name)
        return tuple(array.tolist())
    if array.dtype.kind in "biu":
        return array.astype(np.int64) if array.ndim else int(array)
    _require(array.dtype.kind == "f" and array.ndim > 0 and bool(np.isfinite(array).all()), "features not finite, or")
    return array.astype(np.float32)


def _require_rows(name: str, rows: Features, labels: Indices, n_classes: int, dimension: int) -> None:
    _require(rows.ndim == _MATRIX and rows.shape[1] == dimension and labels.shape == (len(rows),), name)
    _require(bool(((labels >= 0) & (labels < n_classes)).all()), f"labels of {name}")


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"{name} does not fit the rest")
