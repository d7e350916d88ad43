"""Deviation transfer: examples are shots' means plus deviations that base examples really have."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cpaan import DeviationTransfer, InputError

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 50.0], [40.0, 40.0]])
SIZES = [5, 30, 8, 12]
Y = np.repeat(np.arange(4), SIZES)
X = CENTRES[Y] + RNG.normal(size=(len(Y), 2))
DEVIATIONS = X - np.stack([part.mean(0) for part in np.split(X, np.cumsum(SIZES)[:-1])])[Y]
SHOTS, NAMES = np.array([[1.0, 1.0], [3.0, 1.0], [38.0, 41.0]]), ["near", "near", "far"]


def lenders(made: npt.NDArray[Any], centre: list[float]) -> npt.NDArray[np.int64]:
    """Find the base example whose deviation each example has; all are found to the digits of half precision."""
    distances = np.abs((made - centre)[:, None] - DEVIATIONS[None]).max(-1)
    assert distances.min(1).max() < 2e-3
    found: npt.NDArray[np.int64] = distances.argmin(1)
    return found


def test_examples_are_moved_base_examples_and_classes_lend_alike() -> None:
    made, names = DeviationTransfer(random_state=0).fit(X, Y).augment(SHOTS, NAMES, per_class=8000)
    for name, centre in (("near", [2.0, 1.0]), ("far", [38.0, 41.0])):
        rows = lenders(made[names == name], centre)
        shares = np.bincount(Y[rows], minlength=4) / 8000
        np.testing.assert_allclose(shares, 0.25, atol=0.02)
        assert len(np.unique(rows)) == len(Y)


def test_a_soft_neighborhood_draws_similar_classes_more_often() -> None:
    augmenter = DeviationTransfer(neighborhood="soft", perplexity=1.2, random_state=0).fit(X, Y)
    made, names = augmenter.augment(SHOTS, NAMES, per_class=2000)
    near = np.bincount(Y[lenders(made[names == "near"], [2.0, 1.0])], minlength=4) / 2000
    far = np.bincount(Y[lenders(made[names == "far"], [38.0, 41.0])], minlength=4) / 2000
    assert near[0] > near[1] > near[2]
    assert near[0] > 0.5
    assert far[3] > 0.95


def test_the_reservoir_bounds_what_is_kept() -> None:
    augmenter = DeviationTransfer(reservoir=6, random_state=0).fit(X, Y)
    learned = augmenter.deviations_.tensors()
    assert learned["kept_"].tolist() == [5, 6, 6, 6]
    assert learned["kept_deviations_"].dtype == torch.float16
    made, _ = augmenter.augment(SHOTS[:1], ["one"], per_class=2000)
    rows = lenders(made, [1.0, 1.0])
    assert [len(np.unique(rows[Y[rows] == c])) for c in range(4)] == [5, 6, 6, 6]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match="reservoir is 0; give a whole number of at least 1"):
        DeviationTransfer(reservoir=0).fit(X, Y)
    with pytest.raises(InputError, match="unknown neighborhood 'hard'; choose one of uniform, soft"):
        DeviationTransfer(neighborhood="hard").fit(X, Y)
    with pytest.raises(InputError, match="perplexity must be a number above 1, not 1"):
        DeviationTransfer(neighborhood="soft", perplexity=1).fit(X, Y)
