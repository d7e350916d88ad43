"""A network on frozen features that begins as the identity."""

from torch import Tensor, nn


class ResidualEmbedding(nn.Module):
    """f(x) = x + V relu(U x + u) + v, with V and v zero at the start.

    Features of a trained network are already good: what a small network adds to them is learned from there, and a
    few steps of training can only do little harm.

    Parameters
    ----------
    dimension : D
    width : of the hidden layer; 0 leaves features as they are

    >>> import torch
    >>> embedding = ResidualEmbedding(3, 8)
    >>> embedding(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.branch: nn.Sequential | None = None
        if width:
            last = nn.Linear(width, dimension)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.branch = nn.Sequential(nn.Linear(dimension, width), nn.ReLU(), last)

    def forward(self, features: Tensor) -> Tensor:
        """Embed (…, D)."""
        if self.branch is None:
            return features
        added: Tensor = self.branch(features)
        return features + added
