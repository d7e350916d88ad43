"""Neighbourhood batch sampling: which base classes may lend to a novel class, and how much.

A neighbourhood gives the similarity scores α(y_b, y_n): non-negative, summing to one over the base classes of a
novel class, and zero outside the translation mapping R(y_n).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.functional.distances import squared_distances


class Neighborhood(Protocol):
    """Similarity of novel to base classes, from their prototypes."""

    def similarity(self, novel: Tensor, base: Tensor) -> Tensor:
        """Give α of shape (novel classes, base classes) from prototypes."""

    def related(self, similarity: Tensor) -> Tensor:
        """Give R as a boolean mask over α: which base classes each novel class is paired with."""


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
        """Give the softmax over negative squared distances."""
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
    """Build a neighbourhood by name: ``soft``, ``hard`` or ``uniform``."""
    kinds: dict[str, Neighborhood] = {
        "soft": SoftNeighborhood(temperature),
        "hard": HardNeighborhood(neighbors),
        "uniform": UniformNeighborhood(),
    }
    if kind not in kinds:
        raise InputError(f"unknown neighborhood {kind!r}; choose one of {', '.join(kinds)}")
    return kinds[kind]
