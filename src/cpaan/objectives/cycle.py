"""Cycle consistency: a translation there and back ends where it started."""

from torch import Tensor

from cpaan.objectives.adversarial import weighted_mean


def cycle_loss(returned: Tensor, started: Tensor, weights: Tensor) -> Tensor:
    """E α ‖G(G'(x)) − x‖² for one direction of the cycle.

    Parameters
    ----------
    returned : Tensor of shape (N, M, D), the ends of the cycles
    started : Tensor that broadcasts to it, the examples that they started from
    weights : Tensor of shape (N, M)

    >>> import torch
    >>> cycle_loss(torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2), torch.ones(1, 1))
    tensor(25.)
    """
    # NOTE[paper]: the printed norm lost its "− x".
    return weighted_mean((returned - started).square().sum(-1), weights)
