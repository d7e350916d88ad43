"""Summaries of base classes, which replace the base data in a trained model, and how two of them merge.

Of n₁ examples with mean l₁ and covariance Σ₁, of which a summary is known, and n₂ further ones, with w = n / (n₁ + n₂):

l = w₁ l₁ + w₂ l₂,   Σ = w₁ Σ₁ + w₂ Σ₂ + w₁ w₂ (l₁ − l₂)(l₁ − l₂)ᵀ
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.data.untrusted import require_arrays, require_counts
from cpaan.math.covariance import leading_rows, quick_truncated_factors, truncated_factor
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.training.bank import ClassBank

# Decompositions of matrices of size s cost about s³; so many take a minute on two cores.
MOST_EXACT = 2e11
DRAWN = 100  # examples drawn from the Gaussian of a class of which no example was kept
MOST_STORED = 1000  # examples of a class, of a bank that is too large for memory
_FORMS = {
    "base.counts": "C int64",
    "base.prototypes": "CD float32",
    "base.factors": "CRD float16",
    "base.tails": "C float32",
}
_RESERVOIR_FORMS = {"reservoir.deviations": "ND float16", "reservoir.counts": "C int64"}


@dataclass(frozen=True)
class BaseSummary:
    """Prototypes, covariances and a reservoir of examples of the base classes, in the model's units."""

    counts: Tensor  # (C,) how many examples each class had
    prototypes: Tensor  # (C, D)
    factors: Tensor  # (C, r, D) in half precision; Fᵀ F is the covariance of a class, up to its tail
    tails: Tensor  # (C,) variance per coordinate that factors of limited rank leave out
    reservoir: ClassBank | None  # deviations from the prototypes, in half precision

    def to(self, device: torch.device) -> "BaseSummary":
        """Move everything to a device."""
        reservoir = None if self.reservoir is None else self.reservoir.to(device)
        counts, prototypes = self.counts.to(device), self.prototypes.to(device)
        return BaseSummary(counts, prototypes, self.factors.to(device), self.tails.to(device), reservoir)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a base example for each entry of `classes`: of the reservoir, or else of the class's Gaussian."""
        if self.reservoir is not None:
            deviations = self.reservoir.draw(classes, generator).float()
        else:
            device, (rank, dimension) = self.prototypes.device, self.factors.shape[1:]
            inner = torch.randn((*classes.shape, 1, rank), generator=generator, device=device)
            outer = torch.randn((*classes.shape, dimension), generator=generator, device=device)
            deviations = (inner @ self.factors[classes].float()).squeeze(-2)
            deviations = deviations + self.tails[classes].sqrt().unsqueeze(-1) * outer
        return self.prototypes[classes] + deviations

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name."""
        found = {name: getattr(self, name.removeprefix("base.")) for name in _FORMS}
        if self.reservoir is not None:
            found |= {"reservoir.deviations": self.reservoir.features, "reservoir.counts": self.reservoir.counts}
        return found

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], **sizes: int) -> "BaseSummary":
        """Put a summary together again, on the CPU; refuse tensors that do not fit one another."""
        require_arrays(tensors, _FORMS, **sizes)
        reservoir = None
        if "reservoir.deviations" in tensors:
            require_arrays(tensors, _RESERVOIR_FORMS, **sizes)
            deviations, counts = tensors["reservoir.deviations"], tensors["reservoir.counts"]
            require_counts(counts, len(deviations), "reservoir.counts")
            labels = torch.arange(len(counts)).repeat_interleave(counts)
            reservoir = ClassBank.from_examples(deviations, labels, len(counts))
        counts, prototypes, factors, tails = (tensors[name] for name in _FORMS)
        return cls(counts, prototypes, factors, tails, reservoir)


@dataclass(frozen=True)
class ClassCovariances:
    """How each class varies."""

    factors: Tensor  # (C, r, D); Fᵀ F is the covariance of a class, up to its tail
    variances: Tensor  # (C,) sum over all coordinates

    @property
    def tails(self) -> Tensor:
        """Variance per coordinate that factors of limited rank leave out."""
        # In parts: squares of all factors would take as much memory as the factors do.
        rank, dimension = self.factors.shape[1:]
        parts = self.factors.split(max(1, 64 * NUMBERS_IN_BLOCK // (rank * dimension)))
        kept = torch.cat([part.square().sum((1, 2)) for part in parts])
        return (self.variances - kept).clamp_min(0) / dimension


def class_covariances(bank: ClassBank, rank: int | str) -> ClassCovariances:
    """Factor the covariance of every class, to a limited rank or in ``"full"``.

    Factors are exact where that takes no more than about a minute, and all but exact for larger banks.
    """
    full = min(bank.largest, bank.dimension)
    wanted = full if rank == "full" else min(int(rank), full)
    exact = 2 * wanted > full or float(bank.counts.clamp_max(bank.dimension).double().pow(3).sum()) <= MOST_EXACT
    factors = torch.empty((bank.n_classes, wanted, bank.dimension), device=bank.device)
    variances = torch.empty(bank.n_classes, device=bank.device)
    together = max(1, 4 * NUMBERS_IN_BLOCK // (bank.largest * bank.dimension))
    for labels in torch.arange(bank.n_classes).split(together):
        part = slice(int(labels[0]), int(labels[-1]) + 1)
        classes = [bank.of_class(int(label)) for label in labels]
        variances[part] = torch.stack([(x - x.mean(0)).square().sum(1).mean() for x in classes])
        if exact:
            factors[part] = torch.stack([truncated_factor(x, wanted) for x in classes])
        else:
            factors[part] = quick_truncated_factors(classes, wanted)
    return ClassCovariances(factors, variances)


def keep_examples(bank: ClassBank, per_class: int, generator: torch.Generator) -> ClassBank | None:
    """Keep up to `per_class` random examples of every class, as deviations in half precision."""
    if per_class == 0:
        return None
    counts, starts = bank.counts.tolist(), bank.starts.tolist()
    sizes = bank.counts.clamp_max(per_class)
    kept = torch.empty((int(sizes.sum()), bank.dimension), dtype=torch.half, device=bank.device)
    parts = kept.split(sizes.tolist())
    for part, start, count, prototype in zip(parts, starts, counts, bank.prototypes, strict=True):
        order = torch.randperm(count, generator=generator, device=bank.device)[:per_class]
        # Deviations, because half precision has eleven bits: an offset would use them up.
        part.copy_(bank.rows[start + order] - prototype)
    labels = torch.arange(bank.n_classes, device=bank.device).repeat_interleave(sizes)
    return ClassBank.from_examples(kept, labels, bank.n_classes)


@dataclass(frozen=True)
class Merged:
    """Base classes of a summary and of a bank together, those of the summary first."""

    counts: Tensor  # (C,) how many examples each class had in all
    bank: ClassBank  # examples to draw episodes from: those that were kept and the further ones, with the means of all
    factors: Tensor  # of the covariances, as in `BaseSummary` but in single precision
    tails: Tensor


def merge_summaries(
    known: BaseSummary, bank: ClassBank, homes: Sequence[int], rank: int | str, generator: torch.Generator
) -> Merged:
    """Merge further examples, in the units of the summary, into it.

    `homes` has for each class of the bank its place among all classes: that of a known class, or one after them.
    """
    n_known = len(known.counts)
    places = {home: place for place, home in enumerate(homes)}
    first, further = _of_summary(known), _of_bank(bank, rank)
    both, rows = [], []
    for c in range(max(n_known, *(home + 1 for home in homes))):
        place = places.get(c)
        if place is None:
            both.append(first[c])
        else:
            both.append(pooled(first[c], further[place]) if c < n_known else further[place])
        rows.append(_examples(known, c, bank, place, generator))
    largest = max(len(moments.factor) for moments in both)
    sizes = torch.tensor([len(part) for part in rows], device=bank.device)
    prototypes = torch.stack([moments.mean for moments in both])
    return Merged(
        counts=torch.tensor([moments.count for moments in both], device=bank.device),
        bank=ClassBank(torch.cat(rows), sizes, sizes.cumsum(0) - sizes, prototypes, int(sizes.max())),
        factors=torch.stack([_padded(moments.factor, largest) for moments in both]),
        tails=torch.stack([moments.tail for moments in both]),
    )


@dataclass(frozen=True)
class Moments:
    """Moments of one class: its number of examples, their mean, and Σ = Fᵀ F + tail · I."""

    count: int
    mean: Tensor
    factor: Tensor
    tail: Tensor


def pooled(first: Moments, second: Moments) -> Moments:
    """Return the moments of two sets of examples together, their covariance with the larger of both ranks.

    >>> one, other = torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0]])
    >>> moments = [Moments(len(x), x.mean(0), (x - x.mean(0)) / len(x) ** 0.5, torch.tensor(0.0)) for x in (one, other)]
    >>> both = pooled(*moments)
    >>> both.mean, both.factor.square().sum(), torch.cat([one, other]).var(correction=0)
    (tensor([1.6667]), tensor(1.5556), tensor(1.5556))
    """
    count = first.count + second.count
    share, other = first.count / count, second.count / count
    apart = (share * other) ** 0.5 * (first.mean - second.mean)
    whole = torch.cat([share**0.5 * first.factor, other**0.5 * second.factor, apart.unsqueeze(0)])
    factor = leading_rows(whole, max(len(first.factor), len(second.factor)))
    left_out = (whole.square().sum() - factor.square().sum()).clamp_min(0) / len(apart)
    tail = share * first.tail + other * second.tail + left_out
    return Moments(count, share * first.mean + other * second.mean, factor, tail)


def _of_summary(known: BaseSummary) -> list[Moments]:
    parts = zip(known.counts.tolist(), known.prototypes, known.factors, known.tails, strict=True)
    return [Moments(count, mean, factor.float(), tail) for count, mean, factor, tail in parts]


def _of_bank(bank: ClassBank, rank: int | str) -> list[Moments]:
    covariances = class_covariances(bank, rank)
    parts = zip(bank.counts.tolist(), bank.prototypes, covariances.factors, covariances.tails, strict=True)
    return [Moments(*part) for part in parts]


def _padded(factor: Tensor, rank: int) -> Tensor:
    return torch.nn.functional.pad(factor, (0, 0, 0, rank - len(factor)))


def _examples(known: BaseSummary, c: int, bank: ClassBank, place: int | None, generator: torch.Generator) -> Tensor:
    """Return the kept examples of a class and, in the same proportion to all it had, further ones."""
    if c >= len(known.counts):
        assert place is not None
        most = int(bank.counts[place]) if isinstance(bank.rows, Tensor) else MOST_STORED
        return _some(bank, place, most, generator)
    kept = _kept(known, c, generator)
    if place is None:
        return kept
    share = len(kept) / int(known.counts[c])
    return torch.cat([kept, _some(bank, place, max(1, round(share * int(bank.counts[place]))), generator)])


def _kept(known: BaseSummary, c: int, generator: torch.Generator) -> Tensor:
    if known.reservoir is not None:
        return known.prototypes[c] + known.reservoir.of_class(c).float()
    number = min(DRAWN, int(known.counts[c]))
    return known.draw(torch.full((number,), c, device=known.prototypes.device), generator)


def _some(bank: ClassBank, c: int, most: int, generator: torch.Generator) -> Tensor:
    count = int(bank.counts[c])
    if count <= most:
        return bank.of_class(c)
    order = torch.randperm(count, generator=generator, device=bank.device)[:most]
    return bank.rows[bank.starts[c] + order]
