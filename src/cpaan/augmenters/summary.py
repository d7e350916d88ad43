"""What is kept of the base classes, so that nobody has to keep the base data beside a model."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.functional.covariance import truncated_factor
from cpaan.functional.scaling import Scaling
from cpaan.sampling.bank import ClassBank


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


def covariance_factors(bank: ClassBank, rank: int | str) -> Tensor:
    """Factor the covariance of every class, to a limited rank or in ``"full"``: (C, r, D)."""
    full = min(bank.largest, bank.features.shape[1])
    wanted = full if rank == "full" else min(int(rank), full)
    return torch.stack([truncated_factor(bank.of_class(c), wanted) for c in range(bank.n_classes)])


def keep_examples(bank: ClassBank, per_class: int, generator: torch.Generator) -> ClassBank | None:
    """Keep up to `per_class` random examples of every class, as deviations in half precision."""
    if per_class == 0:
        return None
    kept, labels = [], []
    for label in range(bank.n_classes):
        examples = bank.of_class(label)
        order = torch.randperm(len(examples), generator=generator, device=examples.device)[:per_class]
        # Deviations, because half precision has eleven bits: an offset would use them up.
        kept.append((examples[order] - bank.prototypes[label]).half())
        labels.append(torch.full((len(order),), label, device=examples.device))
    return ClassBank.from_examples(torch.cat(kept), torch.cat(labels), bank.n_classes)


def summarize(
    bank: ClassBank,
    classes: tuple[Hashable, ...],
    scaling: Scaling,
    factors: Tensor,
    per_class: int,
    generator: torch.Generator,
) -> BaseSummary:
    """Summarise base classes whose covariance factors are known already."""
    variances = torch.stack([(b - b.mean(0)).square().sum(1).mean() for b in map(bank.of_class, range(len(classes)))])
    tails = (variances - factors.square().sum((1, 2))).clamp_min(0) / bank.features.shape[1]
    reservoir = keep_examples(bank, per_class, generator)
    return BaseSummary(classes, bank.counts, bank.prototypes, factors.half(), tails, reservoir, scaling)
