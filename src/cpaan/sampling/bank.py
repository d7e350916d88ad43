"""Examples laid out class after class, so that a batch of them is drawn by index arithmetic alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.functional.prototypes import class_counts, prototypes


@dataclass(frozen=True)
class ClassBank:
    """Examples sorted by class, with what a draw needs to find them.

    Drawing never looks at a value on the host and always gives the same shapes, whatever the class sizes.

    Attributes
    ----------
    features : Tensor of shape (n, D), the examples of class 0 first
    counts, starts : integer Tensors of shape (classes,)
    prototypes : Tensor of shape (classes, D)
    largest : int, the size of the largest class
    """

    features: Tensor
    counts: Tensor
    starts: Tensor
    prototypes: Tensor
    largest: int

    @classmethod
    def from_examples(cls, features: Tensor, labels: Tensor, n_classes: int) -> "ClassBank":
        """Sort examples by class.

        >>> bank = ClassBank.from_examples(torch.tensor([[5.0], [1.0], [3.0]]), torch.tensor([1, 0, 0]), 2)
        >>> bank.features.flatten(), bank.starts, bank.prototypes.flatten()
        (tensor([1., 3., 5.]), tensor([0, 2]), tensor([2., 5.]))
        """
        order = torch.argsort(labels, stable=True)
        counts = class_counts(labels, n_classes)
        starts = counts.cumsum(0) - counts
        means = prototypes(features, labels, n_classes)
        return cls(features[order].contiguous(), counts, starts, means, int(counts.max()))

    def to(self, device: torch.device) -> "ClassBank":
        """Move everything to a device."""
        return ClassBank(
            self.features.to(device),
            self.counts.to(device),
            self.starts.to(device),
            self.prototypes.to(device),
            self.largest,
        )

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    def of_class(self, label: int) -> Tensor:
        """Give the examples of one class."""
        start = int(self.starts[label])
        return self.features[start : start + int(self.counts[label])]

    def draw_distinct(self, classes: Tensor, number: int, generator: torch.Generator) -> Tensor:
        """Draw examples of each given class without replacement.

        A class with fewer examples gives all of them and then the same again, so that shapes stay fixed.
        Returns a Tensor of shape (len(classes), number, D).
        """
        counts = self.counts[classes].unsqueeze(1)
        shape = (len(classes), self.largest)
        keys = torch.rand(shape, generator=generator, device=self.features.device)
        beyond = torch.arange(self.largest, device=keys.device) >= counts
        order = keys.masked_fill(beyond, 2.0).argsort(dim=1)
        rank = torch.arange(number, device=keys.device) % counts
        return self.features[self.starts[classes].unsqueeze(1) + order.gather(1, rank)]

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one example, independently and with replacement, for each entry of `classes` (any shape)."""
        uniform = torch.rand(classes.shape, generator=generator, device=self.features.device)
        counts = self.counts[classes]
        # rand is below 1, but its product with a large count can round up to the count itself
        offsets = (uniform * counts).long().minimum(counts - 1)
        return self.features[self.starts[classes] + offsets]


def draw_categories(probabilities: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw category indices from each row of probabilities by inverting its cumulative sum.

    Unlike `torch.multinomial` it never checks its input on the host.

    >>> draw_categories(torch.tensor([[0.0, 1.0, 0.0]]), 3, torch.Generator().manual_seed(0))
    tensor([[1, 1, 1]])
    """
    cumulative = probabilities.cumsum(-1)
    uniform = torch.rand((*probabilities.shape[:-1], number), generator=generator, device=probabilities.device)
    # right=True: a category of probability zero, whose edge the draw may hit, is passed over
    drawn = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
    last = probabilities.shape[-1] - 1
    return drawn.clamp_max(last)
