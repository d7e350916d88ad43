"""The temperature of the soft neighbourhood, calibrated to a wanted number of neighbours.

Without a temperature the softmax over squared distances depends on the units of the features: flat at small
scales, one-hot at large ones. The perplexity of α, its effective number of base classes, does not.
"""

import math

import torch
from torch import Tensor

from cpaan.functional.distances import squared_distances

FEWEST_CLASSES = 3  # with two, a class left out has one neighbour whatever the temperature
HALVINGS = 60
# Enough for a mean that is stable to a few per mille, and time and memory that grow no faster than the classes.
MOST_LEFT_OUT = 1000


def mean_perplexity(distances: Tensor, temperature: float) -> Tensor:
    """Average exp(entropy) of the softmax rows of −distances / temperature.

    >>> mean_perplexity(torch.tensor([[1.0, 1.0, 1e9]]), 1.0)
    tensor(2.)
    """
    alpha = torch.softmax(-distances / temperature, dim=-1)
    entropy = -torch.special.xlogy(alpha, alpha).sum(-1)
    mean: Tensor = entropy.exp().mean()
    return mean


def calibrated_temperature(prototypes: Tensor, perplexity: float) -> float:
    """Find the temperature at which left-out base classes have a wanted mean perplexity.

    Each base prototype in turn plays the novel class; the others are its base classes. Of many, a thousand that are
    evenly spread play it. A perplexity of at least the number of the others is out of reach and gives a temperature
    that is nearly uniform.

    Parameters
    ----------
    prototypes : Tensor of shape (classes, D)
    perplexity : float
        Wanted effective number of neighbours, above 1.

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
