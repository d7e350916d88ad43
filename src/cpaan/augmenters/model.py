"""A trained model: networks, the summary of the base classes, and how it makes examples of a novel class."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.augmenters.summary import BaseSummary
from cpaan.centers.class_center import CenterModel, center_noise, class_centers
from cpaan.gan.networks import Condition, Networks
from cpaan.gan.recipe import Recipe
from cpaan.math.neighborhood import Neighborhood, make_neighborhood
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.bank import draw_categories

# Examples that are made at a time: what stays in a processor's cache, or fills a GPU.
CPU_ROWS, GPU_ROWS = 1024, 65_536


@dataclass(frozen=True)
class Completion:
    """A covariance of deviations that examples get beside their own, Fᵀ F + t I; see `cpaan.augmenters.completion`.

    Attributes
    ----------
    factor : Tensor of shape (r, D), F, in single precision on the CPU
    tail : t
    """

    factor: Tensor
    tail: float


@dataclass(frozen=True)
class Model:
    """Everything that `augment` needs, and everything that is saved."""

    networks: Networks
    base: BaseSummary
    recipe: Recipe
    variant: str
    temperature: float
    center: CenterModel | None = None  # in double precision on the CPU; None where the mean of shots is the anchor
    completion: Completion | None = None  # counts where there is a centre
    size: int = 1  # that novel classes are filled up to, in average sizes of base classes

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
    def make_from_shots(
        self, shots: Tensor, labels: Tensor, number: Tensor, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Make `number[i]` examples of class i from its shots, on the CPU, in double precision and the model's units.

        With P the estimate of a centre, l the mean of K shots and M the number of examples, examples are moved to have
        their mean at ((M + K) P − K l) / M. That of real and synthetic ones together is then P, for whatever
        classifier, without weights.

        Yields
        ------
        Tensor, the examples of the next few classes
        """
        device, center = self.base.prototypes.device, self.center
        means = prototypes(shots, labels, len(number))
        if center is None:
            made = self.make(means.float().to(device), number.to(device), generator).cpu()
            for _, rows, targets in class_parts(number):
                yield spread_out(made[rows].double(), targets, self.recipe.spread)
            return
        centers = class_centers(center, shots, labels, len(number))
        counts = class_counts(labels, len(number))
        made = self.make(centers.float().to(device), number.to(device), generator)
        noise = self.recipe.center_noise * center_noise(center, counts)
        self._add_deviations(made, noise.repeat_interleave(number), generator)
        made = made.cpu()
        weight = (counts.double() / number.clamp_min(1)).unsqueeze(1)
        wanted = centers + weight * (centers - means)
        for classes, rows, targets in class_parts(number):
            examples = spread_out(made[rows].double(), targets, self.recipe.spread)
            yield moved_to(examples, targets, wanted[classes])

    @torch.no_grad()
    def make(self, prototypes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Make `number[i]` examples of the class with prototype i; all in the model's units.

        Returns
        -------
        Tensor of shape (number.sum(), D), the first class's examples first
        """
        similarity = self.neighborhood.similarity(prototypes, self.base.prototypes)
        return self.make_from(similarity, prototypes, number, generator)

    @torch.no_grad()
    def make_from(self, similarity: Tensor, prototypes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Make examples as `make` does, from base classes that are drawn with given weights (classes, base classes)."""
        most = int(number.max()) if len(number) else 0
        lenders = draw_categories(similarity, most, generator)
        wanted = torch.arange(most, device=number.device) < number.unsqueeze(1)
        targets = torch.arange(len(number), device=number.device).repeat_interleave(number)
        rows = rows_at_a_time(number.device)
        chunks = zip(lenders[wanted].split(rows), targets.split(rows), strict=True)
        return torch.cat([*self._translated(prototypes, chunks, generator)])

    def _add_deviations(self, made: Tensor, sizes: Tensor, generator: torch.Generator) -> None:
        """Add to examples, in place, what they lack, and isotropic noise of a given size for each of them."""
        completion, device = self.completion, made.device
        factor = None if completion is None else completion.factor.to(device)
        sizes = (sizes.square() + (0.0 if completion is None else completion.tail)).sqrt().float().to(device)
        rows = rows_at_a_time(device)
        for examples, size in zip(made.split(rows), sizes.split(rows), strict=True):
            if factor is not None:
                inner = torch.randn((len(examples), len(factor)), generator=generator, device=device)
                examples.addmm_(inner, factor)
            if size.any():
                outer = torch.randn(examples.shape, generator=generator, device=device)
                examples.addcmul_(outer, size.unsqueeze(1))

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
    """Give how many examples are made at a time."""
    return CPU_ROWS if device.type == "cpu" else GPU_ROWS


def class_parts(number: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Cut examples into parts of whole classes that stay in a processor's cache.

    Parameters
    ----------
    number : (C,) how many examples each class has, the first class's first

    Yields
    ------
    Classes of a part, its rows, and for each of them the place of its class in the part

    Examples
    --------
    >>> list(class_parts(torch.tensor([700, 2, 1])))[1][:2]
    (slice(1, 2, None), slice(700, 702, None))
    """
    together = max(1, CPU_ROWS // max(1, int(number.max()))) if len(number) else 1
    start = 0
    for first in range(0, len(number), together):
        part = number[first : first + together]
        stop = start + int(part.sum())
        yield slice(first, first + len(part)), slice(start, stop), torch.arange(len(part)).repeat_interleave(part)
        start = stop


def spread_out(examples: Tensor, labels: Tensor, factor: float) -> Tensor:
    """Multiply the deviations of examples from the mean of their class.

    >>> spread_out(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), 2.0)
    tensor([[0.],
            [4.]])
    """
    if factor == 1 or not len(labels):
        return examples
    means = _means(examples, labels, int(labels.max()) + 1)[labels]
    return means + factor * (examples - means)


def moved_to(examples: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """Move the examples of each class, all alike, so that their mean is the given one; some classes may have none.

    >>> moved_to(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), torch.tensor([[5.0], [7.0]]))
    tensor([[6.],
            [8.]])
    """
    return examples + (centers - _means(examples, labels, len(centers)))[labels]


def _means(examples: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    counts = class_counts(labels, n_classes).clamp_min(1).to(examples.dtype).unsqueeze(1)
    sums = torch.zeros((n_classes, examples.shape[1]), dtype=examples.dtype).index_add_(0, labels, examples)
    return sums / counts
