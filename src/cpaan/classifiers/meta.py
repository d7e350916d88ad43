"""What all meta-trained classifiers share: `meta_fit` on base classes, then `fit` on the examples at hand."""

from collections.abc import Hashable
from typing import Any, TypeVar

import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator, base_classes
from cpaan.threads import of_covariance, threads_for

MetaClassifierT = TypeVar("MetaClassifierT", bound="MetaClassifier")


class MetaClassifier(ScoreClassifier, SavedEstimator):
    """Classifier that learns from base classes how to learn a class from a few examples.

    `meta_fit` learns from base classes, once; `fit` then takes the examples at hand, of novel classes alone or of
    novel and base classes, and can be called again and again. Where `meta_fit` was not called, `fit` meta-trains
    on what it is given, each time.

    `save` keeps what was learned from base classes and nothing of the examples at hand: what `load` gives wants `fit`
    before it predicts. One that was never given to `meta_fit` is saved with what `fit` meta-trained it on, and once
    loaded keeps that: its `fit` does not meta-train anew.

    A subclass writes `_meta_learn`, `_adapt`, `_score`, `_tensors` and `_restore`.

    Attributes
    ----------
    base_classes_ : tuple
        Names of the classes that it was meta-trained on.
    classes_ : ndarray of shape (n_classes,)
        The labels given to `fit`, sorted.
    n_features_in_ : int
        Number of features.
    """

    base_classes_: tuple[Hashable, ...]
    meta_dimension_: int
    meta_fitted_: bool

    def _meta_learn(self, base: FeatureSet) -> None:
        """Learn from base classes."""
        raise NotImplementedError

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        """Take the examples at hand; `targets` are indices into `classes_`."""
        raise NotImplementedError

    def meta_fit(self: MetaClassifierT, X_base: Any, y_base: Any) -> MetaClassifierT:
        """Learn from base classes how to learn a class from a few examples.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
            Examples of base classes.
        y_base : sequence of n labels
            Their classes, numbers or strings, as `fit` takes them. Classes of the same name in `fit` are the same
            classes. Other hashable names, such as tuples, are fine here, but no class in `fit` can then be one of them.

        Returns
        -------
        MetaClassifier
            Itself.
        """
        self._learn(FeatureSet(X_base, y_base))
        self.meta_fitted_ = True
        return self

    def fit(self: MetaClassifierT, X: Any, y: Any) -> MetaClassifierT:
        """Take the examples at hand.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples.
        y : array-like of shape (n,)
            Their labels.

        Returns
        -------
        MetaClassifier
            Itself.
        """
        features, targets, _ = self._read_training_data(X, y, None)
        if not getattr(self, "meta_fitted_", False):
            self._learn(FeatureSet(features, self.classes_[targets]))
        if self.n_features_in_ != self.meta_dimension_:
            raise InputError(
                f"features have {self.n_features_in_} dimensions, and those of meta_fit had {self.meta_dimension_}; "
                "both must come from the same representation"
            )
        with threads_for(of_covariance(*features.shape)):
            self._adapt(features, targets)
        return self

    def _learn(self, base: FeatureSet) -> None:
        with threads_for(of_covariance(len(base), base.dimension)):
            self._meta_learn(base)
        self.base_classes_, self.meta_dimension_ = base.classes, base.dimension

    def save(self, folder: Any) -> None:
        """Write what was learned from base classes to a folder, as `model.safetensors` and `config.json`.

        The examples given to `fit` are not kept, though where `meta_fit` was not called what was learned from them is.
        """
        check_is_fitted(self, "base_classes_")
        super().save(folder)

    def _base_classes(self) -> tuple[Hashable, ...]:
        return self.base_classes_

    def _details(self) -> dict[str, Any]:
        return {"dimension": self.meta_dimension_}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self.base_classes_ = base_classes(config)
        self.meta_dimension_ = as_whole_number(config["dimension"], "dimension", 1)
        self.meta_fitted_ = True

    def _score(self, X: FloatArray) -> FloatArray:
        raise NotImplementedError
