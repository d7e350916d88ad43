"""Nearest prototype: each class is its mean, each example belongs to the closest one.

The classifier of J. Snell, K. Swersky and R. S. Zemel, "Prototypical networks for few-shot learning", NeurIPS 2017, on
given features. It needs no training and works for classes with a single example.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier


class NearestPrototype(ScoreClassifier):
    """Classify by the squared Euclidean distance to the mean of each class.

    With weights w_i (one by default),

    l_c = Σ_{i: y_i = c} w_i x_i / Σ_{i: y_i = c} w_i

    score(c given x) = −‖x − l_c‖²,  P(c given x) = softmax over c of the scores

    Attributes
    ----------
    prototypes_ : ndarray of shape (n_classes, D)
        The (weighted) class means l_c, in the order of `classes_`.
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> classifier = NearestPrototype().fit([[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]], ["low", "low", "high"])
    >>> classifier.predict([[3.0, 1.0], [8.0, 5.0]])
    array(['low', 'high'], dtype='<U4')
    >>> classifier.scores([[1.0, 1.0]])
    array([[-128.,   -1.]])
    """

    prototypes_: FloatArray

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NearestPrototype":
        """Average the examples of each class.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples.
        y : array-like of shape (n,)
            Their labels.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights; examples of weight zero are ignored.
        """
        # Single precision is converted to double one class at a time.
        features, targets, weights = self._read_training_data(X, y, sample_weight, keep_single=True)
        self.prototypes_ = weighted_class_means(features, targets, weights, len(self.classes_))
        return self

    def _score(self, X: FloatArray) -> FloatArray:
        # Distances do not depend on the origin, but ‖x‖² − 2x·l + ‖l‖² loses digits far away from it.
        origin = self.prototypes_.mean(axis=0)
        prototypes, examples = self.prototypes_ - origin, X - origin
        scores: FloatArray = examples @ prototypes.T
        scores *= 2
        scores -= np.square(examples).sum(axis=1)[:, np.newaxis]
        scores -= np.square(prototypes).sum(axis=1)
        return np.minimum(scores, 0.0, out=scores)


def weighted_class_means(
    features: npt.NDArray[Any], targets: IntegerArray, weights: FloatArray, n_classes: int
) -> FloatArray:
    """Average the examples of each class in double precision, classes × D."""
    # Sorted by class: each example is touched once, without an indicator matrix of n × classes.
    order = np.argsort(targets, kind="stable")
    ends = np.bincount(targets, minlength=n_classes).cumsum()
    means = np.empty((n_classes, features.shape[1]))
    for index, rows in enumerate(np.split(order, ends[:-1])):
        means[index] = np.average(features[rows], axis=0, weights=weights[rows])
    return means
