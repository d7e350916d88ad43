"""What all augmenters share: the contract, its checks, and how many examples are wanted."""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from cpaan.data.class_names import show_names
from cpaan.data.containers import as_features, restore_features, restore_labels
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator, base_classes

AugmenterT = TypeVar("AugmenterT", bound="BaseAugmenter")


class BaseAugmenter(SavedEstimator):
    """Makes examples of novel classes after `fit` on base classes.

    A subclass writes `_learn`, which sets fitted attributes, and `_make`. Where all that it learned are arrays, it
    names them in `_learned` and can then be saved; others write `_tensors` and `_restore`.

    Attributes
    ----------
    classes_ : tuple
        Names of the base classes.
    average_size_ : int
        Average number of examples of a base class, to which novel classes are filled up.
    n_features_in_ : int
        Number of features.
    """

    _learned: ClassVar[tuple[str, ...]] = ()

    per_class: int | None
    classes_: tuple[Hashable, ...]
    average_size_: int
    n_features_in_: int

    def _learn(self, base: FeatureSet) -> None:
        """Learn from base classes and keep what `_make` needs."""
        raise NotImplementedError

    def _learn_for(self, base: FeatureSet, novel: FeatureSet) -> None:
        """Learn from base classes where the novel classes are known already; most do not look at them."""
        self._learn(base)

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        """Make `wanted[c]` examples of each novel class c, in the user's units: (wanted.sum(), D), class by class."""
        raise NotImplementedError

    def fit(self: AugmenterT, X_base: Any, y_base: Any) -> AugmenterT:
        """Learn from base classes alone.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
            Examples of base classes. An array that can be written to is copied; a memory map opened for reading is not.
        y_base : sequence of n labels
            Their classes, of any hashable type.
        """
        base = FeatureSet(X_base, y_base)
        self._learn(base)
        return self._remember(base)

    def augment(self, X_novel: Any, y_novel: Any, *, per_class: int | None = None) -> tuple[Any, Any]:
        """Make synthetic examples of novel classes.

        Parameters
        ----------
        X_novel : array, tensor or data frame of shape (n, D)
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
        wanted = self._wanted(novel, self.per_class if per_class is None else per_class)
        made = self._make(novel, wanted)
        names = [novel.classes[label] for label in np.repeat(np.arange(novel.n_classes), wanted)]
        return restore_features(made, X_novel), restore_labels(names, y_novel)

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Fill up the small classes of one long-tailed set.

        A class is small if it has less than a quarter of the examples that the class of a random example has
        on average. The others are the base classes.

        Returns
        -------
        X_resampled, y_resampled
            What was given, followed by the synthetic examples, of the types that went in.
        """
        everything = FeatureSet(X, y)
        small = small_classes(everything.counts)
        if not small.any():
            return X, y
        base = everything.select([c for c, s in zip(everything.classes, small, strict=True) if not s])
        novel = everything.select([c for c, s in zip(everything.classes, small, strict=True) if s])
        self._learn_for(base, novel)
        self._remember(base)
        wanted = self._wanted(novel, self.per_class)
        stacked = np.concatenate([as_features(X), self._make(novel, wanted)])
        made_labels = np.repeat(np.arange(novel.n_classes), wanted)
        names = [*everything.names, *(novel.classes[label] for label in made_labels)]
        return restore_features(stacked, X), restore_labels(names, y)

    def _remember(self: AugmenterT, base: FeatureSet) -> AugmenterT:
        self.classes_, self.n_features_in_ = base.classes, base.dimension
        self.average_size_ = round(float(base.counts.mean()))
        return self

    def _wanted(self, novel: FeatureSet, per_class: int | None) -> NDArray[np.int64]:
        """Give the number of synthetic examples of each novel class."""
        if per_class is None:
            return np.maximum(self.average_size_ - novel.counts, 0)
        if not isinstance(per_class, (int, np.integer)) or isinstance(per_class, bool) or per_class < 1:
            raise InputError(f"per_class must be a whole number of at least 1, not {per_class!r}")
        return np.full(novel.n_classes, per_class)

    def _base_classes(self) -> tuple[Hashable, ...]:
        return self.classes_

    def _details(self) -> dict[str, Any]:
        return {"average_size": self.average_size_, "dimension": self.n_features_in_}

    def _tensors(self) -> dict[str, Tensor]:
        import torch

        return {name: torch.as_tensor(np.asarray(getattr(self, name))) for name in self._learned}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in self._learned:
            setattr(self, name, tensors[name].numpy())
        self.classes_, self.n_features_in_ = base_classes(config), config["dimension"]
        self.average_size_ = config["average_size"]


def small_classes(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which classes of a long-tailed set are to be filled up.

    A class is small below a quarter of Σ n² / Σ n, the average over *examples* of the size of their class, which many
    tiny classes do not drag down.

    >>> small_classes(np.array([100, 90, 80, 5, 1]))
    array([False, False, False,  True,  True])
    >>> small_classes(np.array([40, 60]))
    array([False, False])
    """
    threshold = float((counts**2).sum() / counts.sum() / 4)
    return np.asarray(counts < threshold)


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
