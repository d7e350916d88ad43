"""How many examples each class of one imbalanced set is to be given: imbalanced-learn's meanings, and one more."""

from collections.abc import Hashable, Mapping
from numbers import Real
from typing import Any

import numpy as np
from imblearn.utils import check_sampling_strategy
from numpy.typing import NDArray

from cpaan.data.class_names import raise_unknown
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError

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

    Parameters
    ----------
    strategy : float, str, mapping or callable
        As in imbalanced-learn: the ratio of the smaller to the larger of two classes, which classes to fill up to the
        size of the largest, the sizes wanted by class name, or a function from labels to such sizes.
    everything : FeatureSet
        The whole set.

    Returns
    -------
    dict
        By class name, in the order of the classes. A number may be 0.

    Examples
    --------
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
