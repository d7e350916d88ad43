"""Analogies A : B :: C : D between the centroids of two classes.

B. Hariharan and R. Girshick, "Low-shot visual recognition by shrinking and hallucinating features", ICCV 2017.

For every ordered pair of centroids (A, B) of one class, the pair (C, D) of another class that is most parallel,

(C, D) = argmax of cos(B − A, D − C), kept where the cosine is positive.

All is done in the geometry of pairs: ⟨A − B, C − D⟩ = (⟨A, C⟩ − ⟨B, C⟩) − (⟨A, D⟩ − ⟨B, D⟩), so from the products of
centroids with centroids the score of two pairs takes one subtraction and one multiplication by 1 / ‖C − D‖.

The pairs of centroids of each class, as lengths and inner products.

In which classes to look for the pair that is most parallel to a given one.

A shortlist gives, for the pairs of one class, a mask over classes; the pairs of those are then compared one by one, in
single precision.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.threads import limited_threads, threads_for

SHORTEST = 1e-5  # of the longest difference: what is shorter is rounding


@dataclass(frozen=True)
class CentroidPairs:
    """Centroids in units and about origins where pairs are compared without loss of digits."""

    points: Tensor  # (classes, k, D), the centroids of each class about their mean
    closeness: Tensor  # (classes, k, k), 1 / ‖C − D‖, and 0 where C = D
    first: Tensor  # (pairs,), the unordered pairs of k centroids
    second: Tensor  # (pairs,), the unordered pairs of k centroids

    @classmethod
    def between(cls, centroids: Tensor) -> "CentroidPairs":
        """Prepare the pairs of centroids of shape (classes, k, D).

        >>> pairs = CentroidPairs.between(torch.tensor([[[0.0], [2.0], [2.0]]]))
        >>> pairs.closeness[0] * pairs.closeness.max().reciprocal()
        tensor([[0., 1., 1.],
                [1., 0., 0.],
                [1., 0., 0.]])
        """
        points = centroids - centroids.mean(1, keepdim=True)
        largest = points.abs().max()
        points = (points / torch.where(largest > 0, largest, 1)).float()
        lengths = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        short = lengths <= SHORTEST * lengths.max()
        closeness = (1 / lengths).masked_fill(short, 0)
        k = points.shape[1]
        first, second = torch.triu_indices(k, k, 1, device=points.device)
        return cls(points, closeness, first, second)

    @property
    def number(self) -> int:
        """Unordered pairs of a class."""
        return len(self.first)

    def products(self, source: int) -> Tensor:
        """Give the inner products of the centroids of one class with all, of shape (k, classes, k)."""
        products: Tensor = torch.tensordot(self.points[source], self.points, dims=([1], [2]))
        return products

    def row_closeness(self, source: int) -> Tensor:
        """Give 1 / ‖A − B‖ of the unordered pairs of one class."""
        return self.closeness[source][self.first, self.second]


SMALLEST_SYSTEM = 3  # two centroids have one length, which they share
ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE_ON_GPU = 2**18, 2**28


class Shortlist(Protocol):
    """Chooses classes for each pair of one class."""

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Give a mask of shape (pairs, classes), in which the source's own column has no meaning."""


class EveryClass:
    """Look everywhere."""

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose all classes."""
        return torch.ones(pairs.number, len(pairs.points), dtype=torch.bool, device=products.device)


class ExtremeCentroids:
    """Look where the extreme centroids along A − B are farthest apart: an approximation.

    Let p_C = ⟨A − B, C⟩ / ‖A − B‖. A pair (C, D) has a larger cosine than τ where p_C − p_D − τ ‖C − D‖ > 0. With
    lengths replaced by sums, ‖C − D‖ ≈ o_C + o_D in least squares, the largest value of this falls into two parts,

    max over C of (p_C − τ o_C) − min over D of (p_D + τ o_D)

    which takes k steps a class instead of k². The classes where it is largest are chosen.

    Parameters
    ----------
    pairs : of all classes
    number : classes to choose for each pair
    cosine : τ, about the best cosine that is to be found
    """

    def __init__(self, pairs: CentroidPairs, number: int, cosine: float) -> None:
        self.number = min(number, len(pairs.points) - 1)
        self.offsets = cosine * length_shares(pairs.closeness)

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose the classes with the largest values."""
        table = torch.cat(list(self._rows(pairs, source, products)))
        table[:, source] = -torch.inf
        chosen = table.topk(self.number, dim=1).indices
        return torch.zeros_like(table, dtype=torch.bool).scatter_(1, chosen, True)

    def _rows(self, pairs: CentroidPairs, source: int, products: Tensor) -> list[Tensor]:
        limit = ELEMENTS_AT_ONCE_ON_GPU if products.is_cuda else ELEMENTS_AT_ONCE
        at_once = max(1, limit // products[0].numel())
        buffer = products.new_empty(at_once, *products.shape[1:])
        k = len(products)
        return [
            self._values(products[first] - products[start : start + at_once], closeness, buffer)
            for first in range(k - 1)
            for start, closeness in _parts(pairs.closeness[source, first], first + 1, at_once)
        ]

    def _values(self, profiles: Tensor, closeness: Tensor, buffer: Tensor) -> Tensor:
        profiles *= closeness.view(-1, 1, 1)
        highest = torch.sub(profiles, self.offsets, out=buffer[: len(profiles)]).amax(2)
        return highest - profiles.add_(self.offsets).amin(2)


def _parts(closeness: Tensor, begin: int, size: int) -> list[tuple[int, Tensor]]:
    return [(start, closeness[start : start + size]) for start in range(begin, len(closeness), size)]


def length_shares(closeness: Tensor) -> Tensor:
    """Solve ‖C − D‖ ≈ o_C + o_D over the pairs C ≠ D of each class in least squares.

    >>> length_shares(1 / torch.tensor([[[torch.inf, 3.0, 4.0], [3.0, torch.inf, 5.0], [4.0, 5.0, torch.inf]]]))
    tensor([[1., 2., 3.]])
    """
    k = closeness.shape[1]
    lengths = torch.where(closeness > 0, 1 / closeness, 0)
    sums = lengths.sum(2)
    if k < SMALLEST_SYSTEM:
        return sums / 2
    return (sums - sums.sum(1, keepdim=True) / (2 * (k - 1))) / (k - 2)


class HalfProducts:
    """Look where a pair is most parallel in half precision: exact, for all that could win are chosen.

    The differences of a class lie in the span of its centroids. In an orthonormal basis of it, a class takes k numbers
    for each direction instead of D, and all cosines with it are one product of matrices.

    Parameters
    ----------
    pairs : of all classes
    dtype : of the products; half precision is for GPUs
    """

    def __init__(self, pairs: CentroidPairs, dtype: torch.dtype = torch.float16) -> None:
        self.dtype = dtype
        # Rounding changes an entry of two unit vectors by at most eps / 2 of itself, so by Cauchy–Schwarz their
        # product by at most eps, and the result by eps / 2; a winner may lose that and another one gain it.
        self.margin = 3.5 * torch.finfo(dtype).eps + 1e-6
        self.basis = torch.linalg.qr(pairs.points.mT).Q  # (classes, D, rank)
        padding = -self.basis.shape[2] % 8  # tensor cores take multiples of 8
        self.basis = torch.nn.functional.pad(self.basis, (0, padding))
        self.directions = self._directions(pairs, pairs.points @ self.basis, pairs.closeness)

    def __call__(self, pairs: CentroidPairs, source: int, products: Tensor) -> Tensor:
        """Choose all classes within rounding of the best one."""
        table = products.new_empty(pairs.number, len(pairs.points))
        at_once = max(1, ELEMENTS_AT_ONCE_ON_GPU // pairs.number**2)
        for start in range(0, table.shape[1], at_once):
            part = slice(start, start + at_once)
            coordinates = pairs.points[source] @ self.basis[part]
            rows = self._directions(pairs, coordinates, pairs.closeness[source])
            cosines = rows @ self.directions[part].mT
            # Both orders of (C, D) at once: their cosines differ in sign.
            table[:, part] = torch.linalg.vector_norm(cosines, torch.inf, dim=2).T.float()
        table[:, source] = -1
        return table >= table.amax(1, keepdim=True) - self.margin

    def _directions(self, pairs: CentroidPairs, coordinates: Tensor, closeness: Tensor) -> Tensor:
        """Give (A − B) / ‖A − B‖ of all unordered pairs, in the coordinates of a class."""
        differences = coordinates[:, pairs.first] - coordinates[:, pairs.second]
        return (differences * closeness[..., pairs.first, pairs.second].unsqueeze(-1)).to(self.dtype)


SEARCHES = ("auto", "exact", "approximate")
MOST_EXACT = 10**11  # scores of ordered pairs: about two minutes on two cores
CLASSES_TO_SEARCH = 16
# Pair scores held at a time: what a core's cache holds, or enough to keep a GPU busy.
SCORES_AT_ONCE, SCORES_AT_ONCE_ON_GPU = 2**18, 2**28
CANDIDATES_AT_ONCE = 2**14
PROBES = 64


@dataclass(frozen=True)
class Analogies:
    """Quadruplets A : B :: C : D."""

    # (n, 4): A, B, C, D as indices into the centroids of all classes, one class after another.
    quadruplets: Tensor
    cosines: Tensor  # (n,): cos(B − A, D − C), all positive.


def mine_analogies(
    centroids: Tensor,
    *,
    search: str = "auto",
    classes_to_search: int = CLASSES_TO_SEARCH,
    tell: Callable[[int, int], None] | None = None,
) -> Analogies:
    """Find the most parallel pair in another class for every ordered pair of centroids of a class.

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
