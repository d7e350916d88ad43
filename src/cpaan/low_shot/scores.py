"""One score for each class, from any scikit-learn classifier."""

from typing import Any

import numpy as np

from cpaan.classifiers.base import FloatArray
from cpaan.errors import InputError

_SOURCES = ("scores", "predict_proba", "decision_function")


def require_scores(classifier: Any) -> None:
    """Refuse a classifier that does nothing but choose."""
    if not any(hasattr(classifier, source) for source in _SOURCES):
        raise InputError(
            f"{type(classifier).__name__} gives no probabilities or scores; choose a classifier with predict_proba or "
            "decision_function"
        )


def class_scores(classifier: Any, X: FloatArray) -> FloatArray:
    """Score every class, n × classes: by the classifier's own scores, the logarithm of its probabilities or decisions.

    >>> from sklearn.linear_model import LogisticRegression
    >>> classifier = LogisticRegression().fit([[-1.0], [1.0]], [0, 1])
    >>> class_scores(classifier, np.zeros((1, 1))).round(2)
    array([[-0.69, -0.69]])
    """
    if hasattr(classifier, "scores"):
        scores: FloatArray = classifier.scores(X)
    elif hasattr(classifier, "predict_proba"):
        with np.errstate(divide="ignore"):  # a probability of zero is a score of minus infinity
            scores = np.log(classifier.predict_proba(X))
    else:
        scores = classifier.decision_function(X)
        if scores.ndim == 1:  # of two classes, how far the second is ahead
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
    return scores
