"""Initial weights of networks that follow from a seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

# Layers draw their weights from the one generator that all threads share.
_GLOBAL_GENERATOR = Lock()


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Build networks with weights that depend on the seed, one thread at a time; the global random state is kept.

    >>> layers = []
    >>> for _ in range(2):
    ...     with initial_weights(3):
    ...         layers.append(torch.nn.Linear(2, 2))
    >>> torch.equal(layers[0].weight, layers[1].weight)
    True
    """
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
