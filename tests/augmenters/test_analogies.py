"""Mined analogies against brute force, pair by pair."""

from itertools import permutations, product
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.augmenters import analogies
from cpaan.augmenters.analogies import (
    Analogies,
    CentroidPairs,
    EveryClass,
    ExtremeCentroids,
    HalfProducts,
    length_shares,
    mine_analogies,
)
from cpaan.errors import InputError


def random_centroids(n_classes: int, k: int, dimension: int, seed: int = 0) -> Tensor:
    """Classes that vary most in a few directions of their own."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(n_classes, 3, dimension, generator=generator)
    along = torch.randn(n_classes, k, 3, generator=generator) @ own
    centers = 5 * torch.randn(n_classes, 1, dimension, generator=generator)
    return centers + along + 0.5 * torch.randn(n_classes, k, dimension, generator=generator)


def cosine(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / lengths) if lengths > 1e-9 else 0.0


def brute_force(centroids: Tensor) -> dict[tuple[int, int], tuple[float, tuple[int, int]]]:
    """Best cosine and partner of every ordered pair that has one of positive cosine, by loops alone."""
    c = centroids.double().numpy()
    n_classes, k, _ = c.shape
    found: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
    for i, j in product(range(n_classes), repeat=2):
        for (a, b), (e, f) in product(permutations(range(k), 2), repeat=2):
            key, score = (i * k + a, i * k + b), cosine(c[i, a] - c[i, b], c[j, e] - c[j, f])
            if i != j and score > found.get(key, (1e-9,))[0]:
                found[key] = (score, (j * k + e, j * k + f))
    return found


def as_table(found: Analogies) -> dict[tuple[int, int], tuple[float, tuple[int, int]]]:
    rows = zip(found.quadruplets.tolist(), found.cosines.tolist(), strict=True)
    return {(a, b): (score, (c, d)) for (a, b, c, d), score in rows}


def check(found: Analogies, expected: dict[tuple[int, int], tuple[float, tuple[int, int]]]) -> None:
    table = as_table(found)
    assert len(table) == len(found.cosines)
    assert {key: partner for key, (_, partner) in table.items()} == {
        key: partner for key, (_, partner) in expected.items()
    }
    np.testing.assert_allclose([table[key][0] for key in expected], [v[0] for v in expected.values()], rtol=1e-5)


@pytest.mark.parametrize(("n_classes", "k", "dimension"), [(5, 5, 6), (3, 6, 3), (2, 4, 30)])
def test_the_exact_search_finds_what_loops_find(n_classes: int, k: int, dimension: int) -> None:
    centroids = random_centroids(n_classes, k, dimension)
    check(mine_analogies(centroids, search="exact"), brute_force(centroids))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("dimension", [4, 40])
def test_the_search_by_half_products_finds_the_same(
    dtype: torch.dtype, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of GPUs, here on a CPU, in blocks of two classes."""
    centroids = random_centroids(7, 6, dimension)
    expected = mine_analogies(centroids, search="exact")
    monkeypatch.setattr("cpaan.augmenters.analogies.ELEMENTS_AT_ONCE_ON_GPU", 2 * 15**2)
    pairs = CentroidPairs.between(centroids)
    for source in range(7):
        found = analogies._search(pairs, HalfProducts(pairs, dtype), source)
        everywhere = analogies._search(pairs, EveryClass(), source)
        assert torch.equal(found[0], everywhere[0])
        assert torch.equal(found[0], expected.quadruplets[::2].view(7, 15, 4)[source])


def test_half_products_leave_most_classes_out_and_never_the_best() -> None:
    centroids = random_centroids(12, 8, 32)
    pairs = CentroidPairs.between(centroids)
    every = torch.ones(pairs.number, 12, dtype=torch.bool)
    for source in range(12):
        products = pairs.products(source)
        scores = analogies._class_scores(pairs, products, source, every.clone())
        scores[:, source] = -1
        mask = HalfProducts(pairs)(pairs, source, products)
        assert mask.gather(1, scores.argmax(1, keepdim=True)).all()
        assert float(mask.float().mean()) < 0.25


def test_small_blocks_and_several_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    centroids = random_centroids(6, 7, 10)
    expected = {search: mine_analogies(centroids, search=search) for search in ("exact", "approximate")}
    monkeypatch.setattr(analogies, "SCORES_AT_ONCE", 120)
    monkeypatch.setattr(analogies, "CANDIDATES_AT_ONCE", 11)
    monkeypatch.setattr("cpaan.augmenters.analogies.ELEMENTS_AT_ONCE", 90)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for search, before in expected.items():
            found = mine_analogies(centroids, search=search)
            assert torch.equal(found.quadruplets, before.quadruplets)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_the_reverse_of_a_pair_has_the_reverse_of_its_partner() -> None:
    table = as_table(mine_analogies(random_centroids(4, 6, 5)))
    assert len(table) == 4 * 6 * 5
    for (a, b), (score, (c, d)) in table.items():
        assert table[b, a] == (score, (d, c))


def test_the_approximate_search_finds_nearly_all_in_a_fraction_of_the_classes() -> None:
    centroids = random_centroids(40, 20, 48)
    exact, found = (mine_analogies(centroids, search=s, classes_to_search=6) for s in ("exact", "approximate"))
    share = found.cosines / exact.cosines
    assert float((share > 0.9999).float().mean()) > 0.9
    assert float((share > 0.95).float().mean()) > 0.95
    # The same number of classes at random: the share that a shortlist without sense would have.
    pairs = CentroidPairs.between(centroids)
    shortlist = ExtremeCentroids(pairs, 6, 0.0)
    shortlist.offsets = torch.rand(shortlist.offsets.shape, generator=torch.Generator().manual_seed(0)) * 50
    nonsense = torch.cat([analogies._search(pairs, shortlist, source)[1] for source in range(40)])
    assert float((nonsense / exact.cosines[::2] > 0.9999).float().mean()) < 0.5


def test_cosines_are_those_of_the_differences_in_any_units() -> None:
    centroids = random_centroids(5, 6, 8)
    for scale, shift in ((1.0, 0.0), (1e-12, 0.0), (1e12, 0.0), (1.0, 300.0)):
        moved = centroids.double() * scale + shift
        found = mine_analogies(moved)
        A, B, C, D = moved.flatten(0, 1)[found.quadruplets.T]
        expected = torch.cosine_similarity((B - A) / scale, (D - C) / scale)
        torch.testing.assert_close(found.cosines.double(), expected, rtol=1e-4, atol=1e-5)


def test_pairs_of_equal_centroids_are_no_analogies() -> None:
    centroids = random_centroids(3, 4, 5)
    centroids[0, 2:] = centroids[0, 0]  # two distinct centroids
    centroids[1] = centroids[1, 0]  # one
    found = mine_analogies(centroids)
    check(found, expected := brute_force(centroids))
    first, second = (found.quadruplets // 4)[:, 0], (found.quadruplets // 4)[:, 2]
    assert set(first.tolist()) == set(second.tolist()) == {0, 2}
    assert len(expected) == 12 + 2 * 3  # (0, 1), (1, 2) and (1, 3) of the first class in both orders


def test_sums_of_shares_come_closest_to_the_lengths() -> None:
    pairs = CentroidPairs.between(random_centroids(3, 9, 4))
    shares = length_shares(pairs.closeness)
    for label in range(3):
        system = np.zeros((pairs.number, 9))
        rows = np.arange(pairs.number)
        system[rows, pairs.first.numpy()] = system[rows, pairs.second.numpy()] = 1
        lengths = (1 / pairs.closeness[label, pairs.first, pairs.second]).numpy()
        np.testing.assert_allclose(shares[label], np.linalg.lstsq(system, lengths, rcond=None)[0], rtol=1e-3)
    assert length_shares(torch.tensor([[[0.0, 0.25], [0.25, 0.0]]])).tolist() == [[2.0, 2.0]]


def test_constant_classes_one_centroid_and_wrong_input() -> None:
    assert len(mine_analogies(torch.ones(3, 4, 2)).cosines) == 0
    assert len(mine_analogies(random_centroids(3, 1, 2)).cosines) == 0
    assert len(mine_analogies(random_centroids(3, 1, 2), search="approximate").cosines) == 0
    assert mine_analogies(random_centroids(3, 2, 1)).cosines.tolist() == pytest.approx([1.0] * 6)
    with pytest.raises(InputError, match="search must be one of 'auto', 'exact', 'approximate', not 'fast'"):
        mine_analogies(torch.ones(3, 4, 2), search="fast")
    with pytest.raises(InputError, match="at least 2 classes"):
        mine_analogies(torch.ones(1, 4, 2))


def test_only_the_exact_search_looks_everywhere() -> None:
    centroids = random_centroids(8, 4, 6)
    check(mine_analogies(centroids, search="exact", classes_to_search=1), expected := brute_force(centroids))
    check(mine_analogies(centroids, search="approximate", classes_to_search=99), expected)
    few = as_table(mine_analogies(centroids, search="approximate", classes_to_search=1))
    assert any(few[key] != expected[key] and few[key][0] < expected[key][0] - 1e-3 for key in few)


def test_the_search_tells_of_every_class() -> None:
    told: list[tuple[int, int]] = []
    mine_analogies(random_centroids(4, 3, 2), tell=lambda done, of_all: told.append((done, of_all)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(("n_classes", "k"), [(7, 4), (3, 9)])
def test_auto_is_exact_as_long_as_the_scores_are_few(n_classes: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = CentroidPairs.between(random_centroids(n_classes, k, 5))
    scores = sum(1 for _ in product(range(n_classes), range(pairs.number), range(n_classes), range(k), range(k)))
    for most, auto in ((scores, EveryClass), (scores - 1, ExtremeCentroids)):
        monkeypatch.setattr(analogies, "MOST_EXACT", most)
        kinds = [type(analogies._shortlist(pairs, search, 2)) for search in ("auto", "exact", "approximate")]
        assert kinds == [auto, EveryClass, ExtremeCentroids]


def test_a_gpu_searches_by_half_products_unless_there_are_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analogies, "MOST_EXACT", 0)
    monkeypatch.setattr(analogies, "HalfProducts", lambda pairs: ("half products of", pairs))
    points = SimpleNamespace(device=torch.device("cuda"), shape=(3, 4, 5))
    for number, expected in ((6, HalfProducts), (0, EveryClass)):
        pairs = SimpleNamespace(points=points, number=number)
        for search in ("auto", "exact"):
            found: object = analogies._shortlist(cast(CentroidPairs, pairs), search, 2)
            assert found == ("half products of", pairs) if expected is HalfProducts else isinstance(found, EveryClass)


def test_the_typical_cosine_is_the_mean_of_the_best_where_all_are_probed() -> None:
    centroids = random_centroids(5, 4, 6)
    best = [score for score, _ in brute_force(centroids).values()]
    assert len(best) == 5 * 4 * 3
    assert analogies.typical_cosine(CentroidPairs.between(centroids)) == pytest.approx(np.mean(best), rel=1e-5)


def test_the_typical_cosine_of_many_probes_a_few_that_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = CentroidPairs.between(random_centroids(17, 6, 5))
    original, probed = analogies._class_scores, []

    def spy(pairs: CentroidPairs, products: Tensor, source: int, mask: Tensor) -> Tensor:
        probed.append((source, mask.any(1).nonzero().flatten().tolist()))
        return original(pairs, products, source, mask)

    monkeypatch.setattr(analogies, "_class_scores", spy)
    analogies.typical_cosine(pairs)
    sources, rows = [source for source, _ in probed], probed[0][1]
    assert analogies.PROBES / 2 < sum(len(chosen) for _, chosen in probed) <= analogies.PROBES
    for places, number in ((sources, 17), (rows, 15)):
        (step,) = set(np.diff(places).tolist())
        assert places[0] == 0
        assert number - step <= places[-1] < number


@pytest.mark.parametrize(
    ("on_gpu", "limit"), [(False, analogies.SCORES_AT_ONCE), (True, analogies.SCORES_AT_ONCE_ON_GPU)]
)
def test_no_more_scores_are_held_at_once_than_fit(on_gpu: bool, limit: int) -> None:
    for k in (5, 100, 2000):
        products = SimpleNamespace(is_cuda=on_gpu, shape=(k, 7, k))
        at_once = analogies._at_once(cast(Tensor, products))
        assert at_once == 1 or at_once * k**2 <= limit
        assert (at_once + 1) * k**2 > limit


@pytest.mark.filterwarnings("error")
def test_buffers_have_the_shape_of_what_they_hold() -> None:
    """Torch warns where it has to resize one."""
    for search in ("exact", "approximate"):
        assert len(mine_analogies(random_centroids(3, 6, 4), search=search).cosines) > 0
