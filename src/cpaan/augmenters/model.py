"""A trained model: networks, the summary of the base classes, and how it makes examples of a novel class."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.augmenters.summary import BaseSummary
from cpaan.nn.generator import Condition
from cpaan.nn.networks import Networks
from cpaan.sampling.bank import draw_categories
from cpaan.sampling.neighborhood import Neighborhood, make_neighborhood
from cpaan.training.recipe import Recipe

# Examples that are made at a time: what stays in a processor's cache, or fills a GPU.
CPU_ROWS, GPU_ROWS = 1024, 65_536


@dataclass(frozen=True)
class Model:
    """Everything that `augment` needs, and everything that is saved."""

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

    def to(self, device: torch.device) -> "Model":
        """Move everything to a device."""
        return replace(self, networks=self.networks.to(device), base=self.base.to(device))

    @torch.no_grad()
    def make(self, prototypes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Make `number[i]` examples of the class with prototype i; all in the model's units.

        Returns
        -------
        Tensor of shape (number.sum(), D), the first class's examples first
        """
        similarity = self.neighborhood.similarity(prototypes, self.base.prototypes)
        most = int(number.max()) if len(number) else 0
        lenders = draw_categories(similarity, most, generator)
        wanted = torch.arange(most, device=number.device) < number.unsqueeze(1)
        targets = torch.arange(len(number), device=number.device).repeat_interleave(number)
        rows = CPU_ROWS if number.device.type == "cpu" else GPU_ROWS
        chunks = zip(lenders[wanted].split(rows), targets.split(rows), strict=True)
        return torch.cat([*self._translated(prototypes, chunks, generator)])

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
