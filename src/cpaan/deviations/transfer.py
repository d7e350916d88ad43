"""Deviations of base examples from their class means, added to another centre.

The simplest translation between classes. E. Schwartz and others, "Delta-encoder: an effective sample synthesis method
for few-shot object recognition", NeurIPS 2018, learn an encoding of such differences; here they are added as they are.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from cpaan.centers.base import Center
from cpaan.data.arguments import as_whole_number
from cpaan.data.untrusted import positive_number, require_counts
from cpaan.deviations.base import Deviations, Request
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import to_unit
from cpaan.math.neighborhood import calibrated_temperature, make_neighborhood
from cpaan.training.bank import ClassBank, draw_categories

NEIGHBORHOODS = ("uniform", "soft")


class Transfer(Deviations):
    """Move base examples to another centre.

    x = c + (x_b − l_b),   b ~ α(·, n),   x_b a random example of base class b

    Parameters
    ----------
    reservoir : int
        Most base examples of each class that are kept, in half precision.
    neighborhood : {"uniform", "soft"}
        Draw all base classes alike, or similar ones more often, α = softmax of −‖l_b − c‖² / T.
    perplexity : float
        Effective number of base classes that a novel class draws from with ``"soft"``; it decides T.
    """

    learned: ClassVar[Mapping[str, str]] = {
        "kept_deviations_": "RD float16",  # x_b − l_b over `size_`, class by class
        "kept_": "C int64",  # how many each class has
        "size_": "float64",  # the largest absolute deviation
        "base_means_": "CD float64",
        "temperature_": "float64",
    }

    kept_deviations_: Tensor
    kept_: Tensor
    size_: Tensor
    base_means_: Tensor
    temperature_: Tensor

    def __init__(self, *, reservoir: int = 100, neighborhood: str = "uniform", perplexity: float = 10.0) -> None:
        self.reservoir = reservoir
        self.neighborhood = neighborhood
        self.perplexity = perplexity

    def fit(self, bank: ClassBank, center: Center, *, seed: int = 0) -> "Transfer":
        """Keep deviations of each base class."""
        self.check()
        generator = torch.Generator().manual_seed(seed)
        kept, means = [], []
        for label in range(bank.n_classes):
            examples = bank.of_class(label).double()
            order = torch.randperm(len(examples), generator=generator)[: self.reservoir]
            means.append(examples.mean(0))
            kept.append(examples[order] - means[-1])
        self.kept_deviations_, size = to_unit(torch.cat(kept), torch.half)
        self.kept_ = torch.tensor([len(examples) for examples in kept])
        self.base_means_ = torch.stack(means)
        temperature = calibrated_temperature(self.base_means_, float(self.perplexity))
        self.size_, self.temperature_ = (torch.tensor(each, dtype=torch.double) for each in (size, temperature))
        return self

    def draw(self, request: Request) -> Tensor:
        """Draw the base class of each example, then one of its deviations."""
        alike = make_neighborhood(self.neighborhood, temperature=float(self.temperature_), neighbors=1)
        similarity = alike.similarity(request.centers, self.base_means_)
        most = int(request.number.max())
        wanted = torch.arange(most) < request.number.unsqueeze(1)
        lenders = draw_categories(similarity, most, request.generator)[wanted]
        labels = torch.arange(len(self.kept_)).repeat_interleave(self.kept_)
        kept = ClassBank.from_examples(self.kept_deviations_, labels, len(self.kept_))
        return request.about_centers(kept.draw(lenders, request.generator).to(request.dtype).mul_(float(self.size_)))

    def check(self) -> None:
        """Refuse parameters, or values of a saved model, out of range."""
        as_whole_number(self.reservoir, "reservoir", minimum=1)
        if self.neighborhood not in NEIGHBORHOODS:
            raise InputError(f"unknown neighborhood {self.neighborhood!r}; choose one of {', '.join(NEIGHBORHOODS)}")
        if not isinstance(self.perplexity, (int, float)) or not self.perplexity > 1:
            raise InputError(f"perplexity must be a number above 1, not {self.perplexity!r}")
        if hasattr(self, "kept_"):
            require_counts(self.kept_, len(self.kept_deviations_), "kept_")
            positive_number(float(self.size_), "size_")
            positive_number(float(self.temperature_), "temperature_")
