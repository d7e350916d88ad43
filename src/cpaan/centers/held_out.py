"""Base classes held out as if novel: trials on which estimates of class centres are compared.

A round parts the base classes into folds at random. The classes of a fold play the novel ones; the others stay base
classes, and the moments of those alone are known.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.centers.class_center import lengths_about
from cpaan.math.linear_gaussian import ClassMoments
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.training.bank import ClassBank

SHOTS = (1, 2, 5, 10, 20)
FOLDS = 4
MOST_EXAMPLES, QUERIES = 120, 30
# With fewer, accuracy on held-out classes tells next to nothing.
FEWEST_CLASSES, FEWEST_QUERIES, FEWEST_HELD_OUT = 6, 5, 2
# Bounds on time and memory for large banks.
MOST_CLASSES, MOST_NUMBERS = 400, 16 * NUMBERS_IN_BLOCK
# A round decomposes some hundred matrices of size D, at a cost of about D³ each.
MOST_WORK = 5e9


@dataclass(frozen=True)
class Shift:
    """How examples are moved that are to look like those of classes which the features were not trained on.

    x → μ + s (l_b − μ) + (x − l_b)

    Attributes
    ----------
    held_out : s of held-out classes
    queries : s of the queries of remaining classes, of which the features may know the examples but not new ones
    """

    held_out: float = 1.0
    queries: float = 1.0


AS_THEY_ARE = Shift()


@dataclass(frozen=True)
class Fold:
    """Some classes held out.

    Attributes
    ----------
    moments : of the classes that remain
    mean : Tensor of shape (D,), μ of them
    example_length, center_length : R and r̄ of them
    held_out : examples of each class that is held out
    queries, query_labels : examples of the remaining classes, which GLSL classifies too
    """

    moments: ClassMoments
    mean: Tensor
    example_length: float
    center_length: float
    held_out: tuple[Tensor, ...]
    queries: Tensor
    query_labels: Tensor


@dataclass(frozen=True)
class Trial:
    """K shots of each held-out class, and queries; everything about μ as the origin.

    Attributes
    ----------
    shots : Tensor of shape (N, K, D)
    queries : Tensor of shape (Q, D), those of held-out classes first
    labels : Tensor of shape (Q_novel,), held-out classes of the first queries
    best_base : Tensor of shape (Q,), score of the nearest remaining class
    base_hits : bool Tensor of shape (Q − Q_novel,), whether that is right for the other queries
    """

    shots: Tensor
    queries: Tensor
    labels: Tensor
    best_base: Tensor
    base_hits: Tensor

    def accuracies(self, scores: Tensor) -> Tensor:
        """Give LSL and GLSL accuracy in percent, (…, 2), from scores of the held-out classes (…, Q, N)."""
        best, nearest = scores.max(-1)
        n, best_base = len(self.labels), self.best_base.to(scores.dtype)
        hits = nearest[..., :n] == self.labels
        novel_hits = (hits & (best[..., :n] > best_base[:n])).sum(-1)
        base_hits = (self.base_hits & (best[..., n:] <= best_base[n:])).sum(-1)
        lsl = hits.double().mean(-1)
        return 100 * torch.stack([lsl, (novel_hits + base_hits).double() / len(self.queries)], dim=-1)

    def of_centers(self, centers: Tensor) -> Tensor:
        """Give the accuracies of nearest prototypes (N, D) about μ."""
        return self.accuracies(nearness(self.queries, centers))


def nearness(queries: Tensor, centers: Tensor) -> Tensor:
    """Score 2 x·c − ‖c‖², which is largest for the nearest centre."""
    return 2 * queries @ centers.T - centers.square().sum(1)


def class_sample(bank: ClassBank, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw examples of each class, in random order and double precision, on the CPU."""
    stride = -(-bank.n_classes // MOST_CLASSES)
    labels = range(0, bank.n_classes, stride)
    most = max(1, min(MOST_EXAMPLES, MOST_NUMBERS // (len(labels) * bank.dimension)))
    found = []
    for label in labels:
        order = torch.randperm(int(bank.counts[label]), generator=generator)[:most].to(bank.device)
        found.append(bank.rows[bank.starts[label] + order].cpu().double())
    return tuple(found)


def affordable_rounds(rounds: int, dimension: int) -> int:
    """Give fewer rounds where features are many, down to one.

    >>> affordable_rounds(5, 512), affordable_rounds(5, 1024), affordable_rounds(5, 2048)
    (5, 4, 1)
    """
    return max(1, min(rounds, int(MOST_WORK / dimension**3)))


def usable_shots(sample: Sequence[Tensor]) -> tuple[int, ...]:
    """Give the numbers of shots that enough base classes have beside queries; none where there are too few classes."""
    sizes = [len(examples) for examples in sample]
    return tuple(k for k in SHOTS if sum(size >= k + FEWEST_QUERIES for size in sizes) >= FEWEST_CLASSES)


def draw_folds(
    sample: Sequence[Tensor], rounds: int, generator: torch.Generator, shift: Shift = AS_THEY_ARE
) -> Iterator[Fold]:
    """Part the classes into folds, several times over, and hold out each fold in turn."""
    means = torch.stack([examples.mean(0) for examples in sample])
    counts = torch.tensor([len(examples) for examples in sample])
    scatter = _scatter(sample, means, range(len(sample)))
    for _ in range(rounds):
        order = torch.randperm(len(sample), generator=generator)
        for fold in range(FOLDS):
            held, rest = order[fold::FOLDS].tolist(), _others(order, fold)
            mean = means[rest].mean(0)
            left = scatter - _scatter(sample, means, held)
            within = left / max(int(counts[rest].sum()) - len(rest), 1)
            lengths = torch.cat([lengths_about(sample[c], mean) for c in rest])
            queries = [sample[c][torch.randint(len(sample[c]), (QUERIES,), generator=generator)] for c in rest]
            yield Fold(
                moments=ClassMoments(means[rest], counts[rest], within),
                mean=mean,
                example_length=float(lengths.mean()),
                center_length=float(lengths_about(means[rest], mean).mean()),
                held_out=tuple(sample[c] - (1 - shift.held_out) * (means[c] - mean) for c in held),
                queries=torch.cat(
                    [x - (1 - shift.queries) * (means[c] - mean) for x, c in zip(queries, rest, strict=True)]
                ),
                query_labels=torch.arange(len(rest)).repeat_interleave(QUERIES),
            )


def draw_trial(fold: Fold, k: int, generator: torch.Generator) -> Trial | None:
    """Draw K shots of each held-out class that has queries beside them; None with fewer than two such classes."""
    classes = [examples for examples in fold.held_out if len(examples) >= k + FEWEST_QUERIES]
    if len(classes) < FEWEST_HELD_OUT:
        return None
    mixed = [examples[torch.randperm(len(examples), generator=generator)[: k + QUERIES]] for examples in classes]
    novel = [examples[k:] for examples in mixed]
    queries = torch.cat([*novel, fold.queries]) - fold.mean
    labels = torch.cat([torch.full((len(examples),), c) for c, examples in enumerate(novel)])
    best, nearest = nearness(queries, fold.moments.means - fold.mean).max(1)
    return Trial(
        shots=torch.stack([examples[:k] for examples in mixed]) - fold.mean,
        queries=queries,
        labels=labels,
        best_base=best,
        base_hits=nearest[len(labels) :] == fold.query_labels,
    )


def _others(order: Tensor, fold: int) -> list[int]:
    return [int(c) for place, c in enumerate(order) if place % FOLDS != fold]


def _scatter(sample: Sequence[Tensor], means: Tensor, classes: Iterable[int]) -> Tensor:
    """Add up (x − l_c)(x − l_c)ᵀ over the examples of some classes."""
    total = means.new_zeros((means.shape[1], means.shape[1]))
    for c in classes:
        deviations = sample[c] - means[c]
        total.addmm_(deviations.T, deviations)
    return total
