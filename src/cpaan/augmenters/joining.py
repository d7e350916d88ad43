"""Further base classes, or further examples of known ones, beside what a model keeps of those it was trained on.

Of n₁ examples with mean l₁ and covariance Σ₁, of which a summary is known, and n₂ further ones, with w = n / (n₁ + n₂):

l = w₁ l₁ + w₂ l₂,   Σ = w₁ Σ₁ + w₂ Σ₂ + w₁ w₂ (l₁ − l₂)(l₁ − l₂)ᵀ
"""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.augmenters.summary import BaseSummary, class_covariances
from cpaan.gan.recipe import Recipe
from cpaan.math.covariance import leading_rows
from cpaan.training.bank import ClassBank

DRAWN = 100  # examples drawn from the Gaussian of a class of which no example was kept
MOST_STORED = 1000  # examples of a class, of a bank that is too large for memory


@dataclass(frozen=True)
class Joined:
    """Base classes of a summary and of a bank together, those of the summary first.

    Attributes
    ----------
    classes : their names
    counts : (C,) how many examples each had in all
    bank : examples to draw episodes from: those that were kept and the further ones, with the means of all
    factors, tails : of the covariances, as in `BaseSummary` but in single precision
    """

    classes: tuple[Hashable, ...]
    counts: Tensor
    bank: ClassBank
    factors: Tensor
    tails: Tensor


def joined(
    known: BaseSummary, names: tuple[Hashable, ...], bank: ClassBank, recipe: Recipe, generator: torch.Generator
) -> Joined:
    """Join further examples to a summary.

    Parameters
    ----------
    known : what is left of the classes before
    names : of the classes of the bank, of which some may be known
    bank : further examples, in the units of the summary
    recipe : says with which rank covariances are kept
    generator : decides which examples are taken
    """
    before = set(known.classes)
    classes = (*known.classes, *(name for name in names if name not in before))
    places = {name: place for place, name in enumerate(names)}
    first, further = _of_summary(known), _of_bank(bank, recipe)
    both = [_added(first, c, further, places.get(name)) for c, name in enumerate(classes)]
    rank = max(len(moments.factor) for moments in both)
    rows = [_examples(known, c, bank, places.get(name), generator) for c, name in enumerate(classes)]
    sizes = torch.tensor([len(part) for part in rows], device=bank.device)
    prototypes = torch.stack([moments.mean for moments in both])
    return Joined(
        classes=classes,
        counts=torch.tensor([moments.count for moments in both], device=bank.device),
        bank=ClassBank(torch.cat(rows), sizes, sizes.cumsum(0) - sizes, prototypes, int(sizes.max())),
        factors=torch.stack([_padded(moments.factor, rank) for moments in both]),
        tails=torch.stack([moments.tail for moments in both]),
    )


@dataclass(frozen=True)
class Moments:
    """What is known of one class: its number of examples, their mean, and Σ = Fᵀ F + tail · I."""

    count: int
    mean: Tensor
    factor: Tensor
    tail: Tensor


def pooled(first: Moments, second: Moments) -> Moments:
    """Give the moments of two sets of examples together, their covariance with the larger of both ranks.

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


def _of_bank(bank: ClassBank, recipe: Recipe) -> list[Moments]:
    covariances = class_covariances(bank, recipe.covariance_rank)
    parts = zip(bank.counts.tolist(), bank.prototypes, covariances.factors, covariances.tails, strict=True)
    return [Moments(*part) for part in parts]


def _added(known: list[Moments], c: int, further: list[Moments], place: int | None) -> Moments:
    if place is None:
        return known[c]
    return pooled(known[c], further[place]) if c < len(known) else further[place]


def _padded(factor: Tensor, rank: int) -> Tensor:
    return torch.nn.functional.pad(factor, (0, 0, 0, rank - len(factor)))


def _examples(known: BaseSummary, c: int, bank: ClassBank, place: int | None, generator: torch.Generator) -> Tensor:
    """Give examples of a class: those that were kept, and as many further ones for each as there were of both."""
    if c >= len(known.classes):
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
