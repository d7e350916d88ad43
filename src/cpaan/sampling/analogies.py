"""Analogies A : B :: C : D between the centroids of two classes.

B. Hariharan and R. Girshick, "Low-shot visual recognition by shrinking and hallucinating features", ICCV 2017.

For every ordered pair of centroids (A, B) of one class, the pair (C, D) of another class that is most parallel,

(C, D) = argmax of cos(B − A, D − C), kept where the cosine is positive.

All is done in the geometry of pairs: ⟨A − B, C − D⟩ = (⟨A, C⟩ − ⟨B, C⟩) − (⟨A, D⟩ − ⟨B, D⟩), so from the products of
centroids with centroids the score of two pairs takes one subtraction and one multiplication by 1 / ‖C − D‖.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.sampling.analogy_shortlists import EveryClass, ExtremeCentroids, HalfProducts, Shortlist
from cpaan.sampling.centroid_pairs import CentroidPairs
from cpaan.threads import limited_threads, threads_for

SEARCHES = ("auto", "exact", "approximate")
MOST_EXACT = 10**11  # scores of ordered pairs: about two minutes on two cores
CLASSES_TO_SEARCH = 16
# Pair scores held at a time: what a core's cache holds, or enough to keep a GPU busy.
SCORES_AT_ONCE, SCORES_AT_ONCE_ON_GPU = 2**18, 2**28
CANDIDATES_AT_ONCE = 2**14
PROBES = 64


@dataclass(frozen=True)
class Analogies:
    """Quadruplets A : B :: C : D.

    Attributes
    ----------
    quadruplets : integer Tensor of shape (n, 4)
        A, B, C, D as indices into the centroids of all classes, one class after another.
    cosines : Tensor of shape (n,)
        cos(B − A, D − C), all positive.
    """

    quadruplets: Tensor
    cosines: Tensor


def mine_analogies(
    centroids: Tensor,
    *,
    search: str = "auto",
    classes_to_search: int = CLASSES_TO_SEARCH,
    tell: Callable[[int, int], None] | None = None,
) -> Analogies:
    """Find the most parallel pair in another class for every ordered pair of centroids of a class.

    Parameters
    ----------
    centroids : Tensor of shape (classes, k, D)
        Pairs of equal centroids are left out, so a class with fewer may repeat some.
    search : {"auto", "exact", "approximate"}
        The approximate search looks at the pairs of a few promising classes only, for each pair (A, B).
        ``"auto"`` is exact on a GPU, and on a CPU where that takes no more than a few minutes.
    classes_to_search : int
        How many classes the approximate search looks at.
    tell : callable, optional
        Called with the number of classes done, and of all.

    >>> first = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> second = torch.tensor([[5.0, 5.0], [5.0, 9.0], [8.0, 5.0]])
    >>> found = mine_analogies(torch.stack([first[[0, 1, 1]], second]))
    >>> found.quadruplets[:2], found.cosines[:2]
    (tensor([[0, 1, 3, 5],
            [1, 0, 5, 3]]), tensor([1., 1.]))
    """
    n_classes = len(centroids)
    if search not in SEARCHES:
        raise InputError(f"search must be one of {', '.join(map(repr, SEARCHES))}, not {search!r}")
    if n_classes == 1:
        raise InputError("analogies need at least 2 classes; give more base classes")
    pairs = CentroidPairs.between(centroids)
    shortlist = _shortlist(pairs, search, classes_to_search)
    found = []
    with _workers(pairs) as each:
        for part in each(partial(_search, pairs, shortlist), range(n_classes)):
            found.append(part)
            if tell is not None:
                tell(len(found), n_classes)
    return _both_directions(torch.cat([part[0] for part in found]), torch.cat([part[1] for part in found]))


@contextmanager
def _workers(pairs: CentroidPairs) -> Iterator[Callable[..., Iterator[tuple[Tensor, Tensor]]]]:
    """Give a `map` that uses the threads torch has, each for a class of its own: blocks are too small to be shared."""
    n_classes, k = pairs.points.shape[:2]
    with threads_for(float(pairs.number) * n_classes * k**2):
        threads = torch.get_num_threads()
    if pairs.points.device.type != "cpu" or threads == 1:
        yield map
        return
    with limited_threads(1), ThreadPoolExecutor(threads) as pool:
        yield pool.map


def _shortlist(pairs: CentroidPairs, search: str, classes_to_search: int) -> Shortlist:
    on_gpu = pairs.points.device.type == "cuda"
    n_classes, k = pairs.points.shape[:2]
    cheap = on_gpu or pairs.number * n_classes**2 * k**2 <= MOST_EXACT
    if search == "exact" or (search == "auto" and cheap) or pairs.number == 0:
        return HalfProducts(pairs) if on_gpu and pairs.number else EveryClass()
    return ExtremeCentroids(pairs, classes_to_search, typical_cosine(pairs))


def typical_cosine(pairs: CentroidPairs) -> float:
    """Average the best cosine over a few pairs, spread over all."""
    n_classes = len(pairs.points)
    found = []
    for source in range(0, n_classes, -(-n_classes // 8)):
        rows = torch.arange(0, pairs.number, -(-pairs.number // (PROBES // 8)), device=pairs.points.device)
        mask = torch.zeros(pairs.number, n_classes, dtype=torch.bool, device=pairs.points.device)
        mask[rows] = True
        mask[:, source] = False
        found.append(_class_scores(pairs, pairs.products(source), source, mask)[rows].amax(1))
    return float(torch.cat(found).mean())


def _search(pairs: CentroidPairs, shortlist: Shortlist, source: int) -> tuple[Tensor, Tensor]:
    """Search for the unordered pairs of one class; gives quadruplets and cosines."""
    products = pairs.products(source)
    mask = shortlist(pairs, source, products)
    mask[:, source] = False
    best, classes = _class_scores(pairs, products, source, mask).max(1)
    rows = (best > 0).nonzero().squeeze(1)
    classes = classes[rows]
    k = pairs.points.shape[1]
    places = [
        _best_pair(profiles, pairs.closeness[block])
        for profiles, block in _blocks(pairs, products, rows, classes, gather=True)
    ]
    found = torch.cat([*places, rows.new_empty(0, 2)])
    own = torch.stack([pairs.first[rows], pairs.second[rows]], dim=1)
    return torch.cat([own + source * k, found + classes.unsqueeze(1) * k], dim=1), best[rows]


def _class_scores(pairs: CentroidPairs, products: Tensor, source: int, mask: Tensor) -> Tensor:
    """Give the best cosine of each pair of the source class in each class of its shortlist, −1 elsewhere."""
    classes, rows = mask.T.nonzero(as_tuple=True)
    gather = products.is_cuda
    k = products.shape[0]
    buffer = products.new_empty(_at_once(products), k, k)
    values = [
        _scores(profiles, pairs.closeness[block], buffer).flatten(1).amax(1)
        for profiles, block in _blocks(pairs, products, rows, classes, gather=gather)
    ]
    table = products.new_full(mask.shape, -1.0)
    table[rows, classes] = torch.cat([*values, products.new_empty(0)]) * pairs.row_closeness(source)[rows]
    return table


def _scores(profiles: Tensor, closeness: Tensor, buffer: Tensor) -> Tensor:
    """(p_C − p_D) / ‖C − D‖ for all ordered pairs (C, D), of shape (rows, k, k)."""
    scores = torch.sub(profiles.unsqueeze(2), profiles.unsqueeze(1), out=buffer[: len(profiles)])
    return scores.mul_(closeness)


def _best_pair(profiles: Tensor, closeness: Tensor) -> Tensor:
    k = profiles.shape[1]
    scores = _scores(profiles, closeness, profiles.new_empty(len(profiles), k, k))
    # In two steps: torch finds the place of a maximum far slower than its value.
    first = scores.amax(2).argmax(1)
    second = scores.gather(1, first.view(-1, 1, 1).expand(-1, 1, k)).squeeze(1).argmax(1)
    return torch.stack([first, second], dim=1)


def _at_once(products: Tensor) -> int:
    limit = SCORES_AT_ONCE_ON_GPU if products.is_cuda else SCORES_AT_ONCE
    return max(1, limit // products.shape[0] ** 2)


def _blocks(
    pairs: CentroidPairs, products: Tensor, rows: Tensor, classes: Tensor, *, gather: bool
) -> Iterator[tuple[Tensor, Tensor | int]]:
    """Give p_C = ⟨A − B, C⟩ over the centroids C of a class, and that class, for candidates of (A, B) and class."""
    size = _at_once(products)
    for start in range(0, len(rows), max(size, CANDIDATES_AT_ONCE)):
        part = slice(start, start + max(size, CANDIDATES_AT_ONCE))
        profiles = products[pairs.first[rows[part]], classes[part]] - products[pairs.second[rows[part]], classes[part]]
        if gather:
            yield from zip(profiles.split(size), classes[part].split(size), strict=True)
            continue
        # Sorted by class: one class at a time needs no copies of its distances.
        numbers, counts = torch.unique_consecutive(classes[part], return_counts=True)
        for number, run in zip(numbers.tolist(), profiles.split(counts.tolist()), strict=True):
            for block in run.split(size):
                yield block, number


def _both_directions(quadruplets: Tensor, cosines: Tensor) -> Analogies:
    """Add B : A :: D : C to every A : B :: C : D: the differences change their signs together."""
    turned = quadruplets[:, [1, 0, 3, 2]]
    return Analogies(torch.stack([quadruplets, turned], dim=1).flatten(0, 1), cosines.repeat_interleave(2))
