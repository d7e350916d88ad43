"""Base classes parted into folds, each of which is held out in turn as if its classes were novel.

A fold is a low-shot problem of its own, made of training examples of base classes alone: neither novel classes nor test
examples have a part in it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.shots import ShotSource
from cpaan.errors import InputError

FEWEST_QUERIES, MOST_QUERIES = 5, 30
FEWEST_HELD_OUT, FEWEST_REMAINING = 2, 4
FEWEST_EXAMPLES = 2  # of a class that is not held out: one to learn from, one to test with
QUERY_SHARE = 4  # of the examples of such a class, a quarter at most are for testing
Indices = NDArray[np.int64]


def held_out_fold(base: FeatureSet, fold: int, folds: int, most_shots: int, seed: int) -> BenchmarkData:
    """Hold some base classes out.

    Parameters
    ----------
    base : training examples of base classes
    fold, folds : which of how many
    most_shots : largest number of shots that will be drawn of a held-out class; smaller classes are never held out
    seed : decides how classes are parted, and which examples are for testing

    Returns
    -------
    BenchmarkData
        With numbers for names.

    >>> base = FeatureSet(np.arange(240.0).reshape(-1, 1), np.repeat(np.arange(8), 30))
    >>> data = held_out_fold(base, 0, 4, most_shots=5, seed=0)
    >>> len(data.novel_classes), len(data.base_classes), len(data.novel_test), len(data.base_test)
    (2, 6, 50, 42)
    """
    random = np.random.default_rng([seed, folds])
    order = np.argsort(base.labels, kind="stable")
    members = [random.permutation(rows) for rows in np.split(order, np.cumsum(base.counts)[:-1])]
    large = random.permutation(np.flatnonzero(base.counts >= most_shots + FEWEST_QUERIES))
    held = np.sort(large[fold::folds])
    rest = np.setdiff1d(np.flatnonzero(base.counts >= FEWEST_EXAMPLES), held)
    if len(large) // folds < FEWEST_HELD_OUT or len(rest) < FEWEST_REMAINING:
        raise InputError(
            f"{len(large)} of {base.n_classes} base classes have the {most_shots + FEWEST_QUERIES} examples that it "
            f"takes to be held out, too few for {folds} folds of {FEWEST_HELD_OUT} or more with {FEWEST_REMAINING} "
            "remaining; tune with fewer shots or fewer folds, or on more base classes"
        )
    of_held = [_parted(members[c], min(MOST_QUERIES, len(members[c]) - most_shots)) for c in held]
    of_rest = [_parted(members[c], min(MOST_QUERIES, max(1, len(members[c]) // QUERY_SHARE))) for c in rest]
    pool = _examples(base, held, [rows for rows, _ in of_held])
    starts = np.cumsum([0, *(len(rows) for rows, _ in of_held)])
    places = tuple(np.arange(start, stop) for start, stop in pairwise(starts))
    return BenchmarkData(
        base_train=_examples(base, rest, [rows for rows, _ in of_rest]),
        base_test=_examples(base, rest, [queries for _, queries in of_rest]),
        novel_test=_examples(base, held, [queries for _, queries in of_held]),
        shot_source=ShotSource(pool.classes, places, pool.take),
    )


def _parted(rows: Indices, queries: int) -> tuple[Indices, Indices]:
    return rows[queries:], rows[:queries]


def _examples(base: FeatureSet, classes: Indices, rows: Sequence[Any]) -> FeatureSet:
    labels = np.repeat(np.arange(len(classes)), [len(part) for part in rows])
    return FeatureSet(base.features[np.concatenate(rows)], labels, [int(c) for c in classes])
