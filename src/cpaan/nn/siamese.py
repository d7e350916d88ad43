"""The twin network that tells whether two examples are of one class."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpaan.nn.prototypical import DirectionEmbedding

# Odds at the start, of two examples at no distance and at the mean distance of unlike ones: e⁴ and about one.
_START = 4.0


class TwinNetwork(nn.Module):
    """log odds(x, x') = bias + Σ_j α_j |f(x)_j − f(x')_j|.

    Parameters
    ----------
    dimension : D, of features with a mean square of about one
    width, directions : of f, see `DirectionEmbedding`

    >>> network = TwinNetwork(2, 4, directions=False)
    >>> same = torch.tensor([[1.0, 2.0]])
    >>> bool(network(same, same) == network.bias)
    True
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        # α = stretched / √D, so that one rate of learning suits any number of features.
        self.stretched = nn.Parameter(torch.full((dimension,), -_START / math.sqrt(dimension)))
        self.bias = nn.Parameter(torch.tensor(_START))

    @property
    def importance(self) -> Tensor:
        """α, of shape (D,)."""
        return self.stretched / math.sqrt(len(self.stretched))

    def embed(self, features: Tensor) -> Tensor:
        """Give f(x) for features of shape (…, D)."""
        embedded: Tensor = self.embedding(features)
        return embedded

    def compare(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the log odds of every pair of embedded examples, (n, D) and (m, D) to (n, m)."""
        # Σ_j α_j |a_j − b_j| is an L1 distance of scaled vectors once the α_j of either sign are apart.
        log_odds = self.bias.expand(len(left), len(right))
        for sign in (1, -1):
            scale = (sign * self.importance).clamp_min(0)
            if bool((scale > 0).any()):  # most often all α are negative
                log_odds = log_odds + sign * torch.cdist(left * scale, right * scale, p=1)
        return log_odds

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the log odds of every pair of examples."""
        return self.compare(self.embed(left), self.embed(right))


def balanced_pair_loss(log_odds: Tensor, same: Tensor) -> Tensor:
    """Binary cross-entropy of pairs, where those of one class and those of two count half each.

    >>> odds = torch.zeros(3, 3)
    >>> round(float(balanced_pair_loss(odds, torch.eye(3, dtype=torch.bool))), 4)  # log 2
    0.6931
    """
    losses = functional.binary_cross_entropy_with_logits(log_odds, same.to(log_odds.dtype), reduction="none")
    kinds = [losses[mask].mean() for mask in (same, ~same) if mask.any()]
    return torch.stack(kinds).mean()
