"""Weights of networks: from a file, from a seed, and from a checkpoint that holds several networks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor, nn

from cpaan.errors import InputError

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def load_weights(build: Callable[[], NetworkT], weights: Mapping[str, Tensor]) -> NetworkT:
    """Build a network and load its weights; refuse those of another network with an InputError.

    `build` is called twice, first on the meta device, where tensors have no values: a configuration may come from
    anywhere and ask for networks of any size.

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
    """Build networks with weights that depend on the seed, one thread at a time; restore the global random state."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with a prefix, and strip it.

    >>> part_of({"kept.bias": torch.zeros(1), "step": torch.ones(1)}, "kept.")
    {'bias': tensor([0.])}
    """
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
