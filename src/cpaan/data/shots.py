"""Where the shots of novel classes come from: seeded draws, or the rows that split files give."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from cpaan.data.arguments import as_generator, as_whole_number
from cpaan.data.class_names import IndexArray
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class ShotSource:
    """Where the shots of the novel classes come from.

    Parameters
    ----------
    classes : tuple of hashable
        The novel classes.
    members : tuple of ndarray
        For each of them, the row numbers of its training examples.
    take : callable
        Gives the examples of an array of row numbers.
    split_rows : tuple of ndarray of shape (number of classes, most shots)
        For each trial, the rows drawn for it; empty where trials are drawn by their seed.

    Examples
    --------
    >>> novel = FeatureSet([[0.0], [1.0], [2.0]], ["yew", "yew", "yew"])
    >>> ShotSource(("yew",), (np.arange(3),), novel.take).draw(trial=0, k=2).features.tolist()
    [[2.0], [0.0]]
    """

    classes: tuple[Hashable, ...]
    members: tuple[IndexArray, ...]
    take: Callable[[IndexArray], FeatureSet]
    split_rows: tuple[IndexArray, ...] = ()

    def draw(self, trial: int, k: int) -> FeatureSet:
        """Give K examples of each class, class by class in the order of the draw.

        Parameters
        ----------
        trial : int
            Number of the trial, from 0.
        k : int
            Number of shots.

        Returns
        -------
        FeatureSet
            The shots.
        """
        trial, k = as_whole_number(trial, "trial", minimum=0), as_whole_number(k, "k", minimum=1)
        return self.take(self._split(trial, k) if self.split_rows else self._drawn(trial, k))

    def _split(self, trial: int, k: int) -> IndexArray:
        if trial >= len(self.split_rows):
            number = len(self.split_rows)
            raise InputError(
                f"trial {trial} is beyond the {number} split file(s), which are for trials from 0 to {number - 1}; "
                "give more split files or run fewer trials"
            )
        rows = self.split_rows[trial]
        if k > rows.shape[1]:
            raise InputError(f"the split file of trial {trial} has {rows.shape[1]} shots of each class, not {k}")
        return rows[:, :k].ravel()

    def _drawn(self, trial: int, k: int) -> IndexArray:
        counts = [len(rows) for rows in self.members]
        if min(counts) < k:
            smallest = self.classes[int(np.argmin(counts))]
            raise InputError(
                f"class {smallest!r} has {min(counts)} training examples, too few to draw {k} shots; "
                "draw fewer shots or leave the class out"
            )
        # As draw_shots does, but here nothing need be left over, because test examples are others.
        generator = as_generator(trial)
        return np.concatenate([generator.permutation(rows)[:k] for rows in self.members])
