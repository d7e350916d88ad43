"""Prototypical network on frozen features: classes are the means of their embedded examples."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.functional.distances import squared_distances
from cpaan.functional.prototypes import prototypes
from cpaan.nn.episodic import EpisodicNetwork
from cpaan.nn.residual import ResidualEmbedding


class DirectionEmbedding(nn.Module):
    """f(x) = r(x̂), with r a residual network and x̂ = √D · x / ‖x‖ or, where lengths tell classes apart, x̂ = x.

    Of features with hundreds of coordinates the direction says what an example is, and the length little: with it
    left out, one example is a much better prototype. With a few coordinates the length is most of what there is.

    Parameters
    ----------
    dimension : D
    width : of the hidden layer of r, which begins as the identity
    directions : whether to leave the length out

    >>> embedding = DirectionEmbedding(2, 4, directions=True)
    >>> embedding(torch.tensor([[0.0, 5.0]])).square().sum().round().item()
    2.0
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.dimension, self.directions = dimension, directions
        self.residual = ResidualEmbedding(dimension, width)

    def forward(self, features: Tensor) -> Tensor:
        """Embed (…, D)."""
        if self.directions:
            features = normalize(features, dim=-1) * math.sqrt(self.dimension)
        embedded: Tensor = self.residual(features)
        return embedded


class PrototypicalScores(EpisodicNetwork):
    """score(k given x) = −exp(s) ‖f(x) − c_k‖², with c_k the mean of f over the support of class k.

    Squared distances grow with the dimension; the learned scale exp(s), which begins at 1/√D, keeps their softmax
    from saturating.

    Parameters
    ----------
    dimension, width, directions : see `DirectionEmbedding`

    >>> network = PrototypicalScores(2, 4, directions=False)
    >>> support, labels = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 0.0]]), torch.tensor([0, 0, 1])
    >>> memory = network.encode(support, labels, 2)
    >>> (network.score(memory, torch.tensor([[1.0, 1.0]])).detach() * 2**0.5).round().tolist()
    [[-1.0, -17.0]]
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        self.log_scale = nn.Parameter(torch.tensor(-0.5 * math.log(dimension)))

    def embed(self, features: Tensor) -> Tensor:
        """Give f(x) for features of shape (…, D)."""
        embedded: Tensor = self.embedding(features)
        return embedded

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give the prototypes, (classes, D), as the only part of what is kept of an embedded support."""
        return (prototypes(embedded, labels, n_classes),)

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query: (n, D) to (n, classes)."""
        (means,) = memory
        return -squared_distances(self.embed(query), means) * self.log_scale.exp()
