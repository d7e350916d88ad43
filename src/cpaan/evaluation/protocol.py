"""Low-shot and generalised low-shot accuracy of one fitted classifier.

LSL tests on novel examples with the novel classes as label space; GLSL tests on base and novel examples with
all classes as label space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import as_labels
from cpaan.errors import InputError
from cpaan.evaluation.metrics import accuracy, harmonic_mean


@dataclass(frozen=True)
class LowShotScores:
    """Accuracies in percent, each a mapping from k to top-k accuracy over test examples.

    Attributes
    ----------
    lsl : mapping of int to float
        Novel examples, where only novel classes compete.
    glsl : mapping of int to float
        All examples, where all classes compete.
    glsl_base, glsl_novel : mapping of int to float
        The parts of `glsl` that come from base and from novel examples; NaN for base where there are none.

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
        """Give all scores flat, under names such as `lsl_top1`, for tables and files."""
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
        With `classes_`, and `scores`, `decision_function` or `predict_proba` (the first that it has).
    X_test : array-like of shape (n, D)
        Test examples of base and novel classes.
    y_test : sequence of n labels
        Their classes, all known to the classifier.
    novel_classes : sequence of labels
        Which classes are novel; all others are base.
    k : sequence of int, default=(1, 5)
        For which k to give top-k accuracy.

    Returns
    -------
    LowShotScores
        In percent.

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
        raise InputError("y_test has no example of a novel class; there is nothing to test")
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


def class_scores(classifier: Any, X: Any) -> npt.NDArray[Any]:
    """Score every class with any fitted scikit-learn classifier, one column per class also for two classes.

    Returns
    -------
    ndarray of shape (n, n_classes)
        In the order of `classes_`.

    Examples
    --------
    >>> from sklearn.linear_model import RidgeClassifier
    >>> binary = RidgeClassifier().fit([[-1.0], [1.0]], ["no", "yes"])
    >>> class_scores(binary, [[3.0]]).argmax(axis=1)
    array([1])
    """
    for method in ("scores", "decision_function", "predict_proba"):
        if hasattr(classifier, method):
            table = np.asarray(getattr(classifier, method)(X))
            break
    else:
        raise InputError(
            f"{type(classifier).__name__} has no decision_function and no predict_proba to rank classes by"
        )
    if table.ndim == 1:
        table = np.column_stack([-table, table])
    if table.shape[1] != len(classifier.classes_):
        raise InputError(
            f"{type(classifier).__name__} gives {table.shape[1]} scores for "
            f"{len(classifier.classes_)} classes; it must give one for each class"
        )
    return table
