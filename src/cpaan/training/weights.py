"""Weights from a file into a network.

Initial weights of networks that follow from a seed alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor, nn

from cpaan.errors import InputError

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def load_weights(build: Callable[[], NetworkT], weights: Mapping[str, Tensor]) -> NetworkT:
    """Build a network and give it weights; refuse those of another network before memory is taken for this one.

    Parameters
    ----------
    build : callable
        Builds the network. It is called twice, at first where tensors have shapes and no values: a configuration may
        come from anywhere and ask for networks of any size.
    weights : mapping of str to Tensor
        What `state_dict` gave.

    Raises
    ------
    InputError
        Where names or shapes differ.

    Examples
    --------
    >>> load_weights(lambda: nn.Linear(2, 10**9), {"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: weights and configuration do not fit one another: a network of other sizes
    """
    with torch.device("meta"):
        expected = {name: value.shape for name, value in build().state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise InputError("weights and configuration do not fit one another: a network of other sizes")
    network = build()
    network.load_state_dict(dict(weights))
    return network


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
