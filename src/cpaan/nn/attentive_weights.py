"""The cosine classifier of base classes, and the generator of weights for classes that it has never seen."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpaan.nn.residual import ResidualEmbedding

START_SCALE, START_ATTENTION_SCALE = 10.0, 30.0


class AttentiveWeights(nn.Module):
    """score(c given x) = τ cos(z, w_c), z = f(x), with a weight w_b for each base class.

    For a novel class with examples z_1 … z_K, where z̄ and w̄ are of length one,

    w = φ_avg ⊙ (1/K) Σ_i z̄_i + φ_att ⊙ (1/K) Σ_i Σ_b a_ib w̄_b,  a_i = softmax over b of γ cos(Q z̄_i, k_b)

    Parameters
    ----------
    dimension, n_base : D and the number of base classes B
    width : of the hidden layer of f, which begins as the identity; 0 for none

    >>> network = AttentiveWeights(3, 3, width=0)
    >>> network.imprint(torch.eye(3))
    >>> network.scores(torch.tensor([[2.0, 0.0, 0.0]]), network.base_weights).round().tolist()
    [[10.0, 0.0, 0.0]]
    """

    def __init__(self, dimension: int, n_base: int, *, width: int) -> None:
        super().__init__()
        self.embedding = ResidualEmbedding(dimension, width)
        self.base_weights = nn.Parameter(torch.zeros(n_base, dimension))
        self.keys = nn.Parameter(torch.zeros(n_base, dimension))
        self.query = nn.Parameter(torch.eye(dimension))
        self.average_gain = nn.Parameter(torch.ones(dimension))
        self.attention_gain = nn.Parameter(torch.ones(dimension))
        self.scale = nn.Parameter(torch.tensor(START_SCALE))
        self.attention_scale = nn.Parameter(torch.tensor(START_ATTENTION_SCALE))

    def imprint(self, means: Tensor) -> None:
        """Begin with the given weights and keys, (B, D): the mean of each base class's z̄."""
        # NOTE[paper]: keys begin at random there; at the classes that they stand for, attention is of use at once.
        with torch.no_grad():
            self.base_weights.copy_(means)
            self.keys.copy_(means)

    def embed(self, features: Tensor) -> Tensor:
        """Give z̄ for features of shape (…, D)."""
        return functional.normalize(self.embedding(features), dim=-1)

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Score classes that have the given weights, (n, D) and (C, D) to (n, C)."""
        return self.scale * self.embed(features) @ functional.normalize(weights, dim=-1).T

    def attend(self, examples: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Give Σ_b a_b w̄_b for each embedded example, (…, D), without the base classes that are excluded (B,)."""
        queries = functional.normalize(examples @ self.query.T, dim=-1)
        similarity = self.attention_scale * queries @ functional.normalize(self.keys, dim=-1).T
        if excluded is not None:
            similarity = similarity.masked_fill(excluded, -torch.inf)
        return similarity.softmax(-1) @ functional.normalize(self.base_weights, dim=-1)

    def generate(self, average: Tensor, attended: Tensor) -> Tensor:
        """Put the mean of z̄_i and the mean of what they attend to together, (…, D)."""
        return self.average_gain * average + self.attention_gain * attended
