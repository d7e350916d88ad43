"""The contract of a source of deviations, and how a centre and deviations make examples together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cpaan.centers.base import Center, Noise
from cpaan.centers.posterior_mean import PosteriorMean
from cpaan.centers.shot_mean import ShotMean
from cpaan.data.feature_set import FeatureSet
from cpaan.math.linear_gaussian import add_centers, to_unit
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.math.scaling import Scaling
from cpaan.parts import Part
from cpaan.training.bank import ClassBank

# Examples that are processed at a time: what stays in a processor's cache, or fills a GPU.
CPU_ROWS, GPU_ROWS = 1024, 65_536


@dataclass(frozen=True)
class Request:
    """Examples to draw: `number[i]` about `centers[i]`, the first class's first."""

    centers: Tensor  # (N, D) in double precision, on the CPU
    number: Tensor  # (N,)
    noise: Noise | None  # uncertainty about the centres; None at shot means
    generator: torch.Generator  # on the device of the deviations
    dtype: torch.dtype  # of the examples; another is converted

    @property
    def total(self) -> int:
        """Number of examples of all classes."""
        return int(self.number.sum())

    def about_centers(self, deviations: Tensor) -> Tensor:
        """Turn deviations (total, D) on the CPU into examples, in place: add the noise, then the centres."""
        if self.noise is not None:
            self._add_isotropic(deviations, self.noise.sizes.repeat_interleave(self.number))
            self.add_anisotropic(deviations)
        return add_centers(deviations, self.centers, self.number)

    def add_anisotropic(self, deviations: Tensor) -> None:
        """Add draws from N(0, A diag(v) Aᵀ) in place, where the noise has such a part."""
        if self.noise is None or self.noise.axes is None or self.noise.variances is None:
            return
        axes, size = to_unit(self.noise.axes, torch.float32)
        variances = self.noise.variances.repeat_interleave(self.number, 0)
        drawn = torch.randn(variances.shape, generator=self.generator) * variances.sqrt().float()
        deviations += (drawn @ axes.T).to(deviations.dtype).mul_(size)

    def _add_isotropic(self, deviations: Tensor, sizes: Tensor) -> None:
        for rows, size in zip(deviations.split(CPU_ROWS), sizes.to(deviations.dtype).split(CPU_ROWS), strict=True):
            if size.any():
                rows.addcmul_(torch.randn(rows.shape, generator=self.generator).to(rows.dtype), size.unsqueeze(1))


class Deviations(Part):
    """Source of deviations from a class centre.

    A subclass writes `fit` and `draw`; the other members have defaults.
    """

    spread: float = 1.0  # factor on the deviations of examples from their class mean
    gaussian: ClassVar[bool] = False  # whether deviations are those of the linear-Gaussian model

    @property
    def device_(self) -> torch.device:
        """Where base examples are laid out, and examples drawn."""
        return torch.device("cpu")

    def units(self, base: FeatureSet) -> Scaling | None:
        """Return the units that features should come in; None accepts any, and those of a centre."""
        return None

    def fit(self, bank: ClassBank, center: Center, *, seed: int) -> "Deviations":
        """Learn from base classes; set the tensors named in `learned`. The centre is fitted already."""
        raise NotImplementedError

    def draw(self, request: Request) -> Tensor:
        """Return examples (request.total, D), class after class; see `Request.about_centers`."""
        raise NotImplementedError


class NoDeviations(Deviations):
    """Put every example at the centre itself."""

    seeded: ClassVar[bool] = False

    def fit(self, bank: ClassBank, center: Center, *, seed: int = 0) -> "NoDeviations":
        """Learn nothing."""
        return self

    def draw(self, request: Request) -> Tensor:
        """Repeat the centres."""
        return request.centers.to(request.dtype).repeat_interleave(request.number, 0)


def shares_mean(center: Center, deviations: Deviations) -> bool:
    """Tell whether real and synthetic examples together should have their mean at the centre.

    They do about an estimated centre. Shot means stay as in the paper, and Gaussian draws about a posterior mean are
    the predictive distribution of the linear-Gaussian model, which moving them would change.
    """
    predictive = isinstance(center, PosteriorMean) and deviations.gaussian
    return not isinstance(center, ShotMean) and not predictive


@torch.no_grad()
def synthesize(
    center: Center,
    deviations: Deviations,
    shots: Tensor,
    labels: Tensor,
    number: Tensor,
    generator: torch.Generator,
    *,
    joint_mean: bool,
    dtype: torch.dtype = torch.double,
) -> Iterator[Tensor]:
    """Make `number[i]` examples of class i from its shots, a few classes at a time, on the CPU in the given units.

    With P the centre, l the mean of K shots and M the number of examples, `joint_mean` moves examples to have their
    mean at ((M + K) P − K l) / M. That of real and synthetic ones together is then P, for whatever classifier, without
    weights.
    """
    counts = class_counts(labels, len(number))
    centers = center.estimate(shots, labels, len(number))
    request = Request(centers, number, center.uncertainty(counts), generator, dtype)
    made = deviations.draw(request).cpu()
    weight = (counts.double() / number.clamp_min(1)).unsqueeze(1)
    wanted = centers + weight * (centers - prototypes(shots.double(), labels, len(number)))
    for classes, rows, targets in class_parts(number):
        examples = made[rows]
        if deviations.spread != 1:
            examples = spread_out(examples.double(), targets, deviations.spread)
        yield moved_to(examples.double(), targets, wanted[classes]) if joint_mean else examples


def class_parts(number: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Cut examples into parts of whole classes that stay in a processor's cache.

    Yields the classes of a part, its rows, and for each of them the place of its class in the part.

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
    if not len(labels):
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
