"""Low-shot splits: base classes with all their examples, novel ones with a handful."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from cpaan.data.arguments import RandomState, as_generator, as_whole_number
from cpaan.data.class_names import show_names
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError


@dataclass(frozen=True, slots=True)
class LowShotSplit:
    """A low-shot problem.

    Parameters
    ----------
    base : FeatureSet
        All examples of the base classes.
    shots : FeatureSet
        The few examples of the novel classes that are known.
    unseen : FeatureSet
        The other examples of the novel classes, to test with.

    Raises
    ------
    InputError
        Where dimensions differ, a class is both base and novel, or `shots` and `unseen` differ in classes.

    Examples
    --------
    >>> base = FeatureSet([[0.0], [1.0]], ["a", "b"])
    >>> split = LowShotSplit(base, shots=FeatureSet([[2.0]], ["c"]), unseen=FeatureSet([[2.1]], ["c"]))
    >>> split.novel_classes
    ('c',)
    """

    base: FeatureSet
    shots: FeatureSet
    unseen: FeatureSet

    def __post_init__(self) -> None:
        dimensions = {part.dimension for part in (self.base, self.shots, self.unseen)}
        if len(dimensions) > 1:
            numbers = ", ".join(str(part.dimension) for part in (self.base, self.shots, self.unseen))
            raise InputError(f"base, shots and unseen have {numbers} features; they must agree")
        _require_disjoint(self.base.classes, self.shots.classes)
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

    The order in which a class's examples are drawn does not depend on how many are drawn, so that shots are
    nested: with the same `random_state`, one shot is the first of five.

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

    Raises
    ------
    InputError
        Where `shots` is less than one, or not less than the number of examples of a class.

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
    """Make a low-shot problem of a set with many examples of every class.

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

    Returns
    -------
    LowShotSplit
        The problem.

    Examples
    --------
    >>> numbers = FeatureSet(np.arange(9).reshape(-1, 1), list("aaabbbccc"))
    >>> split = low_shot_split(numbers, base=["a", "b"], novel=["c"], shots=1, random_state=0)
    >>> len(split.base), len(split.shots), len(split.unseen)
    (6, 1, 2)
    """
    base_set, novel_set = feature_set.select(base), feature_set.select(novel)
    # Before the draw, so that a class in both lists is named rather than found too small.
    _require_disjoint(base_set.classes, novel_set.classes)
    return LowShotSplit(base_set, *draw_shots(novel_set, shots, random_state))


def _require_disjoint(base: tuple[Hashable, ...], novel: tuple[Hashable, ...]) -> None:
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
