"""Tensors are made where their inputs are.

No GPU is needed to see it: the meta device, which has shapes and no values, plays the device that is not the default.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cpaan.augmenters.analogies import CentroidPairs, EveryClass, mine_analogies, typical_cosine
from cpaan.classifiers.meta import TaskSampler
from cpaan.gan.episodes import DirectSampler, EpisodicSampler, PairPlan
from cpaan.math.neighborhood import SoftNeighborhood, calibrated_temperature
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank, ScaledRows, StoredRows, draw_categories

CPU, META = torch.device("cpu"), torch.device("meta")
CENTROIDS = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
TYPICAL = typical_cosine(CentroidPairs.between(CENTROIDS))
BANK = ClassBank.from_examples(CENTROIDS.flatten(0, 1), torch.arange(4).repeat_interleave(5), 4)
PLAN = PairPlan(SoftNeighborhood(1.0), 6, "drawn", "similarity", "normalized")


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """What is made without a device lands where there are no values: what needs them fails or comes out wrong."""
    with META:
        yield


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.usefixtures("elsewhere")
def test_draws_are_made_where_the_examples_are() -> None:
    assert torch.ones(1).device == META
    assert draw_categories(torch.eye(3, device=CPU), 2, generator()).tolist() == [[0, 0], [1, 1], [2, 2]]
    drawn = [
        *vars(EpisodicSampler(BANK, PLAN, 2, 2).draw(generator())).values(),
        *vars(DirectSampler(BANK, BANK, PLAN, 2, 2).draw(generator())).values(),
        *vars(TaskSampler(BANK, 2, (1, 2), 1).draw(generator())).values(),
    ]
    assert {tensor.device for tensor in drawn} == {CPU}


@pytest.mark.usefixtures("elsewhere")
def test_temperatures_and_analogies_are_found_where_the_prototypes_are() -> None:
    assert calibrated_temperature(BANK.prototypes, 1.5) > 0
    pairs = CentroidPairs.between(CENTROIDS)
    assert typical_cosine(pairs) == TYPICAL
    assert pairs.first.device == pairs.second.device == EveryClass()(pairs, 0, pairs.products(0)).device == CPU
    for search in ("exact", "approximate"):
        assert len(mine_analogies(CENTROIDS, search=search).cosines) == 4 * 5 * 4


def test_a_bank_moves_as_a_whole() -> None:
    moved = BANK.to(META)
    for name in ("rows", "counts", "starts", "prototypes"):
        assert getattr(moved, name).device == META
        assert getattr(moved, name).shape == getattr(BANK, name).shape
    assert moved.largest == BANK.largest
    assert moved.device == META


def test_stored_examples_are_given_on_the_device_asked_for() -> None:
    rows = ScaledRows(StoredRows(np.eye(3)), Scaling(torch.zeros(3), 1.0), CPU).to(META)
    assert rows.device == rows[:2].device == rows.load().device == META
