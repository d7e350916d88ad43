"""The one data object: features with labels and class names, checked once and never changed after."""

import difflib
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import (
    FeatureArray,
    as_features,
    as_labels,
    container_of,
    describe_rows,
    label_array,
    tensor_to_numpy,
)
from cpaan.data.memory_map import RowReader, is_mapped
from cpaan.errors import InputError
from cpaan.extras import import_extra

if TYPE_CHECKING:
    import torch


IndexArray: TypeAlias = npt.NDArray[np.int64]

_NAMES_SHOWN = 5
_FINGERPRINT_DIGITS = 16
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class FeatureSet:
    """Features of labelled examples, read-only and valid.

    Parameters
    ----------
    features : array, tensor, data frame or nested list of shape (n, D)
        float16, float32 and float64 are kept; integers become float32.
    labels : array, tensor, series or sequence of length n
        Class names of any hashable type; or, if `classes` is given, integer indices into it.
    classes : iterable of hashable, optional
        Distinct class names. By default they are taken from `labels`: sorted, or in the order of their first
        appearance if they cannot be sorted.

    Attributes
    ----------
    features : ndarray of shape (n, D)
        Read-only. A writeable array is copied; a memory map that was opened for reading stays one.
    labels : ndarray of shape (n,), int64
        Read-only indices into `classes`.
    classes : tuple of hashable
        Class names; each has at least one example.

    Examples
    --------
    >>> trees = FeatureSet([[0.1, 0.2], [0.9, 0.8], [0.2, 0.1]], ["oak", "elm", "oak"])
    >>> trees
    FeatureSet(3 examples of 2 classes, 2 features, float64)
    >>> trees.classes, trees.labels.tolist()
    (('elm', 'oak'), [1, 0, 1])
    >>> trees.select(["oak"]).features
    array([[0.1, 0.2],
           [0.2, 0.1]])
    """

    features: FeatureArray
    labels: IndexArray
    classes: tuple[Hashable, ...]

    # Written out, because it accepts more than it keeps.
    def __init__(self, features: Any, labels: Any, classes: Iterable[Hashable] | None = None) -> None:
        matrix = as_features(features, "features", keep_half=True)
        if classes is None:
            names, indices = _factorise(as_labels(labels, len(matrix), "labels"))
        else:
            names = as_classes(classes)
            indices = _as_indices(labels, len(matrix), len(names))
        object.__setattr__(self, "features", _frozen(matrix))
        object.__setattr__(self, "labels", _frozen(indices))
        object.__setattr__(self, "classes", names)
        empty = [name for name, count in zip(names, self.counts, strict=True) if count == 0]
        if empty:
            raise InputError(f"no examples of {show_names(empty)}; remove them from classes")

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        size = f"{len(self)} examples of {self.n_classes} classes, {self.dimension} features"
        return f"FeatureSet({size}, {self.features.dtype})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureSet):
            return NotImplemented
        return (
            self.classes == other.classes
            and self.features.dtype == other.features.dtype
            and np.array_equal(self.labels, other.labels)
            and np.array_equal(self.features, other.features)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because arrays are writeable after unpickling.
        return FeatureSet, (self.features, self.labels, self.classes)

    # A set is compared by its values, like the arrays that it holds, and so has no hash.
    __hash__ = None  # type: ignore[assignment]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return int(self.features.shape[1])

    @property
    def counts(self) -> IndexArray:
        """Number of examples of each class, in the order of `classes`."""
        return np.bincount(self.labels, minlength=len(self.classes))

    @property
    def names(self) -> npt.NDArray[Any]:
        """Class name of each example: what an estimator takes as y."""
        return label_array(self.classes)[self.labels]

    def index_of(self, name: Hashable) -> int:
        """Give the index of a class in `classes`."""
        if name not in self.classes:
            raise_unknown([name], self.classes)
        return self.classes.index(name)

    def select(self, classes: Iterable[Hashable]) -> "FeatureSet":
        """Keep some classes only.

        Parameters
        ----------
        classes : iterable of hashable
            Names of the classes to keep, in the order that they shall have.

        Returns
        -------
        FeatureSet
            Their examples, in the order that they have here.
        """
        names = as_classes(classes)
        unknown = [name for name in names if name not in set(self.classes)]
        if unknown:
            raise_unknown(unknown, self.classes)
        position = {name: index for index, name in enumerate(names)}
        new_index = np.array([position.get(name, -1) for name in self.classes], dtype=np.int64)
        labels = new_index[self.labels]
        rows = np.flatnonzero(labels >= 0)
        return FeatureSet(_rows_of(self.features, rows), _read_only(labels[rows]), names)

    def take(self, rows: npt.ArrayLike) -> "FeatureSet":
        """Keep some examples only, and the classes that occur among them.

        Parameters
        ----------
        rows : array of int or of bool
            Row numbers in any order, or a mask with one entry for each example.
        """
        chosen = np.asarray(rows)
        if chosen.dtype == bool and chosen.shape == (len(self),):
            chosen = np.flatnonzero(chosen)
        if chosen.size == 0:
            raise InputError("no rows are taken; a set needs at least one example")
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise InputError(f"rows must be row numbers or a mask of {len(self)} bool, one for each example")
        if chosen.min() < 0 or chosen.max() >= len(self):
            raise InputError(f"rows must be from 0 to {len(self) - 1}")
        labels = self.labels[chosen]
        present, indices = np.unique(labels, return_inverse=True)
        classes = tuple(self.classes[index] for index in present)
        return FeatureSet(_rows_of(self.features, chosen), _read_only(indices), classes)

    def of_class(self, name: Hashable) -> FeatureArray:
        """Copy the features of one class."""
        features: FeatureArray = self.features[self.labels == self.index_of(name)]
        return features

    def concatenate(self, other: "FeatureSet") -> "FeatureSet":
        """Append the examples of another set of the same dimension; classes of the same name are the same class."""
        if other.dimension != self.dimension:
            raise InputError(f"features have {self.dimension} and {other.dimension} columns; they must agree")
        classes = tuple(dict.fromkeys(self.classes + other.classes))
        position = {name: index for index, name in enumerate(classes)}
        others = np.array([position[name] for name in other.classes], dtype=np.int64)[other.labels]
        features = np.concatenate([self.features, other.features])
        return FeatureSet(_read_only(features), _read_only(np.concatenate([self.labels, others])), classes)

    def fingerprint(self) -> str:
        """Hash features, labels and classes, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        self.update_digest(digest)
        return digest.hexdigest()[:_FINGERPRINT_DIGITS]

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Add features, labels and classes to a hash, in blocks: features may lie in a file larger than memory."""
        digest.update(f"{self.features.dtype} {self.features.shape} {self.classes!r}".encode())
        digest.update(np.ascontiguousarray(self.labels).data)
        for _, block in RowReader(self.features).blocks():
            digest.update(np.ascontiguousarray(block).data)

    def to_numpy(self) -> tuple[FeatureArray, npt.NDArray[Any]]:
        """Give X, read-only, and y for an estimator: y has numbers or strings, or objects for names of other types."""
        return self.features, self.names

    def to_torch(self, device: "torch.device | str | None" = None) -> "tuple[torch.Tensor, torch.Tensor]":
        """Copy features and labels to tensors on a device, by default the CPU."""
        torch = import_module("torch")
        features = torch.tensor(self.features, device=device)
        return features, torch.tensor(self.labels, device=device)

    def to_frame(self, label: str = "label") -> Any:
        """Make a pandas data frame with columns feature_0, feature_1, … and the class names in a column `label`."""
        pandas = import_extra("pandas", "a data frame")
        columns = [f"feature_{column}" for column in range(self.dimension)]
        if label in columns:
            raise InputError(f"label {label!r} is the name of a feature column; choose another name")
        frame = pandas.DataFrame(np.array(self.features), columns=columns)
        frame[label] = self.names
        return frame

    @classmethod
    def from_frame(cls, frame: Any, label: str = "label") -> "FeatureSet":
        """Read a data frame of pandas or polars; every column but `label` is a feature."""
        container = container_of(frame)
        if container not in ("pandas", "polars"):
            raise InputError(f"a {type(frame).__name__} is not a data frame; give one of pandas or polars")
        columns = list(frame.columns)
        if label not in columns:
            raise_unknown([label], columns, noun="column")
        features = frame.drop(columns=label) if container == "pandas" else frame.drop(label)
        return cls(features, frame[label])


def _read_only(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Mark an array that nobody else holds, so that it is not copied again."""
    array.flags.writeable = False
    return array


def _rows_of(features: FeatureArray, rows: npt.NDArray[np.integer[Any]]) -> FeatureArray:
    """Copy rows; consecutive rows of a memory map stay in the file."""
    if is_mapped(features) and len(rows) and (np.diff(rows) == 1).all():
        return features[rows[0] : rows[-1] + 1]
    return _read_only(features[rows])


def _frozen(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    return _read_only(array.copy()) if array.flags.writeable else array


# Class names, and indices into them


def show_names(names: Sequence[Hashable]) -> str:
    """List class names for a message, cut short after five: "'a', 'b', 'c', 'd', 'e' and 2 more"."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def raise_unknown(unknown: Sequence[Hashable], known: Sequence[Hashable], noun: str = "class") -> NoReturn:
    """Refuse unknown names, and offer known ones that are similar.

    >>> raise_unknown(["oka"], ["oak", "elm"])
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: unknown class 'oka'; did you mean 'oak'?
    """
    by_text = {str(name): name for name in known}
    close = [by_text[text] for text in difflib.get_close_matches(str(unknown[0]), by_text, n=_NAMES_SHOWN)]
    hint = f"did you mean {show_names(close)}?" if close else f"known: {show_names(known)}"
    raise InputError(f"unknown {noun} {show_names(unknown)}; {hint}")


def as_classes(classes: Iterable[Hashable], name: str = "classes") -> tuple[Hashable, ...]:
    """Read class names, which must be distinct."""
    names = as_labels(classes, name=name)
    if not names:
        raise InputError(f"{name} is empty; give at least one class")
    twice = [label for label, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{name} has {show_names(twice)} more than once; class names must be distinct")
    return tuple(names)


def _factorise(labels: Sequence[Hashable]) -> tuple[tuple[Hashable, ...], IndexArray]:
    """Find the distinct class names, sorted if they have an order, and the index of each label among them."""
    distinct: list[Any] = list(dict.fromkeys(labels))
    try:
        distinct.sort()
    except TypeError:
        distinct = list(dict.fromkeys(labels))  # sort may have left them in disorder
    position = {name: index for index, name in enumerate(distinct)}
    return tuple(distinct), np.array([position[label] for label in labels], dtype=np.int64)


def _as_indices(labels: Any, length: int, n_classes: int) -> IndexArray:
    """Read labels that are indices into the classes."""
    indices = tensor_to_numpy(labels, "labels") if container_of(labels) == "torch" else np.asarray(labels)
    if indices.shape != (length,):
        raise InputError(f"labels has shape {indices.shape} for {length} examples; give one for each example")
    if indices.dtype.kind not in "iu":
        raise InputError(
            f"labels are {indices.dtype}, but must be integer indices into classes if classes is given; "
            "to give class names, leave classes out"
        )
    wrong = np.flatnonzero((indices < 0) | (indices >= n_classes))
    if len(wrong):
        raise InputError(f"labels must be from 0 to {n_classes - 1}; they are not in {describe_rows(wrong)}")
    return indices.astype(np.int64, copy=False)
