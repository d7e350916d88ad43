"""Neighbourhood batch sampling: which base classes may lend to a novel class, and how much.

A neighbourhood gives the similarity scores α(y_b, y_n): non-negative, summing to one over the base classes of a
novel class, and zero outside the translation mapping R(y_n).

A softmax over squared distances depends on the units of the features: flat at small scales, one-hot at large ones. The
perplexity of α, its effective number of base classes, does not, so the temperature is calibrated to a perplexity.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.math.prototypes import squared_distances

FEWEST_CLASSES = 3  # with two, a class left out has one neighbour whatever the temperature
HALVINGS = 60
# Enough for a mean that is stable to a few per mille, and time and memory that grow no faster than the classes.
MOST_LEFT_OUT = 1000


class Neighborhood(Protocol):
    """Similarity of novel to base classes, from their prototypes."""

    def similarity(self, novel: Tensor, base: Tensor) -> Tensor:
        """Compute α, (novel classes, base classes), from prototypes."""

    def related(self, similarity: Tensor) -> Tensor:
        """Compute R as a mask over α: which base classes each novel class is paired with."""


@dataclass(frozen=True)
class SoftNeighborhood:
    """NBS-S: every base class, weighted by a softmax over distances.

    α(y_b, y_n) = exp(−‖l_b − l_n‖² / T) / Σ_b' exp(−‖l_b' − l_n‖² / T)

    >>> base = torch.tensor([[0.0], [1.0]])
    >>> SoftNeighborhood(temperature=1.0).similarity(torch.tensor([[0.0]]), base)
    tensor([[0.7311, 0.2689]])
    """

    temperature: float

    def similarity(self, novel: Tensor, base: Tensor) -> Tensor:
        """Compute the softmax over negative squared distances."""
        return torch.softmax(-squared_distances(novel, base) / self.temperature, dim=-1)

    def related(self, similarity: Tensor) -> Tensor:
        """Pair a novel class with all base classes, even where α underflows to zero."""
        return torch.ones_like(similarity, dtype=torch.bool)


@dataclass(frozen=True)
class HardNeighborhood:
    """NBS-H: the k nearest base classes, 1/k each.

    >>> base = torch.tensor([[0.0], [1.0], [5.0]])
    >>> HardNeighborhood(neighbors=2).similarity(torch.tensor([[4.0]]), base)
    tensor([[0.0000, 0.5000, 0.5000]])
    """

    neighbors: int

    def similarity(self, novel: Tensor, base: Tensor) -> Tensor:
        """Give 1/k to the k nearest and nothing to the others."""
        distances = squared_distances(novel, base)
        k = min(self.neighbors, len(base))
        nearest = distances.topk(k, dim=-1, largest=False).indices
        return torch.zeros_like(distances).scatter_(-1, nearest, 1 / k)

    def related(self, similarity: Tensor) -> Tensor:
        """Pair a novel class with its k nearest base classes."""
        return similarity > 0


@dataclass(frozen=True)
class UniformNeighborhood:
    """No neighbourhood: all base classes alike, for the ablation.

    >>> UniformNeighborhood().similarity(torch.zeros(1, 3), torch.eye(3)[:2])
    tensor([[0.5000, 0.5000]])
    """

    def similarity(self, novel: Tensor, base: Tensor) -> Tensor:
        """Give every base class the same weight."""
        return novel.new_full((len(novel), len(base)), 1 / len(base))

    def related(self, similarity: Tensor) -> Tensor:
        """Pair a novel class with all base classes."""
        return torch.ones_like(similarity, dtype=torch.bool)


def make_neighborhood(kind: str, *, temperature: float, neighbors: int) -> Neighborhood:
    """Build a neighbourhood by name."""
    kinds: dict[str, Neighborhood] = {
        "soft": SoftNeighborhood(temperature),
        "hard": HardNeighborhood(neighbors),
        "uniform": UniformNeighborhood(),
    }
    if kind not in kinds:
        raise InputError(f"unknown neighborhood {kind!r}; choose one of {', '.join(kinds)}")
    return kinds[kind]


def mean_perplexity(distances: Tensor, temperature: float) -> Tensor:
    """Average exp(entropy) of the softmax rows of −distances / temperature."""
    alpha = torch.softmax(-distances / temperature, dim=-1)
    entropy = -torch.special.xlogy(alpha, alpha).sum(-1)
    mean: Tensor = entropy.exp().mean()
    return mean


def calibrated_temperature(prototypes: Tensor, perplexity: float) -> float:
    """Find the temperature at which left-out base classes have a wanted mean perplexity, above 1.

    Each base prototype, (classes, D), in turn plays the novel class, with the others as its base classes; of many, a
    thousand that are evenly spread. A perplexity of at least the number of the others is out of reach and gives a
    nearly uniform α.

    >>> line = torch.arange(10.0).unsqueeze(1)
    >>> calibrated_temperature(line, 2.0) < calibrated_temperature(line, 4.0)
    True
    """
    n = len(prototypes)
    left_out = torch.arange(0, n, max(1, -(-n // MOST_LEFT_OUT)), device=prototypes.device)
    distances = squared_distances(prototypes[left_out].double(), prototypes.double())
    own = torch.arange(n, device=prototypes.device) == left_out.unsqueeze(1)
    others = distances[~own].view(len(left_out), max(n - 1, 0))
    scale = float(others.mean()) if n > 1 else 0.0
    if n < FEWEST_CLASSES or scale == 0:
        return scale or 1.0
    # Mean perplexity grows with the temperature: halve an interval of its logarithm.
    low, high = math.log(1e-9 * scale), math.log(1e9 * scale)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if mean_perplexity(others, math.exp(middle)) < perplexity:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)
