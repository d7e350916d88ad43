"""Cross-validation over base classes, some of which are held out as if novel.

One loop serves every choice that is made without novel classes: the constants of the calibrated centre, the number of
examples per class, when to stop training, and the advice on what examples are worth. A round parts the base classes
into folds at random. The classes of a fold play the novel ones, of which K shots are known; the others stay base
classes, and only their moments are known.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from cpaan.errors import InputError
from cpaan.math.linear_gaussian import ClassMoments
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.training.bank import ClassBank

SHOTS = (1, 2, 5, 10, 20)
FOLDS = 4
MOST_EXAMPLES, QUERIES = 120, 30
# With fewer, accuracy on held-out classes says next to nothing.
FEWEST_CLASSES, FEWEST_QUERIES, FEWEST_HELD_OUT, FEWEST_REMAINING = 6, 5, 2, 4
# Bounds on time and memory for large banks.
MOST_CLASSES, MOST_NUMBERS = 400, 16 * NUMBERS_IN_BLOCK
# A round decomposes some hundred matrices of size D, at a cost of about D³ each.
MOST_WORK = 5e9
CONFIDENCE = 0.95
# Early stopping: shots and queries of a held-out class, and the share of classes held out by default.
STOPPING_SHOTS, STOPPING_QUERIES = 5, 50
AUTO, AUTO_SHARE, FEWEST_FOR_AUTO, MOST_FOR_AUTO = "auto", 0.25, 20, 50
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Shift:
    """Pull of held-out classes towards the mean of all, x → μ + s (l_b − μ) + (x − l_b)."""

    held_out: float = 1.0  # s of held-out classes
    queries: float = 1.0  # s of the queries of remaining classes


AS_THEY_ARE = Shift()


@dataclass(frozen=True)
class Fold:
    """Some classes held out."""

    rest: tuple[Tensor, ...]  # examples of each class that remains
    moments: ClassMoments  # of these
    mean: Tensor  # (D,), μ of them
    example_length: float  # R, mean of ‖x − μ‖
    center_length: float  # r̄, mean of ‖l_b − μ‖
    held_out: tuple[Tensor, ...]  # examples of each class that is held out
    queries: Tensor  # examples of the remaining classes, which GLSL classifies too
    query_labels: Tensor

    @cached_property
    def bank(self) -> ClassBank:
        """The classes that remain."""
        return ClassBank.from_examples(torch.cat(self.rest), part_labels(self.rest), len(self.rest))


@dataclass(frozen=True)
class Trial:
    """K shots of each held-out class, and queries; everything about μ as the origin."""

    shots: Tensor  # (N, K, D)
    queries: Tensor  # (Q, D), those of held-out classes first
    labels: Tensor  # (Q_novel,), held-out classes of the first queries
    best_base: Tensor  # (Q,), score of the nearest remaining class
    base_hits: Tensor  # (Q − Q_novel,), whether that is right for the other queries

    def accuracies(self, scores: Tensor) -> Tensor:
        """Return LSL and GLSL accuracy in percent, (…, 2), from scores of the held-out classes (…, Q, N)."""
        best, nearest = scores.max(-1)
        n, best_base = len(self.labels), self.best_base.to(scores.dtype)
        hits = nearest[..., :n] == self.labels
        novel_hits = (hits & (best[..., :n] > best_base[:n])).sum(-1)
        base_hits = (self.base_hits & (best[..., n:] <= best_base[n:])).sum(-1)
        lsl = hits.double().mean(-1)
        return 100 * torch.stack([lsl, (novel_hits + base_hits).double() / len(self.queries)], dim=-1)

    def of_centers(self, centers: Tensor) -> Tensor:
        """Return the accuracies of nearest prototypes (N, D) about μ."""
        return self.accuracies(nearness(self.queries, centers))


def cross_validate(
    sample: Sequence[Tensor],
    rounds: int,
    generator: torch.Generator,
    prepare: Callable[[Fold], Callable[[Trial, int], ResultT]],
    shift: Shift = AS_THEY_ARE,
) -> dict[int, list[ResultT]]:
    """Evaluate trials of every usable number of shots in every fold; return the results by K, without empty lists.

    `prepare` is called once for a fold and returns the function that evaluates its trials.
    """
    found: dict[int, list[ResultT]] = {k: [] for k in usable_shots(sample)}
    for fold in draw_folds(sample, rounds, generator, shift) if found else ():
        if not fold.center_length:
            continue
        evaluate = prepare(fold)
        for k, of_k in found.items():
            trial = draw_trial(fold, k, generator)
            if trial is not None:
                of_k.append(evaluate(trial, k))
    return {k: of_k for k, of_k in found.items() if of_k}


def draw_folds(
    sample: Sequence[Tensor],
    rounds: int,
    generator: torch.Generator,
    shift: Shift = AS_THEY_ARE,
    *,
    turns: int = FOLDS,
    queries: Sequence[Tensor] | None = None,
) -> Iterator[Fold]:
    """Part the classes into folds, several times over, and hold out the first `turns` folds in turn.

    Queries of remaining classes are given for each class, or drawn from the examples.
    """
    means = torch.stack([examples.mean(0) for examples in sample])
    counts = torch.tensor([len(examples) for examples in sample])
    scatter = _scatter(sample, means, range(len(sample)))
    for _ in range(rounds):
        order = torch.randperm(len(sample), generator=generator)
        for fold in range(turns):
            held = order[fold::FOLDS].tolist()
            rest = [int(c) for place, c in enumerate(order) if place % FOLDS != fold]
            mean = means[rest].mean(0)
            within = (scatter - _scatter(sample, means, held)) / max(int(counts[rest].sum()) - len(rest), 1)
            lengths = torch.cat([lengths_about(sample[c], mean) for c in rest])
            asked = [_drawn(sample[c], generator) if queries is None else queries[c] for c in rest]
            pulled = [x - (1 - shift.queries) * (means[c] - mean) for x, c in zip(asked, rest, strict=True)]
            yield Fold(
                rest=tuple(sample[c] for c in rest),
                moments=ClassMoments(means[rest], counts[rest], within),
                mean=mean,
                example_length=float(lengths.mean()),
                center_length=float(lengths_about(means[rest], mean).mean()),
                held_out=tuple(sample[c] - (1 - shift.held_out) * (means[c] - mean) for c in held),
                queries=torch.cat(pulled),
                query_labels=part_labels(asked),
            )


def draw_trial(fold: Fold, k: int, generator: torch.Generator) -> Trial | None:
    """Draw K shots of each held-out class with enough queries left; None with fewer than two such classes."""
    classes = [examples for examples in fold.held_out if len(examples) >= k + FEWEST_QUERIES]
    if len(classes) < FEWEST_HELD_OUT:
        return None
    mixed = [examples[torch.randperm(len(examples), generator=generator)[: k + QUERIES]] for examples in classes]
    shots, novel, labels = shots_and_queries(mixed, k)
    queries = torch.cat([novel, fold.queries]) - fold.mean
    best, nearest = nearness(queries, fold.moments.means - fold.mean).max(1)
    base_hits = nearest[len(labels) :] == fold.query_labels
    return Trial(shots - fold.mean, queries, labels, best, base_hits)


def shots_and_queries(classes: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the examples of each class into K shots (N, K, D) and queries (Q, D) with their labels."""
    queries = [examples[k:] for examples in classes]
    return torch.stack([examples[:k] for examples in classes]), torch.cat(queries), part_labels(queries)


def nearness(queries: Tensor, centers: Tensor) -> Tensor:
    """Score 2 x·c − ‖c‖², which is largest for the nearest centre."""
    return 2 * queries @ centers.T - centers.square().sum(1)


def lengths_about(points: Tensor, origin: Tensor) -> Tensor:
    """Return ‖x − o‖ of every row."""
    found: Tensor = (points - origin).norm(dim=-1)
    return found


def part_labels(parts: Sequence[Tensor]) -> Tensor:
    """Label the rows of each part with its place."""
    return torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))


def class_sample(bank: ClassBank, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw examples of each class, in random order and double precision, on the CPU; thin out large banks."""
    labels = torch.arange(0, bank.n_classes, -(-bank.n_classes // MOST_CLASSES))
    most = max(1, min(MOST_EXAMPLES, MOST_NUMBERS // (len(labels) * bank.dimension)))
    found = some_examples(bank, labels, most, generator)
    return tuple(found.of_class(c).cpu().double() for c in range(len(labels)))


def some_examples(bank: ClassBank, classes: Tensor, most: int, generator: torch.Generator) -> ClassBank:
    """Take up to `most` random examples of some classes; prototypes stay those of all their examples."""
    parts = []
    for label in classes.tolist():
        order = torch.randperm(int(bank.counts[label]), generator=generator)[:most].to(bank.device)
        parts.append(bank.rows[bank.starts[label] + order])
    classes = classes.to(bank.device)
    counts = bank.counts[classes].clamp_max(most)
    return ClassBank(torch.cat(parts), counts, counts.cumsum(0) - counts, bank.prototypes[classes], int(counts.max()))


def usable_shots(sample: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the numbers of shots for which enough base classes have queries left."""
    sizes = [len(examples) for examples in sample]
    return tuple(k for k in SHOTS if sum(size >= k + FEWEST_QUERIES for size in sizes) >= FEWEST_CLASSES)


def affordable_rounds(rounds: int, dimension: int) -> int:
    """Return fewer rounds where features are many, down to one.

    >>> affordable_rounds(5, 512), affordable_rounds(5, 1024), affordable_rounds(5, 2048)
    (5, 4, 1)
    """
    return max(1, min(rounds, int(MOST_WORK / dimension**3)))


def corrected_interval(values: Sequence[float], ratio: float = 1 / (FOLDS - 1)) -> tuple[float, float]:
    """Return the mean over folds and the half-width of its 95 % interval, infinite for a single fold.

    Folds share base classes, so the interval is that of C. Nadeau and Y. Bengio, "Inference for the generalization
    error", Machine Learning 52, 2003: Student's t with the variance (1/n + held out / remaining) s².

    >>> mean, half_width = corrected_interval([1.0, 2.0, 3.0], ratio=0.0)
    >>> mean, round(half_width, 4)
    (2.0, 2.4841)
    """
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return mean, float("inf")
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    return mean, quantile * float(np.std(values, ddof=1)) * (1 / n + ratio) ** 0.5


def share_to_hold_out(held_out: float | str, counts: Tensor, *, look: bool) -> float:
    """Return the share of classes to hold out from training: the given one, or for ``"auto"`` a quarter of the large.

    ``"auto"`` holds out at most fifty classes, and none where training does not `look` at the score or fewer than
    twenty classes have enough examples.

    >>> [share_to_hold_out("auto", torch.full((n,), 30), look=True) for n in (19, 20, 1000)]
    [0.0, 0.25, 0.05]
    """
    if not isinstance(held_out, str):
        return held_out
    if held_out != AUTO:
        raise InputError(f"held_out must be a share of the base classes, or {AUTO!r}, not {held_out!r}")
    large = int((counts >= STOPPING_SHOTS + FEWEST_QUERIES).sum())
    return min(AUTO_SHARE * large, MOST_FOR_AUTO) / len(counts) if look and large >= FEWEST_FOR_AUTO else 0.0


def choose_held_out(counts: Tensor, share: float, seed: int, first: int = 0) -> Tensor | None:
    """Choose classes to hold out, among those from `first` on with enough examples; None for a share of 0.

    >>> len(choose_held_out(torch.full((12,), 30), 0.25, seed=0))
    3
    """
    if not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise InputError(f"held_out must be a share of the base classes, from 0 to below 1, not {share!r}")
    if share == 0:
        return None
    fewest = STOPPING_SHOTS + FEWEST_QUERIES
    large = (counts[first:] >= fewest).nonzero().squeeze(1).cpu() + first
    number = max(FEWEST_HELD_OUT, round(share * (len(counts) - first)))
    if number > len(large) or len(counts) - number < FEWEST_REMAINING:
        raise InputError(
            f"held_out={share} would hold out {number} of {len(counts)} base classes; {len(large)} that may be chosen "
            f"have the {fewest} examples it takes, and {FEWEST_REMAINING} must remain"
        )
    order = torch.randperm(len(large), generator=torch.Generator().manual_seed(seed))
    return large[order[:number]].sort().values


def _drawn(examples: Tensor, generator: torch.Generator) -> Tensor:
    return examples[torch.randint(len(examples), (QUERIES,), generator=generator)]


def _scatter(sample: Sequence[Tensor], means: Tensor, classes: Iterable[int]) -> Tensor:
    """Add up (x − l_c)(x − l_c)ᵀ over the examples of some classes."""
    total = means.new_zeros((means.shape[1], means.shape[1]))
    for c in classes:
        deviations = sample[c] - means[c]
        total.addmm_(deviations.T, deviations)
    return total
