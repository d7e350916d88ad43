"""A small sample of a run's features, from which reports draw their figures.

`sample/real.npz` has real examples and shots of a few novel classes, and examples of the nearest base classes;
`sample/METHOD.npz` has what a method generated from the same shots and its neighbourhood α, if it has one. Both are
NumPy archives without pickles, of at most about a megabyte each, however large the bank is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.named import CPAAN
from cpaan.classifiers.nearest_prototype import weighted_class_means
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.folders import replacing
from cpaan.data.npz import read_archive
from cpaan.data.untrusted import plain_name, reading
from cpaan.errors import InputError
from cpaan.evaluation.cell import cell_seed
from cpaan.evaluation.fitted_methods import augment
from cpaan.evaluation.run_folder import SAMPLE
from cpaan.threads import limited_threads

Features = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
Names = tuple[str, ...]
Part = TypeVar("Part", "RealSample", "MadeSample")

REAL = "real"
MOST_CLASSES = 8  # that a figure can distinguish
MOST_EXAMPLES, FEWEST_EXAMPLES = 40, 4
MOST_NUMBERS = 2**18  # of a file: half a megabyte in half precision
NEAREST, BASE_EXAMPLES = 3, 20
ALPHA_ROWS, ALPHA_LENDERS = 40, 3
_MATRIX = 2
_HALF_RANGE = (1e-2, 6e4)  # half precision keeps three digits of these


@dataclass(frozen=True, eq=False)
class RealSample:
    """Real examples of a few novel classes and of the base classes nearest to them."""

    classes: Names  # novel
    base_classes: Names
    shots_per_class: int  # the smallest K of the run
    real: Features  # test examples
    real_labels: Indices  # into `classes`
    real_places: Indices  # of each, among the test examples of its class
    real_counts: Indices  # test examples of each novel class
    shots: Features  # of the first trial
    shot_labels: Indices
    base: Features
    base_labels: Indices  # into `base_classes`
    nearest: Indices  # base classes of each novel class, nearest first
    distances: Features  # from the mean of its shots to theirs

    def __post_init__(self) -> None:
        _require(type(self.shots_per_class) is int and self.shots_per_class > 0, "shots_per_class")
        n, n_base, dimension = len(self.classes), len(self.base_classes), self.real.shape[-1]
        for name, labels, most in (
            ("real", self.real_labels, n),
            ("shots", self.shot_labels, n),
            ("base", self.base_labels, n_base),
        ):
            rows = getattr(self, name)
            _require(rows.ndim == _MATRIX and rows.shape[1] == dimension and labels.shape == (len(rows),), name)
            _require(_within(labels, most), f"labels of {name}")
        _require(self.real_places.shape == self.real_labels.shape, "real_places")
        _require(self.real_counts.shape == (n,), "real_counts")
        _require(self.nearest.ndim == _MATRIX and len(self.nearest) == n and _within(self.nearest, n_base), "nearest")
        _require(self.distances.shape == self.nearest.shape, "distances")


@dataclass(frozen=True, eq=False)
class MadeSample:
    """Examples that one method generated from the shots of a sample."""

    made: Features
    made_labels: Indices  # into the classes of the sample
    alpha: Features  # similarity of novel (rows) to base classes (columns); empty for methods without one
    alpha_novel: Names
    alpha_base: Names

    def __post_init__(self) -> None:
        _require(self.made.ndim == _MATRIX and self.made_labels.shape == (len(self.made),), "made")
        _require(bool((self.made_labels >= 0).all()), "made_labels")
        _require(self.alpha.shape == (len(self.alpha_novel), len(self.alpha_base)), "alpha")


@dataclass(frozen=True, eq=False)
class Sample:
    """The sample of a run: real examples, and generated ones by method."""

    real: RealSample
    made: dict[str, MadeSample]


def read_sample(folder: Path, methods: tuple[str, ...]) -> Sample | None:
    """Read the sample of a run, for those of the methods that have one; None for runs of older versions."""
    if not part_path(folder, REAL).exists():
        return None
    real = _read_part(part_path(folder, REAL), RealSample)
    found = [method for method in methods if part_path(folder, method).exists()]
    made = {method: _read_part(part_path(folder, method), MadeSample) for method in found}
    for method, part in made.items():
        if not _within(part.made_labels, len(real.classes)) or part.made.shape[1] != real.real.shape[1]:
            raise InputError(f"{part_path(folder, method)} is of another run than {REAL}.npz; remove it")
    return Sample(real, made)


def write_part(folder: Path, name: str, part: RealSample | MadeSample) -> None:
    """Write one file of a sample, whole or not at all."""
    (folder / SAMPLE).mkdir(exist_ok=True)
    arrays = {field.name: _stored(getattr(part, field.name)) for field in fields(part)}
    with replacing(part_path(folder, name)) as temporary, temporary.open("xb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def part_path(folder: Path, name: str) -> Path:
    """Locate the sample of real examples, or that of a method."""
    return folder / SAMPLE / f"{plain_name(name, folder)}.npz"


def without_sample(folder: Path, methods: Iterable[str]) -> list[str]:
    """List the methods that have no sample yet."""
    return [name for name in methods if not part_path(folder, name).exists()]


def draw_sample(
    folder: Path, data: BenchmarkData, augmenters: Mapping[str, BaseAugmenter | None], k: int, seed: int
) -> None:
    """Write the missing parts of a sample, from K shots of the first trial."""
    with limited_threads(1):
        shots = data.shots(0, k)
        if not part_path(folder, REAL).exists():
            write_part(folder, REAL, real_sample(data, shots, k))
        for name in without_sample(folder, augmenters):
            augmenter = augmenters[name]
            if augmenter is not None:
                write_part(folder, name, _made_sample(augmenter, shots, cell_seed(seed, 0, k), data.base_classes))


def real_sample(data: BenchmarkData, shots: FeatureSet, k: int) -> RealSample:
    """Take a few real examples of some novel classes and of their nearest base classes."""
    places = _evenly(shots.n_classes, MOST_CLASSES)
    number = _per_class(len(places), shots.dimension, MOST_EXAMPLES)
    real_rows, real_labels, real_places = _some_of_each(data.novel_test.labels, places, number)
    known = [np.flatnonzero(shots.labels == place) for place in places]
    between = cdist(_means(shots)[places], _means(data.base_train))
    nearest = np.argsort(between, axis=1, kind="stable")[:, :NEAREST]
    shown, inverse = np.unique(nearest, return_inverse=True)
    base_number = _per_class(len(shown), shots.dimension, BASE_EXAMPLES)
    base_rows, base_labels, _ = _some_of_each(data.base_train.labels, shown, base_number)
    return RealSample(
        classes=tuple(str(data.novel_classes[place]) for place in places),
        base_classes=tuple(str(data.base_classes[place]) for place in shown),
        shots_per_class=k,
        real=data.novel_test.features[real_rows],
        real_labels=real_labels,
        real_places=real_places,
        real_counts=data.novel_test.counts[places],
        shots=shots.features[np.concatenate(known)],
        shot_labels=np.repeat(np.arange(len(places)), [len(rows) for rows in known]),
        base=data.base_train.features[base_rows],
        base_labels=base_labels,
        nearest=inverse.reshape(nearest.shape),
        distances=np.take_along_axis(between, nearest, axis=1),
    )


def _made_sample(augmenter: BaseAugmenter, shots: FeatureSet, seed: int, base_classes: tuple[Any, ...]) -> MadeSample:
    places = _evenly(shots.n_classes, MOST_CLASSES)
    known = shots.select([shots.classes[place] for place in places])
    number = _per_class(len(places), shots.dimension, MOST_EXAMPLES)
    made, labels = augment(augmenter, known, seed, per_class=number)
    if not isinstance(augmenter, CPAAN):
        return MadeSample(made, labels, np.empty((0, 0), np.float32), (), ())
    rows = _evenly(shots.n_classes, ALPHA_ROWS)
    alpha = _alpha(augmenter, shots)[rows]
    lenders = np.unique(np.argsort(-alpha, axis=1, kind="stable")[:, :ALPHA_LENDERS])
    novel, base = (str(shots.classes[row]) for row in rows), (str(base_classes[column]) for column in lenders)
    return MadeSample(made, labels, alpha[:, lenders], tuple(novel), tuple(base))


def _alpha(augmenter: CPAAN, shots: FeatureSet) -> Features:
    """Compute α as the model does: at its estimate of the class centres."""
    features, labels = shots.to_torch()
    centers = augmenter.center_.estimate(augmenter.units_.apply(features.double()), labels, shots.n_classes)
    base = augmenter.model_.base.prototypes
    alpha = augmenter.model_.neighborhood.similarity(centers.float().to(base.device), base)
    found: Features = alpha.float().cpu().numpy()
    return found


def _evenly(number: int, most: int) -> Indices:
    """Choose at most so many indices, evenly spread."""
    return np.unique(np.linspace(0, number - 1, most).round().astype(np.int64))


def _per_class(n_classes: int, dimension: int, most: int) -> int:
    return int(np.clip(MOST_NUMBERS // (n_classes * dimension), FEWEST_EXAMPLES, most))


def _some_of_each(labels: Indices, classes: Indices, number: int) -> tuple[Indices, Indices, Indices]:
    """Choose rows of some classes, evenly spread; with the index of their class, and their place in it."""
    members = [np.flatnonzero(labels == label) for label in classes]
    places = [_evenly(len(rows), number) for rows in members]
    rows = np.concatenate([rows[chosen] for rows, chosen in zip(members, places, strict=True)])
    return rows, np.repeat(np.arange(len(classes)), [len(chosen) for chosen in places]), np.concatenate(places)


def _means(examples: FeatureSet) -> NDArray[np.float64]:
    return weighted_class_means(examples.features, examples.labels, np.ones(len(examples)), examples.n_classes)


def _read_part(path: Path, kind: type[Part]) -> Part:
    names = [field.name for field in fields(kind)]
    with reading(path, "is damaged; remove it, and reports leave its figures out"):
        arrays = read_archive(path, names)
        return kind(**{name: _restored(arrays[name], name) for name in names})


def _stored(value: Any) -> NDArray[Any]:
    """Turn a field into an array; in half precision if that keeps the three digits that a figure shows."""
    if isinstance(value, tuple):
        return np.array(value, dtype=np.str_)
    array = np.asarray(value)
    if array.dtype.kind != "f" or not array.size:
        return array
    largest = float(np.abs(array).max())
    return array.astype(np.float16 if _HALF_RANGE[0] < largest < _HALF_RANGE[1] else np.float32)


def _restored(array: NDArray[Any], name: str) -> Any:
    if array.dtype.kind == "U":
        _require(array.ndim == 1, name)
        return tuple(array.tolist())
    if array.dtype.kind in "biu":
        return array.astype(np.int64) if array.ndim else int(array)
    _require(array.dtype.kind == "f" and array.ndim > 0 and bool(np.isfinite(array).all()), "features not finite, or")
    return array.astype(np.float32)


def _within(indices: Indices, number: int) -> bool:
    return bool(((indices >= 0) & (indices < number)).all())


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"{name} does not fit the rest")
