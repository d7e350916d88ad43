"""The network that completes analogies between examples of two classes."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from cpaan.nn.initial_weights import initial_weights


class AnalogyNetwork(nn.Module):
    """G([A, C, D]) → B such that A is to B as C is to D: a three-layer MLP with ReLUs.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    floor : the last ReLU, max(output, floor), in the units of the network: 0 for features as they come from a ReLU,
        (0 − origin) · factor for scaled ones; None for features of either sign, where there is no last ReLU

    >>> network = AnalogyNetwork(dimension=2, width=8, floor=torch.zeros(2))
    >>> made = network(torch.ones(5, 2), torch.zeros(5, 2), torch.ones(5, 2))
    >>> made.shape, bool((made >= 0).all())
    (torch.Size([5, 2]), True)
    """

    floor: Tensor | None

    def __init__(self, dimension: int, width: int, floor: Tensor | None = None) -> None:
        super().__init__()
        self.input = nn.Linear(3 * dimension, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, dimension)
        self.register_buffer("floor", floor)

    def forward(self, seed: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Do to `seed` (A) what leads from `source` (C) to `target` (D)."""
        hidden = relu(self.input(torch.cat([seed, source, target], dim=-1)))
        made: Tensor = self.output(relu(self.hidden(hidden)))
        return made if self.floor is None else made.maximum(self.floor)


def build_analogy_network(dimension: int, width: int, floor: Tensor | None, seed: int) -> AnalogyNetwork:
    """Build one whose initial weights depend on the seed alone; the global random state is kept."""
    with initial_weights(seed):
        return AnalogyNetwork(dimension, width, floor)
