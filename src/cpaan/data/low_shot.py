"""Low-shot splits: base classes with all their examples, novel ones with a handful."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from cpaan.data.arguments import RandomState, as_generator, as_whole_number
from cpaan.data.feature_set import FeatureSet, IndexArray, show_names
from cpaan.errors import InputError


@dataclass(frozen=True, slots=True)
class LowShotSplit:
    """A low-shot problem.

    Parameters
    ----------
    base : FeatureSet
        All examples of the base classes.
    shots : FeatureSet
        The few known examples of the novel classes.
    unseen : FeatureSet
        The other examples of the same novel classes, to test with.
    """

    base: FeatureSet
    shots: FeatureSet
    unseen: FeatureSet

    def __post_init__(self) -> None:
        dimensions = {part.dimension for part in (self.base, self.shots, self.unseen)}
        if len(dimensions) > 1:
            numbers = ", ".join(str(part.dimension) for part in (self.base, self.shots, self.unseen))
            raise InputError(f"base, shots and unseen have {numbers} features; they must agree")
        require_disjoint(self.base.classes, self.shots.classes)
        if self.shots.classes != self.unseen.classes:
            known, unseen = set(self.shots.classes), set(self.unseen.classes)
            only = [name for name in self.shots.classes + self.unseen.classes if name not in known & unseen]
            which = f"only one has {show_names(only)}" if only else "their order differs"
            raise InputError(f"shots and unseen must have the same classes in the same order; {which}")

    @property
    def novel_classes(self) -> tuple[Hashable, ...]:
        """Names of the novel classes."""
        return self.shots.classes


def draw_shots(feature_set: FeatureSet, shots: int, random_state: RandomState = None) -> tuple[FeatureSet, FeatureSet]:
    """Draw a few examples of each class.

    Shots are nested: with the same `random_state`, one shot is the first of five.

    Parameters
    ----------
    feature_set : FeatureSet
        What to draw from.
    shots : int
        How many examples of each class to draw, without replacement.
    random_state : int, numpy.random.Generator or None
        Seed of the draw.

    Returns
    -------
    shots : FeatureSet
        The drawn examples, class by class in the order of the draw.
    rest : FeatureSet
        All others, in the order that they had.

    Examples
    --------
    >>> numbers = FeatureSet(np.arange(10).reshape(-1, 1), ["low"] * 5 + ["high"] * 5)
    >>> known, unseen = draw_shots(numbers, shots=2, random_state=0)
    >>> known.counts, unseen.counts
    (array([2, 2]), array([3, 3]))
    """
    _require_enough(feature_set, shots)
    generator = as_generator(random_state)
    members = [np.flatnonzero(feature_set.labels == index) for index in range(feature_set.n_classes)]
    drawn = np.concatenate([generator.permutation(rows)[:shots] for rows in members])
    rest = np.setdiff1d(np.arange(len(feature_set)), drawn)
    return feature_set.take(drawn), feature_set.take(rest)


def low_shot_split(
    feature_set: FeatureSet,
    base: Iterable[Hashable],
    novel: Iterable[Hashable],
    shots: int,
    random_state: RandomState = None,
) -> LowShotSplit:
    """Split a set with many examples of every class into a low-shot problem.

    Parameters
    ----------
    feature_set : FeatureSet
        Examples of all classes.
    base, novel : iterable of hashable
        Names of the base and of the novel classes.
    shots : int
        How many examples of each novel class are known.
    random_state : int, numpy.random.Generator or None
        Seed of the draw; shots are nested, see `draw_shots`.

    Examples
    --------
    >>> numbers = FeatureSet(np.arange(9).reshape(-1, 1), list("aaabbbccc"))
    >>> split = low_shot_split(numbers, base=["a", "b"], novel=["c"], shots=1, random_state=0)
    >>> len(split.base), len(split.shots), len(split.unseen)
    (6, 1, 2)
    """
    base_set, novel_set = feature_set.select(base), feature_set.select(novel)
    require_disjoint(base_set.classes, novel_set.classes)
    return LowShotSplit(base_set, *draw_shots(novel_set, shots, random_state))


def require_disjoint(base: tuple[Hashable, ...], novel: tuple[Hashable, ...]) -> None:
    """Refuse classes that are both base and novel."""
    common = [name for name in novel if name in set(base)]
    if common:
        raise InputError(f"both base and novel: {show_names(common)}; a class can be one of the two only")


def _require_enough(feature_set: FeatureSet, shots: int) -> None:
    as_whole_number(shots, "shots", minimum=1)
    counts = feature_set.counts
    if counts.min() <= shots:
        smallest = feature_set.classes[int(counts.argmin())]
        raise InputError(
            f"class {smallest!r} has {counts.min()} examples, too few to draw {shots} shots and keep one "
            "unseen; draw fewer shots or leave the class out"
        )


@dataclass(frozen=True, slots=True, eq=False)
class ShotSource:
    """Where the shots of the novel classes come from: seeded draws, or the rows that split files give.

    >>> novel = FeatureSet([[0.0], [1.0], [2.0]], ["yew", "yew", "yew"])
    >>> ShotSource(("yew",), (np.arange(3),), novel.take).draw(trial=0, k=2).features.tolist()
    [[2.0], [0.0]]
    """

    classes: tuple[Hashable, ...]
    members: tuple[IndexArray, ...]  # for each class, the rows of its training examples
    take: Callable[[IndexArray], FeatureSet]  # gives the examples of some rows
    split_rows: tuple[IndexArray, ...] = ()  # for each trial, the rows of most shots (classes × shots)

    def draw(self, trial: int, k: int) -> FeatureSet:
        """Give K examples of each class, class by class in the order of the draw."""
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
        # Like draw_shots, but nothing need be left over, because test examples are others.
        generator = as_generator(trial)
        return np.concatenate([generator.permutation(rows)[:k] for rows in self.members])
