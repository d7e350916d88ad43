"""Top-k accuracy within a label space, and low-shot accuracy of a fitted classifier.

LSL tests novel examples with the novel classes as label space; GLSL tests base and novel examples with all
classes as label space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.classifiers.base import class_scores
from cpaan.data.containers import as_labels
from cpaan.data.feature_set import show_names
from cpaan.errors import InputError

_MATRIX = 2


@dataclass(frozen=True)
class LowShotScores:
    """Accuracies in percent, each a mapping from k to top-k accuracy over test examples.

    Attributes
    ----------
    lsl : novel examples, where only novel classes compete
    glsl : all examples, where all classes compete
    glsl_base, glsl_novel : parts of `glsl` from base and from novel examples; NaN without base examples

    Examples
    --------
    >>> scores = LowShotScores(lsl={1: 80.0}, glsl={1: 50.0}, glsl_base={1: 60.0}, glsl_novel={1: 30.0})
    >>> scores.glsl_harmonic
    {1: 40.0}
    """

    lsl: Mapping[int, float]
    glsl: Mapping[int, float]
    glsl_base: Mapping[int, float]
    glsl_novel: Mapping[int, float]

    @property
    def glsl_harmonic(self) -> dict[int, float]:
        """Harmonic mean of the base and the novel part, for each k."""
        return {k: harmonic_mean(base, self.glsl_novel[k]) for k, base in self.glsl_base.items()}

    def as_dict(self) -> dict[str, float]:
        """Flatten all scores, under names such as `lsl_top1`."""
        parts = {
            "lsl": self.lsl,
            "glsl": self.glsl,
            "glsl_base": self.glsl_base,
            "glsl_novel": self.glsl_novel,
            "glsl_harmonic": self.glsl_harmonic,
        }
        return {f"{name}_top{k}": value for name, part in parts.items() for k, value in part.items()}


def evaluate_low_shot(
    classifier: Any, X_test: Any, y_test: Any, novel_classes: Any, k: Sequence[int] = (1, 5)
) -> LowShotScores:
    """Test a classifier that was fitted on base and novel classes together.

    Parameters
    ----------
    classifier : fitted classifier
        With `classes_`, and `scores`, `decision_function` or `predict_proba` (the first one found).
    X_test : array-like of shape (n, D)
        Test examples of base and novel classes.
    y_test : sequence of n labels
        Their classes, all known to the classifier.
    novel_classes : sequence of labels
        The novel classes; all others are base classes.
    k : sequence of int, default=(1, 5)
        Values of k for top-k accuracy.

    Examples
    --------
    >>> from cpaan.classifiers import NearestPrototype
    >>> classifier = NearestPrototype().fit([[0.0], [4.0], [5.0]], ["base", "elm", "oak"])
    >>> X_test, y_test = [[0.2], [1.0], [5.3]], ["base", "elm", "oak"]
    >>> scores = evaluate_low_shot(classifier, X_test, y_test, ["elm", "oak"], k=[1])
    >>> scores.lsl, scores.glsl_base, scores.glsl_novel
    ({1: 100.0}, {1: 100.0}, {1: 50.0})
    """
    labels = as_labels(y_test, name="y_test")
    novel = set(as_labels(novel_classes, name="novel_classes"))
    is_novel = np.array([label in novel for label in labels], dtype=bool)
    if not is_novel.any():
        raise InputError("y_test has no example of a novel class; add some, or correct novel_classes")
    table = class_scores(classifier, X_test)
    if len(table) != len(labels):
        raise InputError(f"y_test has {len(labels)} labels for the {len(table)} examples of X_test")

    def percent(rows: npt.NDArray[np.bool_], label_space: set[Any] | None) -> dict[int, float]:
        if not rows.any():
            return dict.fromkeys(k, float("nan"))
        chosen = [label for label, wanted in zip(labels, rows, strict=True) if wanted]
        return {count: 100 * accuracy(table[rows], classifier.classes_, chosen, label_space, count) for count in k}

    return LowShotScores(
        lsl=percent(is_novel, novel),
        glsl=percent(np.ones_like(is_novel), None),
        glsl_base=percent(~is_novel, None),
        glsl_novel=percent(is_novel, None),
    )


def top_k_accuracy(scores: npt.ArrayLike, targets: npt.ArrayLike, k: int = 1) -> float:
    """Share of examples, from 0 to 1, whose class is among the k with the highest scores.

    (1/n) Σ_i 1[#{c ≠ t_i : s_ic ≥ s_it_i} < k]

    A tie counts against the target: a classifier that scores all classes alike gets no credit.

    Parameters
    ----------
    scores : array of shape (n, C)
        Higher means more likely; infinite values are allowed, NaN is not.
    targets : integer array of shape (n,)
        Column of the true class.
    k : int, default=1
        Number of guesses; with k ≥ C the result is 1.

    Examples
    --------
    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [2, 0], k=2)
    1.0
    """
    table = _check_scores(scores)
    columns = np.asarray(targets)
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    if columns.shape != (len(table),) or columns.dtype.kind not in "iu":
        raise InputError(f"targets must be {len(table)} integers, one per row of scores")
    if columns.min() < 0 or columns.max() >= table.shape[1]:
        raise InputError(f"targets must lie from 0 to {table.shape[1] - 1}, the columns of scores")
    own = np.take_along_axis(table, columns[:, np.newaxis], axis=1)
    at_least_as_high = (table >= own).sum(axis=1) - 1  # the target itself is one of them
    return float((at_least_as_high < k).mean())


def accuracy(scores: npt.ArrayLike, classes: Any, y_true: Any, label_space: Any = None, k: int = 1) -> float:
    """Top-k accuracy, from 0 to 1, where only the classes of a label space compete.

    Parameters
    ----------
    scores : array of shape (n, C)
        One column for each of `classes`.
    classes : sequence of C labels
        Labels of the columns, as in a classifier's `classes_`.
    y_true : sequence of n labels
        The true classes; each must be in the label space.
    label_space : sequence of labels, optional
        Classes that compete; columns of all others are ignored. By default all classes (GLSL); for LSL the novel ones.
    k : int, default=1
        Number of guesses.

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
        raise InputError("classes contains a label twice; each column needs its own label")
    allowed = set(names if label_space is None else as_labels(label_space, name="label_space"))
    _check_subset(allowed, set(names), "label_space", "classes")
    _check_subset(set(labels), allowed, "y_true", "the label space")
    columns = [column for column, name in enumerate(names) if name in allowed]
    position = {names[column]: index for index, column in enumerate(columns)}
    return top_k_accuracy(table[:, columns], np.array([position[label] for label in labels]), k)


def harmonic_mean(first: float, second: float) -> float:
    """Harmonic mean of two non-negative numbers, 2ab / (a + b); zero if either is zero.

    Unlike the arithmetic mean it is low whenever one of the two is low, such as accuracy on novel classes.

    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    if first < 0 or second < 0:
        raise InputError(f"harmonic_mean needs numbers of 0 or more, got negative ones: {first} and {second}")
    return 2 * first * second / (first + second) if first + second != 0 else 0.0


def _check_scores(scores: npt.ArrayLike) -> npt.NDArray[Any]:
    table = np.asarray(scores)
    if table.ndim != _MATRIX or 0 in table.shape or table.dtype.kind not in "biuf":
        raise InputError(
            "scores must be a table of numbers, one row per example and one column per class; "
            f"got shape {table.shape} and type {table.dtype}"
        )
    if np.isnan(table).any():
        raise InputError("scores contains NaN, which cannot be ranked; check the classifier and its input")
    return table


def _check_subset(labels: set[Any], allowed: set[Any], name: str, whole: str) -> None:
    unknown = sorted(labels - allowed, key=repr)
    if unknown:
        raise InputError(f"{name} contains classes outside {whole}: {show_names(unknown)}")
