"""A trained model: networks, the summary of the base classes, and how it makes examples of a novel class."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.augmenters.summary import BaseSummary
from cpaan.nn.networks import Networks
from cpaan.sampling.bank import draw_categories
from cpaan.sampling.neighborhood import Neighborhood, make_neighborhood
from cpaan.training.recipe import Recipe

ROWS_AT_ONCE = 16_384


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
        made = [
            self.networks.novel_generator(
                self.base.draw(classes, generator), self.base.prototypes[classes], prototypes[rows]
            )
            for classes, rows in zip(lenders[wanted].split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True)
        ]
        return torch.cat(made)
