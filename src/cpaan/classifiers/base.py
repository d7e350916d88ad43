"""What all classifiers share: reading the data, and predictions that follow from one score per class."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from cpaan.data.containers import container_of, tensor_to_numpy
from cpaan.errors import InputError
from cpaan.training.progress import is_number

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntegerArray: TypeAlias = npt.NDArray[np.intp]

_SCORES = ("scores", "decision_function", "predict_proba")  # in this order


class ScoreClassifier(ClassifierMixin, BaseEstimator):
    """Classifier that scores each class and predicts the one with the highest score.

    A subclass implements `fit`, which begins with `_read_training_data`, and `_score`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    n_features_in_ : int
        Number of features.
    """

    classes_: npt.NDArray[Any]
    n_features_in_: int

    def _score(self, X: FloatArray) -> FloatArray:
        """Score validated examples, n × classes."""
        raise NotImplementedError

    def scores(self, X: Any) -> FloatArray:
        """Score every class for examples X (n × D): one column for each of `classes_`, even if there are only two."""
        return self._score(self._read_examples(X))

    def decision_function(self, X: Any) -> FloatArray:
        """Give the scores; for two classes, as in scikit-learn, the second minus the first, of shape (n,)."""
        scores = self.scores(X)
        two_classes = scores.shape[1] == 2  # noqa: PLR2004
        return scores[:, 1] - scores[:, 0] if two_classes else scores

    def predict_proba(self, X: Any) -> FloatArray:
        """Give the probability of each class, n × classes: the softmax of the scores."""
        probabilities: FloatArray = softmax(self.scores(X), copy=False)
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Give the label with the highest score; among equal scores, the first of `classes_`."""
        chosen = self.scores(X).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[chosen]
        return labels

    def _read_examples(self, X: Any) -> FloatArray:
        """Check examples to classify."""
        check_is_fitted(self)
        features: FloatArray = validate_data(self, _without_torch(X), dtype=np.float64, reset=False)
        return features

    def _read_training_data(
        self, X: Any, y: Any, sample_weight: Any, *, keep_single: bool = False
    ) -> tuple[npt.NDArray[Any], IntegerArray, FloatArray]:
        """Validate the arguments of `fit` and set `classes_`; give features, indices into `classes_` and weights.

        Examples of weight zero are dropped, with their class if it has no others: weighting equals repeating. Features
        are in double precision; `keep_single` leaves single precision as it is.
        """
        kept = [np.float64, np.float32] if keep_single else np.float64
        features, labels = validate_data(self, _without_torch(X), _without_torch(y), dtype=kept)
        check_classification_targets(labels)
        weights = _check_sample_weight(
            _without_torch(sample_weight), features, dtype=np.float64, ensure_non_negative=True
        )
        counts = weights > 0
        if not counts.any():  # scikit-learn raises this itself since 1.8
            raise InputError("sample_weight is zero for every example; give at least one a positive weight")
        if not counts.all():
            features, labels, weights = features[counts], labels[counts], weights[counts]
        self.classes_, targets = np.unique(labels, return_inverse=True)
        return features, targets, weights


def _without_torch(values: Any) -> Any:
    """Convert tensors to NumPy: scikit-learn cannot read those on a device or with a gradient."""
    return tensor_to_numpy(values) if container_of(values) == "torch" else values


def class_scores(classifier: Any, X: Any) -> npt.NDArray[Any]:
    """Score every class with any fitted classifier: what `predict` ranks by, n × classes in the order of `classes_`.

    The first that there is of `scores`, `decision_function` and `predict_proba`. Classifiers of scikit-learn choose by
    their decisions where they have any, which for `SVC(probability=True)` differ from its probabilities.

    Examples
    --------
    >>> from sklearn.linear_model import RidgeClassifier
    >>> binary = RidgeClassifier().fit([[-1.0], [1.0]], ["no", "yes"])
    >>> class_scores(binary, [[3.0]]).argmax(axis=1)
    array([1])
    """
    require_scores(classifier)
    source = next(name for name in _SCORES if hasattr(classifier, name))
    table = np.asarray(getattr(classifier, source)(X))
    if table.ndim == 1:  # of two classes, how far the second is ahead
        table = np.stack([np.zeros_like(table), table], axis=1)
    if table.shape[1] != len(classifier.classes_):
        raise InputError(
            f"{type(classifier).__name__} gives {table.shape[1]} scores for {len(classifier.classes_)} classes; it "
            "must give one for each class"
        )
    return table


def require_scores(classifier: Any) -> None:
    """Refuse a classifier that cannot rank classes."""
    if not any(hasattr(classifier, name) for name in _SCORES):
        raise InputError(
            f"{type(classifier).__name__} has no decision_function and no predict_proba to rank classes by; choose a "
            "classifier that has one"
        )


def cross_entropy_to_residuals(scores: npt.NDArray[Any], targets: IntegerArray, shares: npt.NDArray[Any]) -> float:
    """Give − Σ_i s_i log P(y_i given x_i) and replace the scores by its derivative s_i (P(c given x_i) − [y_i = c])."""
    rows = np.arange(len(targets))
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[rows, targets]
    np.exp(scores, out=scores)
    totals = scores.sum(axis=1)
    scores *= (shares / totals)[:, np.newaxis]
    scores[rows, targets] -= shares
    return float(shares.astype(np.float64, copy=False) @ (np.log(totals) - own))


def check_not_negative(name: str, value: object) -> None:
    """Reject anything but a finite number of at least 0."""
    if not is_number(value) or not 0 <= value < float("inf"):
        raise InputError(f"{name} must be a number of at least 0, not {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Reject anything but one of the named choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
