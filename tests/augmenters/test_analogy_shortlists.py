"""Shortlists as masks, and how much they hold at once; what the search finds by them is tested with the search."""

import pytest
import torch
from torch import Tensor

from cpaan.augmenters.analogies import CentroidPairs, EveryClass, ExtremeCentroids, HalfProducts, _class_scores


def random_pairs(n_classes: int, k: int, dimension: int) -> CentroidPairs:
    return CentroidPairs.between(torch.randn(n_classes, k, dimension, generator=torch.Generator().manual_seed(0)))


def test_shortlists_hold_no_more_at_once_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = random_pairs(7, 6, 10)
    profiles_at_once, classes_at_once = [], []

    class Extreme(ExtremeCentroids):
        def _values(self, profiles: Tensor, closeness: Tensor, buffer: Tensor) -> Tensor:
            profiles_at_once.append(len(profiles))
            return super()._values(profiles, closeness, buffer)

    class Half(HalfProducts):
        def _directions(self, pairs: CentroidPairs, coordinates: Tensor, closeness: Tensor) -> Tensor:
            classes_at_once.append(len(coordinates))
            return super()._directions(pairs, coordinates, closeness)

    products, extreme, half = pairs.products(0), Extreme(pairs, 2, 0.5), Half(pairs)
    classes_at_once.clear()
    for elements, elements_on_gpu, profiles, classes in (
        (10**9, 10**9, [5, 4, 3, 2, 1], [7]),
        (4 * 7 * 6, 2 * 15**2 + 1, [4, 1, 4, 3, 2, 1], [2, 2, 2, 1]),
        (1, 1, [1] * 15, [1] * 7),
    ):
        monkeypatch.setattr("cpaan.augmenters.analogies.ELEMENTS_AT_ONCE", elements)
        monkeypatch.setattr("cpaan.augmenters.analogies.ELEMENTS_AT_ONCE_ON_GPU", elements_on_gpu)
        extreme(pairs, 0, products)
        half(pairs, 0, products)
        assert (profiles_at_once, classes_at_once) == (profiles, classes)
        profiles_at_once.clear()
        classes_at_once.clear()


def test_shortlists_are_masks_of_the_classes_asked_for() -> None:
    pairs = random_pairs(6, 5, 4)
    products = pairs.products(2)
    masks = {n: ExtremeCentroids(pairs, n, 0.5)(pairs, 2, products) for n in (1, 3, 5, 99)}
    for number, mask in masks.items():
        assert mask.dtype == torch.bool
        assert mask.sum(1).tolist() == [min(number, 5)] * pairs.number
        assert not mask[:, 2].any()
    everything = EveryClass()(pairs, 2, products)
    assert everything.dtype == torch.bool
    assert everything.all()
    scores = _class_scores(pairs, products, 2, masks[3])
    assert (scores[~masks[3]] == -1).all()


def test_half_products_are_halves_in_multiples_of_eight() -> None:
    half = HalfProducts(random_pairs(3, 6, 20))
    assert half.directions.dtype == torch.float16
    assert half.directions.shape == (3, 15, 8)
