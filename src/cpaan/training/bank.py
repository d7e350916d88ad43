"""Examples laid out class after class: batches are drawn by index arithmetic alone.

Too many examples for memory stay where they are stored, and are converted into the model's units when drawn.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cpaan.data.containers import FeatureArray
from cpaan.data.feature_set import FeatureSet
from cpaan.data.memory_map import RowReader
from cpaan.math.linear_gaussian import class_parts
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.math.rows import is_large, row_blocks
from cpaan.math.scaling import Scaling


class StoredRows:
    """Features (n, D) in memory or in a mapped file, read in double precision on the CPU and never copied whole."""

    device = torch.device("cpu")

    def __init__(self, features: FeatureArray) -> None:
        self._reader = RowReader(features)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of examples, and of features."""
        n, dimension = self._reader.array.shape
        return n, dimension

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        index = rows if isinstance(rows, slice) else rows.cpu().numpy()
        return torch.from_numpy(self._reader.read(index).astype(np.float64, order="C"))


@dataclass(frozen=True)
class ScaledRows:
    """Stored examples in the model's units, in single precision."""

    stored: StoredRows  # in the user's units
    scaling: Scaling
    device: torch.device  # of the rows that are read
    order: Tensor | None = None  # which stored example is the first, the second, …; as they are stored by default

    @property
    def shape(self) -> tuple[int, int]:
        """Number of examples, and of features."""
        return self.stored.shape

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        if self.order is not None:
            rows = self.order[rows if isinstance(rows, slice) else rows.cpu()]
        # In double precision up to here: features may lie far from the origin or be very large or small.
        return self.scaling.apply(self.stored[rows]).float().to(self.device)

    def in_order(self, order: Tensor) -> "ScaledRows":
        """Reorder the examples without reading them."""
        return replace(self, order=order.cpu())

    def to(self, device: torch.device) -> "ScaledRows":
        """Read examples to another device."""
        return replace(self, device=device)

    def load(self) -> Tensor:
        """Read all examples into one tensor."""
        loaded = torch.empty(self.shape, device=self.device)
        for block in row_blocks(self):
            loaded[block] = self[block]
        return loaded


@dataclass(frozen=True)
class ClassBank:
    """Examples sorted by class.

    Drawing never looks at a value on the host, unless rows are stored there, and its shapes do not depend on class
    sizes.
    """

    rows: Tensor | ScaledRows  # (n, D), the examples of class 0 first
    counts: Tensor  # (classes,)
    starts: Tensor  # (classes,), the first row of each class
    prototypes: Tensor  # (classes, D)
    largest: int  # size of the largest class

    @classmethod
    def from_examples(cls, features: Tensor | ScaledRows, labels: Tensor, n_classes: int) -> "ClassBank":
        """Sort examples by class; a tensor that is sorted already, or is stored elsewhere, is not copied.

        >>> bank = ClassBank.from_examples(torch.tensor([[5.0], [1.0], [3.0]]), torch.tensor([1, 0, 0]), 2)
        >>> bank.features.flatten(), bank.starts, bank.prototypes.flatten()
        (tensor([1., 3., 5.]), tensor([0, 2]), tensor([2., 5.]))
        """
        counts = class_counts(labels, n_classes)
        starts = counts.cumsum(0) - counts
        means = prototypes(features, labels, n_classes)
        return cls(_by_class(features, labels), counts, starts, means, int(counts.max()))

    def to(self, device: torch.device) -> "ClassBank":
        """Move everything to a device."""
        counts, starts, means = (part.to(device) for part in (self.counts, self.starts, self.prototypes))
        return ClassBank(self.rows.to(device), counts, starts, means, self.largest)

    @property
    def features(self) -> Tensor:
        """All examples, read into memory where they are stored elsewhere."""
        return self.rows[:]

    @property
    def device(self) -> torch.device:
        """Device of the examples that are drawn."""
        return self.rows.device

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return int(self.rows.shape[1])

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    def of_class(self, label: int) -> Tensor:
        """Return the examples of one class."""
        start = int(self.starts[label])
        return self.rows[start : start + int(self.counts[label])]

    def draw_distinct(self, classes: Tensor, number: int, generator: torch.Generator) -> Tensor:
        """Draw examples of each given class without replacement.

        A class with fewer examples repeats them, which keeps shapes fixed: (len(classes), number, D).
        """
        counts = self.counts[classes].unsqueeze(1)
        shape = (len(classes), self.largest)
        keys = torch.rand(shape, generator=generator, device=self.device)
        beyond = torch.arange(self.largest, device=keys.device) >= counts
        order = keys.masked_fill(beyond, 2.0).argsort(dim=1)
        rank = torch.arange(number, device=keys.device) % counts
        return self.rows[self.starts[classes].unsqueeze(1) + order.gather(1, rank)]

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one example, independently and with replacement, for each entry of `classes` (any shape)."""
        uniform = torch.rand(classes.shape, generator=generator, device=self.device)
        counts = self.counts[classes]
        # Not every device excludes a draw of 1, which would be the first example of the next class.
        offsets = (uniform * counts).long().minimum(counts - 1)
        return self.rows[self.starts[classes] + offsets]


def _by_class(features: Tensor | ScaledRows, labels: Tensor) -> Tensor | ScaledRows:
    if bool((labels[1:] >= labels[:-1]).all()):
        return features
    order = torch.argsort(labels, stable=True)
    return features[order].contiguous() if isinstance(features, Tensor) else features.in_order(order)


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


# Share of a free GPU memory that examples may take; networks and episodes need the rest.
SHARE_OF_GPU = 0.4


def lay_out(feature_set: FeatureSet, scaling: Scaling | None, device: torch.device) -> ClassBank:
    """Lay examples out class after class: in memory, or where they are stored if they do not fit.

    Without a scaling they keep the user's units and precision, and prototypes are in double precision.
    """
    if scaling is None:
        features, labels = feature_set.to_torch()
        parts = class_parts(features, labels, feature_set.n_classes)
        counts = class_counts(labels, feature_set.n_classes)
        means = torch.stack([part.double().mean(0) for part in parts])
        return ClassBank(_by_class(features, labels), counts, counts.cumsum(0) - counts, means, int(counts.max()))
    rows = ScaledRows(StoredRows(feature_set.features), scaling, device)
    labels = torch.tensor(feature_set.labels, device=device)
    return ClassBank.from_examples(rows.load() if _fits(rows, device) else rows, labels, feature_set.n_classes)


def _fits(rows: ScaledRows, device: torch.device) -> bool:
    if device.type != "cuda":
        return not is_large(rows)
    n, dimension = rows.shape
    free, _ = torch.cuda.mem_get_info(device)
    return n * dimension * torch.float32.itemsize <= SHARE_OF_GPU * free
