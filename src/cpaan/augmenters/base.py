"""What all augmenters share: the contract, its checks, and how many examples are wanted.

Labels as imbalanced-learn's samplers take them: a sequence, one column, or one column for each class.

How many examples each class of one imbalanced set is to be given: imbalanced-learn's meanings, and one more.
"""

from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, TypeVar

import numpy as np
from imblearn.over_sampling.base import BaseOverSampler
from imblearn.utils import check_sampling_strategy, check_target_type
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import (
    append_features,
    append_labels,
    as_labels,
    container_of,
    label_array,
    restore_features,
    restore_labels,
)
from cpaan.data.feature_set import FeatureSet, raise_unknown, show_names
from cpaan.data.untrusted import require_arrays
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator, base_classes
from cpaan.threads import of_covariance, threads_for
from cpaan.training.progress import check_count

_MATRIX = 2


def read_targets(y: Any) -> Any:
    """Give labels of which there is one for each example.

    >>> read_targets(np.array([[0, 1, 0], [1, 0, 0]]))
    array([1, 0])
    """
    try:
        if _one_against_all(y):
            return check_target_type(y)
        if label_array(as_labels(y)).dtype.kind == "f":
            # Numbers such as 0.25 are measurements, not classes.
            check_classification_targets(label_array(as_labels(y)))
    except ValueError as error:
        raise InputError(f"y cannot be used as classes: {error}") from error
    return y


def append_targets(y: Any, names: Sequence[Any]) -> Any:
    """Put the classes of further examples after labels that `read_targets` has read, in the form that they have.

    >>> append_targets(np.array([[0, 1, 0], [1, 0, 0]]), [2])
    array([[0, 1, 0],
           [1, 0, 0],
           [0, 0, 1]])
    >>> append_targets(["oak", "elm"], ["elm"])
    ['oak', 'elm', 'elm']
    """
    if _one_against_all(y):
        return np.concatenate([y, np.eye(y.shape[1], dtype=y.dtype)[np.asarray(names, dtype=np.intp)]])
    return append_labels(y, names)


def _one_against_all(y: Any) -> bool:
    return isinstance(y, np.ndarray) and y.ndim == _MATRIX and y.shape[1] > 1


BASE_MEAN = "base_mean"
NAMED = ("auto", "minority", "not minority", "not majority", "all")


def small_classes(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which classes of a long-tailed set are too small to learn from.

    A class is small below a quarter of Σ n² / Σ n, the average over *examples* of the size of their class, which many
    tiny classes do not drag down.

    >>> small_classes(np.array([100, 90, 80, 5, 1]))
    array([False, False, False,  True,  True])
    >>> small_classes(np.array([40, 60]))
    array([False, False])
    """
    threshold = float((counts**2).sum() / counts.sum() / 4)
    return np.asarray(counts < threshold)


def balancing_numbers(strategy: Any, everything: FeatureSet) -> dict[Hashable, int]:
    """Give the number of examples to make of each class that imbalanced-learn's `sampling_strategy` names.

    >>> trees = FeatureSet(np.zeros((6, 1)), ["oak"] * 3 + ["elm"] * 2 + ["ash"])
    >>> balancing_numbers("auto", trees)
    {'ash': 2, 'elm': 1}
    >>> balancing_numbers({"ash": 2}, trees)
    {'ash': 1}
    """
    # By index, because class names may be of types that NumPy cannot sort, on which imbalanced-learn relies.
    asked = _by_index(strategy, everything)
    try:
        found = check_sampling_strategy(asked, everything.labels, "over-sampling")
    except ValueError as error:
        raise InputError(f"sampling_strategy cannot be {strategy!r} here: {error}") from error
    return {everything.classes[index]: int(number) for index, number in sorted(found.items())}


def _by_index(strategy: Any, everything: FeatureSet) -> Any:
    """Check the type of a strategy, and name classes in it by their index."""
    sizes = strategy(everything.names) if callable(strategy) else strategy
    if isinstance(sizes, Mapping):
        unknown = [name for name in sizes if name not in set(everything.classes)]
        if unknown:
            raise_unknown(unknown, everything.classes)
        return {everything.index_of(name): size for name, size in sizes.items()}
    number = isinstance(sizes, Real) and not isinstance(sizes, bool)
    if callable(strategy) or not (number or (isinstance(sizes, str) and sizes in NAMED)):
        named = ", ".join(repr(name) for name in (*NAMED, BASE_MEAN))
        raise InputError(
            f"sampling_strategy cannot be {strategy!r}; choose one of {named}, a ratio for two classes, a dict of "
            "sizes by class, or a function from labels to such a dict"
        )
    return sizes


# A model may come from anywhere, and say how many examples are made of a class.
_MOST_EXAMPLES = 10**7
AugmenterT = TypeVar("AugmenterT", bound="BaseAugmenter")


class BaseAugmenter(SavedEstimator, BaseOverSampler):
    """Makes examples of novel classes after `fit` on base classes; an over-sampler of imbalanced-learn.

    A subclass writes `_learn`, which sets fitted attributes, and `_make`. Where all that it learned are arrays, it
    names them in `_learned` and can then be saved; others write `_tensors` and `_restore`.

    Every augmenter has these constructor arguments beside its own.

    Parameters
    ----------
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes, or in `fit_resample` to the size that `sampling_strategy` wants.
    sampling_strategy : float, str, dict or callable
        For `fit_resample` alone: which classes to fill up, and to what size. As everywhere in imbalanced-learn, a
        float is the ratio of the smaller class to the larger where there are two; ``"minority"``, ``"not minority"``,
        ``"not majority"`` and ``"all"`` say which classes become as large as the largest, and ``"auto"`` is
        ``"not majority"``; a dict has the sizes wanted by class, and a function gives such a dict for the labels.
        ``"base_mean"`` fills the small classes up to the average size of the others and leaves those as they are.

    Attributes
    ----------
    classes_ : tuple
        Names of the base classes.
    average_size_ : int
        Average number of examples of a base class, to which novel classes are filled up.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray
        Column names, where a data frame with such was given.
    sampling_strategy_ : dict
        Number of examples that `fit_resample` made of each class that was to be filled up.
    """

    _learned: ClassVar[Mapping[str, str]] = {}

    per_class: int | None
    sampling_strategy: Any = "auto"
    classes_: tuple[Hashable, ...]
    average_size_: int
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    sampling_strategy_: dict[Hashable, int]

    def _learn(self, base: FeatureSet) -> None:
        """Learn from base classes and keep what `_make` needs."""
        raise NotImplementedError

    def _learn_for(self, base: FeatureSet, novel: FeatureSet) -> FeatureSet:
        """Learn where the novel classes are known already, and give the base classes that were learned from.

        Classes that are large and yet to be filled up are in both. Most augmenters do not look at novel classes.
        """
        self._learn(base)
        return base

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        """Make `wanted[c]` examples of each novel class c, in the user's units: (wanted.sum(), D), class by class."""
        raise NotImplementedError

    # Samplers of imbalanced-learn learn nothing of classes that are not in the set; here X and y are base classes.
    def fit(self: AugmenterT, X_base: Any, y_base: Any) -> AugmenterT:  # type: ignore[override]
        """Learn from base classes alone.

        Parameters
        ----------
        X_base : array, tensor, sparse matrix or data frame of shape (n, D)
            Examples of base classes. An array that can be written to is copied; a memory map opened for reading is not.
        y_base : sequence of n labels
            Their classes, of any hashable type.
        """
        base = FeatureSet(X_base, y_base)
        with threads_for(of_covariance(len(base), base.dimension)):
            self._learn(base)
        validate_data(self, X_base, skip_check_array=True)
        return self._remember(base)

    def augment(self, X_novel: Any, y_novel: Any, *, per_class: int | None = None) -> tuple[Any, Any]:
        """Make synthetic examples of novel classes.

        Parameters
        ----------
        X_novel : array, tensor, sparse matrix or data frame of shape (n, D)
            The few real examples.
        y_novel : sequence of n labels
            Their classes, of any hashable type, none of them a base class.
        per_class : int, optional
            Synthetic examples for each class; by default the constructor's `per_class`.

        Returns
        -------
        X_synthetic, y_synthetic
            Synthetic examples only, class after class, of the types that went in.
        """
        check_is_fitted(self)
        novel = FeatureSet(X_novel, y_novel)
        check_novel(novel, self.classes_, self.n_features_in_)
        if hasattr(self, "feature_names_in_") and container_of(X_novel) in ("pandas", "polars"):
            validate_data(self, X_novel, skip_check_array=True, reset=False)
        wanted = self._wanted(novel, self.per_class if per_class is None else per_class, self._filled_size())
        made = self._make_in_range(novel, wanted)
        return restore_features(made, X_novel), restore_labels(_names(novel, wanted), y_novel)

    # Imbalanced-learn's signature has further parameters, which no augmenter knows what to do with.
    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:  # type: ignore[override]
        """Fill up classes of one imbalanced set, those that `sampling_strategy` says.

        Base classes are the large ones: those that have at least a quarter of the examples that the class of a random
        example has on average. That is also what ``sampling_strategy="base_mean"`` leaves as it is. A large class that
        is to be filled up is learned from, too.

        Parameters
        ----------
        X : array, tensor, sparse matrix, data frame or list of shape (n, D)
            Examples of all classes.
        y : sequence of n labels, or ndarray of shape (n, C)
            Their classes; or zeros with a single one in each row, in the column of the class.

        Returns
        -------
        X_resampled, y_resampled
            What was given, unchanged, followed by the synthetic examples, of the types that went in.

        Examples
        --------
        >>> from cpaan import Smote
        >>> X, y = [[0.0], [1.0], [2.0], [5.0], [6.0]], ["oak", "oak", "oak", "elm", "elm"]
        >>> X_new, y_new = Smote(random_state=0).fit_resample(X, y)
        >>> X_new[:5] == X, 5 < X_new[5][0] < 6, y_new[5:]
        (True, True, ['elm'])
        """
        everything = FeatureSet(X, read_targets(y))
        # What was learned before does not go with this set, and where nothing is to be made nothing is learned anew.
        vars(self).pop("classes_", None)
        validate_data(self, X, skip_check_array=True)
        made, names = self._fill_up(everything)
        return append_features(X, made), append_targets(y, names)

    def _fit_resample(self, X: Any, y: Any, **params: Any) -> tuple[Any, Any]:
        """Resample arrays: a name that imbalanced-learn has for what its `fit_resample` leaves to subclasses."""
        return self.fit_resample(X, y, **params)

    def _fill_up(self, everything: FeatureSet) -> tuple[NDArray[np.floating], Sequence[Hashable]]:
        """Learn from the large classes and make what `sampling_strategy` asks for."""
        if everything.n_classes == 1:
            raise InputError(f"y has 1 class only, {everything.classes[0]!r}; there must be 2 to fill one up")
        small = small_classes(everything.counts)
        base = everything.select([name for name, tiny in zip(everything.classes, small, strict=True) if not tiny])
        self.sampling_strategy_ = self._numbers(everything, base)
        filled = [name for name, number in self.sampling_strategy_.items() if number]
        if not filled:
            return np.empty((0, everything.dimension)), []
        novel = everything.select(filled)
        wanted = np.array([self.sampling_strategy_[name] for name in filled])
        with threads_for(of_covariance(len(base), base.dimension)):
            self._remember(self._learn_for(base, novel))
        return self._make_in_range(novel, wanted), _names(novel, wanted)

    def _make_in_range(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        """Make examples, and refuse to give what the type that the features came in cannot hold."""
        with threads_for(of_covariance(int(wanted.sum()), novel.dimension)):
            made, dtype = self._make(novel, wanted), novel.features.dtype
        largest, limit = max(float(made.max(initial=0)), -float(made.min(initial=0))), float(np.finfo(dtype).max)
        if not largest <= limit:
            raise InputError(
                f"synthetic features go beyond {limit:.3g}, the largest number that {dtype} holds; give features of a "
                "wider type, such as float64, or in smaller units"
            )
        return made

    def _numbers(self, everything: FeatureSet, base: FeatureSet) -> dict[Hashable, int]:
        """Give the number of examples to make of each class that is to be filled up."""
        if isinstance(self.sampling_strategy, str) and self.sampling_strategy == BASE_MEAN:
            small = [name for name in everything.classes if name not in set(base.classes)]
            wanted = self._wanted(everything.select(small), None, average_size(base)).tolist() if small else []
            numbers = dict(zip(small, wanted, strict=True))
        else:
            numbers = balancing_numbers(self.sampling_strategy, everything)
        if self.per_class is None:
            return numbers
        check_count("per_class", self.per_class)
        return {name: self.per_class if number else 0 for name, number in numbers.items()}

    def _filled_size(self) -> int:
        """Give the size that novel classes are filled up to."""
        return self.average_size_

    def _remember(self: AugmenterT, base: FeatureSet) -> AugmenterT:
        self.classes_, self.n_features_in_ = base.classes, base.dimension
        self.average_size_ = average_size(base)
        return self

    def _wanted(self, novel: FeatureSet, per_class: int | None, average: int) -> NDArray[np.int64]:
        """Give the number of synthetic examples of each novel class."""
        if per_class is None:
            return np.maximum(average - novel.counts, 0)
        check_count("per_class", per_class)
        return np.full(novel.n_classes, per_class)

    def __sklearn_is_fitted__(self) -> bool:
        # A balanced set teaches `fit_resample` how many features there are and nothing else.
        return hasattr(self, "classes_")

    def _base_classes(self) -> tuple[Hashable, ...]:
        return self.classes_

    def _details(self) -> dict[str, Any]:
        return {"average_size": self.average_size_, "dimension": self.n_features_in_}

    def _tensors(self) -> dict[str, Tensor]:
        import torch

        return {name: torch.as_tensor(np.asarray(getattr(self, name))) for name in self._learned}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self.classes_, self.n_features_in_ = base_classes(config), as_whole_number(config["dimension"], "dimension", 1)
        self.average_size_ = as_whole_number(config["average_size"], "average_size", 0)
        for name in ("average_size_", "per_class", "fill_to"):
            number = getattr(self, name, None)
            if isinstance(number, int) and number > _MOST_EXAMPLES:
                raise InputError(f"{name} is {number}, more examples of a class than are ever made")
        require_arrays(tensors, self._learned, C=len(self.classes_), D=self.n_features_in_)
        for name in self._learned:
            setattr(self, name, tensors[name].numpy())
        self._check_learned()

    def _check_learned(self) -> None:
        """Refuse parameters, or values of what was learned, that are none; what was read may come from anywhere."""


def average_size(classes: FeatureSet) -> int:
    """Give the average number of examples of a class, rounded.

    >>> average_size(FeatureSet([[0.0], [1.0], [2.0]], ["oak", "oak", "elm"]))
    2
    """
    return round(float(classes.counts.mean()))


def _names(novel: FeatureSet, wanted: NDArray[np.int64]) -> list[Hashable]:
    """Give the class of each example that `_make` makes."""
    return [novel.classes[label] for label in np.repeat(np.arange(novel.n_classes), wanted)]


def check_novel(novel: FeatureSet, base_classes: Sequence[Hashable], dimension: int) -> None:
    """Refuse novel examples of another representation, or of classes that are base classes."""
    if novel.dimension != dimension:
        raise InputError(
            f"novel features have {novel.dimension} dimensions and base features {dimension}; both must come from "
            "the same representation"
        )
    known = set(base_classes)
    common = [name for name in novel.classes if name in known]
    if common:
        raise InputError(
            f"both base and novel: {show_names(common)}; give novel classes names of their own or leave them out"
        )
