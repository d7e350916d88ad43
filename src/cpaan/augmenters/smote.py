"""SMOTE: synthetic minority over-sampling technique.

N. V. Chawla, K. W. Bowyer, L. O. Hall, W. P. Kegelmeyer, "SMOTE: synthetic minority over-sampling technique", Journal
of Artificial Intelligence Research 16, 2002.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet, show_names
from cpaan.errors import InputError

SINGLES = ("copy", "refuse")


class Smote(BaseAugmenter):
    """Interpolate between an example and one of its nearest neighbours of the same class.

    x = x_i + g (x_j − x_i),   g ~ U(0, 1),   x_j one of the k nearest neighbours of x_i

    Every example of a class takes part equally often. A class of n examples has n − 1 neighbours to offer, and k
    shrinks to that. A class of one example has none: all that there is to make are copies of it. Nothing is learned
    from base classes but their average size.

    Parameters
    ----------
    neighbors : int
        k.
    single : {"copy", "refuse"}
        What to do with a class of one example: copy it, or raise an error that names the class.
    random_state, per_class, sampling_strategy
        As in `cpaan.augmenters.base.BaseAugmenter`.

    Attributes
    ----------
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> augmenter = Smote(random_state=0).fit([[0.0], [1.0], [5.0]], ["a", "a", "b"])
    >>> X_new, y_new = augmenter.augment([[2.0], [4.0], [7.0]], ["c", "c", "d"], per_class=100)
    >>> bool((2 < X_new[:100]).all() and (X_new[:100] < 4).all()), np.unique(X_new[100:])
    (True, array([7.]))
    """

    def __init__(
        self,
        *,
        neighbors: int = 5,
        single: str = "copy",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.neighbors = neighbors
        self.single = single
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _learn(self, base: FeatureSet) -> None:
        as_whole_number(self.neighbors, "neighbors", minimum=1)
        if self.single not in SINGLES:
            raise InputError(f"unknown single {self.single!r}; choose one of {', '.join(SINGLES)}")
        self._seed(0)  # refuses a random_state that is none

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        alone = [name for name, count in zip(novel.classes, novel.counts, strict=True) if count == 1]
        if alone and self.single == "refuse":
            raise InputError(
                f"one example only of {show_names(alone)}, and SMOTE interpolates between two; give two examples at "
                'least, or copy these with single="copy"'
            )
        generator = np.random.default_rng(self._seed(1))
        dtype = np.promote_types(novel.features.dtype, np.float32)
        made = np.empty((int(wanted.sum()), novel.dimension), dtype)
        ends = wanted.cumsum()
        for label, (number, end) in enumerate(zip(wanted, ends, strict=True)):
            examples = novel.features[novel.labels == label].astype(np.float64)
            made[end - number : end] = interpolate(examples, int(number), self.neighbors, generator)
        return made


def interpolate(
    examples: NDArray[np.float64], number: int, neighbors: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Make examples of one class, each on the segment from an example to one of its nearest neighbours."""
    n = len(examples)
    # Each example as often as any other; which of them take the remainder is drawn.
    starts = np.concatenate([np.tile(np.arange(n), number // n), generator.permutation(n)[: number % n]])
    if n == 1:
        copies: NDArray[np.float64] = examples[starts]
        return copies
    nearest = nearest_others(examples, min(neighbors, n - 1))
    ends = nearest[starts, generator.integers(nearest.shape[1], size=number)]
    # NOTE[paper]: the text speaks of a line segment, its pseudo-code draws g for every feature anew, which fills a
    # box. The segment is what implementations make.
    g = generator.uniform(size=(number, 1))
    between: NDArray[np.float64] = (1 - g) * examples[starts] + g * examples[ends]
    return between


def nearest_others(examples: NDArray[np.float64], neighbors: int) -> NDArray[np.int64]:
    """Find the nearest neighbours of each example among the others, itself left out even where it has twins.

    >>> nearest_others(np.array([[0.0], [0.0], [5.0], [9.0]]), 1).ravel()
    array([1, 0, 3, 2])
    """
    # About their mean and at unit size, because squares of very large or very distant features lose their digits.
    centred = examples - examples.mean(axis=0)
    centred /= np.abs(centred).max() or 1.0
    found: NDArray[np.int64] = NearestNeighbors(n_neighbors=neighbors).fit(centred).kneighbors(return_distance=False)
    return found
