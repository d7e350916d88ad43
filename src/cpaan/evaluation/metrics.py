"""Top-k accuracy, within a label space, and the harmonic mean of two accuracies."""

from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import as_labels
from cpaan.errors import InputError

_MATRIX = 2
_NAMED = 3


def top_k_accuracy(scores: npt.ArrayLike, targets: npt.ArrayLike, k: int = 1) -> float:
    """Share of examples whose class is among the k with the highest scores.

    (1/n) Σ_i 1[#{c ≠ t_i : s_ic ≥ s_it_i} < k]

    A tie counts against the target, so that a classifier that scores all classes alike gets no credit.

    Parameters
    ----------
    scores : array of shape (n, C)
        Higher means more likely; infinite values are allowed, NaN is not.
    targets : integer array of shape (n,)
        Column of the true class.
    k : int, default=1
        How many classes may be named. With k ≥ C nothing can be missed and the result is 1.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [2, 0], k=1)
    0.5
    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [2, 0], k=2)
    1.0
    """
    table = _check_scores(scores)
    columns = np.asarray(targets)
    if k < 1:
        raise InputError(f"k is {k}; give 1 or more")
    if columns.shape != (len(table),) or columns.dtype.kind not in "iu":
        raise InputError(f"targets must be {len(table)} integers, one for each row of scores")
    if columns.min() < 0 or columns.max() >= table.shape[1]:
        raise InputError(f"targets must lie from 0 to {table.shape[1] - 1}, the columns of scores")
    own = np.take_along_axis(table, columns[:, np.newaxis], axis=1)
    at_least_as_high = (table >= own).sum(axis=1) - 1  # the target itself is one of them
    return float((at_least_as_high < k).mean())


def accuracy(scores: npt.ArrayLike, classes: Any, y_true: Any, label_space: Any = None, k: int = 1) -> float:
    """Top-k accuracy where only the classes of a label space compete.

    Parameters
    ----------
    scores : array of shape (n, C)
        One column for each of `classes`.
    classes : sequence of C labels
        What the columns stand for, as in a classifier's `classes_`.
    y_true : sequence of n labels
        The true classes; each must be in the label space.
    label_space : sequence of labels, optional
        The classes that may be predicted; the columns of all others are ignored. Low-shot learning: the novel
        classes. Generalised low-shot learning: all classes, the default.
    k : int, default=1
        How many classes may be named.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> scores = [[0.9, 0.6, 0.4]]
    >>> accuracy(scores, ["base", "elm", "oak"], ["elm"])
    0.0
    >>> accuracy(scores, ["base", "elm", "oak"], ["elm"], label_space=["elm", "oak"])
    1.0
    """
    table = _check_scores(scores)
    names = as_labels(classes, table.shape[1], "classes")
    labels = as_labels(y_true, len(table), "y_true")
    if len(set(names)) != len(names):
        raise InputError("classes holds a label twice; each column needs a label of its own")
    allowed = set(names if label_space is None else as_labels(label_space, name="label_space"))
    _check_subset(allowed, set(names), "label_space", "classes")
    _check_subset(set(labels), allowed, "y_true", "the label space")
    columns = [column for column, name in enumerate(names) if name in allowed]
    position = {names[column]: index for index, column in enumerate(columns)}
    return top_k_accuracy(table[:, columns], np.array([position[label] for label in labels]), k)


def harmonic_mean(first: float, second: float) -> float:
    """Harmonic mean of two non-negative numbers, 2ab / (a + b); zero where either is zero.

    Unlike the plain mean it cannot be high where one of the two is low, such as accuracy on novel classes.

    Examples
    --------
    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    if first < 0 or second < 0:
        raise InputError(f"the harmonic mean takes no negative numbers; got {first} and {second}")
    return 2 * first * second / (first + second) if first + second != 0 else 0.0


def _check_scores(scores: npt.ArrayLike) -> npt.NDArray[Any]:
    table = np.asarray(scores)
    if table.ndim != _MATRIX or 0 in table.shape or table.dtype.kind not in "biuf":
        raise InputError(
            f"scores has shape {table.shape} and type {table.dtype}, but must be a table of numbers, "
            "one row for each example and one column for each class"
        )
    if np.isnan(table).any():
        raise InputError("scores holds NaN, which has no rank among the others")
    return table


def _check_subset(labels: set[Any], allowed: set[Any], name: str, whole: str) -> None:
    unknown = sorted(map(repr, labels - allowed))
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise InputError(f"{name} holds classes outside {whole}: {', '.join(unknown[:_NAMED])}{more}")
