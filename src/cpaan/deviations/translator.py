"""Trained networks that translate base examples to a novel class, and the covariance that they lose.

The covariance term of training looks at the largest few directions of a difference; the others a generator may lose,
and does. With Σ_w the covariance within base classes and Σ_G that of examples made of each base class from the others,
both pooled over classes, the residual covariance is the positive part

Σ_+ = U max(Λ, 0) Uᵀ,   Σ_w − Σ_G = U Λ Uᵀ

and examples about an estimated centre get a Gaussian deviation of this covariance in addition to their own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.deviations.base import CPU_ROWS, GPU_ROWS
from cpaan.deviations.summary import BaseSummary
from cpaan.gan.networks import Condition, Networks
from cpaan.gan.recipe import Recipe
from cpaan.math.neighborhood import Neighborhood, make_neighborhood
from cpaan.threads import of_covariance, threads_for
from cpaan.training.bank import draw_categories

# Directions that are kept as they are; of the others, the mean variance.
RANK = 128
# Examples, in numbers of features, that Σ_G is estimated from, and of how many classes at most.
EXAMPLES_PER_FEATURE, MOST_CLASSES = 16, 400


@dataclass(frozen=True)
class ResidualCovariance:
    """The covariance Fᵀ F + t I that generated examples lack."""

    factor: Tensor  # (r, D), F, in single precision on the CPU
    tail: float  # t


@dataclass(frozen=True)
class Translator:
    """Networks and a summary of the base classes."""

    networks: Networks
    base: BaseSummary
    recipe: Recipe
    variant: str
    temperature: float

    @property
    def neighborhood(self) -> Neighborhood:
        """The neighbourhood that base classes are drawn from."""
        return make_neighborhood(
            self.recipe.neighborhood, temperature=self.temperature, neighbors=self.recipe.neighbors
        )

    def to(self, device: torch.device) -> "Translator":
        """Move everything to a device."""
        return replace(self, networks=self.networks.to(device), base=self.base.to(device))

    @torch.no_grad()
    def make(self, prototypes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Make `number[i]` examples of the class with prototype i: (number.sum(), D), the first class's first."""
        similarity = self.neighborhood.similarity(prototypes, self.base.prototypes)
        return self.make_from(similarity, prototypes, number, generator)

    @torch.no_grad()
    def make_from(self, similarity: Tensor, prototypes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Make examples as `make` does, from base classes drawn with given weights (classes, base classes)."""
        most = int(number.max()) if len(number) else 0
        lenders = draw_categories(similarity, most, generator)
        wanted = torch.arange(most, device=number.device) < number.unsqueeze(1)
        targets = torch.arange(len(number), device=number.device).repeat_interleave(number)
        rows = rows_at_a_time(number.device)
        chunks = zip(lenders[wanted].split(rows), targets.split(rows), strict=True)
        return torch.cat([*self._translated(prototypes, chunks, generator)])

    def residual_covariance(self, within: Tensor, generator: torch.Generator) -> ResidualCovariance:
        """Compare what the networks make of base classes with how these vary, Σ_w."""
        n_classes, dimension = self.base.prototypes.shape
        with threads_for(of_covariance(_made_of_class(min(n_classes, MOST_CLASSES), dimension), dimension)):
            return lacking(within, self._made_covariance(generator).double().cpu(), RANK)

    def _made_covariance(self, generator: torch.Generator) -> Tensor:
        """Estimate Σ_G, where no base class lends to itself."""
        base = self.base.prototypes
        n_classes, dimension = base.shape
        labels = torch.arange(0, n_classes, -(-n_classes // MOST_CLASSES))
        number = _made_of_class(len(labels), dimension)
        scatter, total = base.new_zeros((dimension, dimension)), 0
        for label in labels.tolist():
            target = base[label : label + 1]
            others = torch.arange(n_classes, device=base.device) != label
            similarity = base.new_zeros((1, n_classes))
            similarity[:, others] = self.neighborhood.similarity(target, base[others])
            made = self.make_from(similarity, target, torch.tensor([number], device=base.device), generator)
            deviations = made - made.mean(0)
            scatter.addmm_(deviations.T, deviations)
            total += number - 1
        return scatter / total

    def _translated(
        self, prototypes: Tensor, chunks: Iterable[tuple[Tensor, Tensor]], generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Translate an example of each given base class to the class of the given prototype, chunk after chunk."""
        base, network = self.base, self.networks.novel_generator
        # Of every class once, and not again with each of its examples.
        from_source, to_target = network.from_source(base.prototypes), network.to_target(prototypes)
        for classes, rows in chunks:
            shift = prototypes[rows] - base.prototypes[classes] if network.residual else None
            condition = Condition(from_source[classes] + to_target[rows], shift)
            yield network.translate(base.draw(classes, generator), condition)


def rows_at_a_time(device: torch.device) -> int:
    """Return how many examples to make at a time."""
    return CPU_ROWS if device.type == "cpu" else GPU_ROWS


def lacking(wanted: Tensor, made: Tensor, rank: int) -> ResidualCovariance:
    """Return the positive part of a difference of covariances, (D, D) each.

    >>> found = lacking(torch.diag(torch.tensor([5.0, 2.0, 2.0, 0.0])), torch.eye(4), rank=1)
    >>> found.factor.abs(), found.tail
    (tensor([[2., 0., 0., 0.]]), 0.5)
    """
    values, vectors = torch.linalg.eigh(wanted - made)
    values = values.clamp_min(0)
    kept = min(rank, len(values))
    factor = (vectors[:, -kept:] * values[-kept:].sqrt()).T
    return ResidualCovariance(factor.float(), float(values[:-kept].sum()) / len(values))


def add_residual(
    made: Tensor, residual: ResidualCovariance | None, noise_sizes: Tensor, generator: torch.Generator
) -> None:
    """Add the residual covariance, and isotropic noise of a size for each example, to examples in place."""
    device = made.device
    factor = None if residual is None else residual.factor.to(device)
    sizes = (noise_sizes.square() + (0.0 if residual is None else residual.tail)).sqrt().float().to(device)
    rows = rows_at_a_time(device)
    for examples, size in zip(made.split(rows), sizes.split(rows), strict=True):
        if factor is not None:
            inner = torch.randn((len(examples), len(factor)), generator=generator, device=device)
            examples.addmm_(inner, factor)
        if size.any():
            outer = torch.randn(examples.shape, generator=generator, device=device)
            examples.addcmul_(outer, size.unsqueeze(1))


def _made_of_class(n_classes: int, dimension: int) -> int:
    return -(-EXAMPLES_PER_FEATURE * dimension // n_classes) + 1
