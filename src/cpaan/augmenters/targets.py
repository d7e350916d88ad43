"""Labels as imbalanced-learn's samplers take them: a sequence, one column, or one column for each class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from imblearn.utils import check_target_type
from sklearn.utils.multiclass import check_classification_targets

from cpaan.data.containers import append_labels, label_array
from cpaan.data.containers.labels import as_labels
from cpaan.errors import InputError

_MATRIX = 2


def read_targets(y: Any) -> Any:
    """Give labels of which there is one for each example.

    Parameters
    ----------
    y : array, tensor, series or sequence of n labels, or ndarray of shape (n, C)
        Class names; or zeros with a single one in each row, in the column of the class, which is read as its number.

    Returns
    -------
    array, tensor, series or sequence
        `y`, or the column numbers.

    Examples
    --------
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
