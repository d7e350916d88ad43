"""What is kept of the base classes, so that nobody has to keep the base data beside a model."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.math.covariance import quick_truncated_factors, truncated_factor
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank

# Decompositions of matrices of size s cost about s³; so many take a minute on two cores.
MOST_EXACT = 2e11


@dataclass(frozen=True)
class BaseSummary:
    """Prototypes, covariances and a reservoir of examples of the base classes, in the model's units.

    Attributes
    ----------
    classes : names of the base classes
    counts : (C,) how many examples each had
    prototypes : (C, D)
    factors : (C, r, D) in half precision; Fᵀ F is the covariance of a class, up to its tail
    tails : (C,) variance per coordinate that factors of limited rank leave out
    reservoir : ClassBank of deviations from the prototypes, in half precision, or None
    scaling : from the user's units to the model's, in double precision on the CPU
    """

    classes: tuple[Hashable, ...]
    counts: Tensor
    prototypes: Tensor
    factors: Tensor
    tails: Tensor
    reservoir: ClassBank | None
    scaling: Scaling

    @property
    def average_size(self) -> int:
        """Average number of examples of a base class."""
        return round(float(self.counts.double().mean()))

    def to(self, device: torch.device) -> "BaseSummary":
        """Move everything to a device."""
        return BaseSummary(
            self.classes,
            self.counts.to(device),
            self.prototypes.to(device),
            self.factors.to(device),
            self.tails.to(device),
            None if self.reservoir is None else self.reservoir.to(device),
            self.scaling,
        )

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


@dataclass(frozen=True)
class ClassCovariances:
    """How each class varies.

    Attributes
    ----------
    factors : (C, r, D); Fᵀ F is the covariance of a class, up to its tail
    variances : (C,) sum over all coordinates
    """

    factors: Tensor
    variances: Tensor

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
