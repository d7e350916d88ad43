"""Weights from a file into a network."""

from collections.abc import Callable, Mapping
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
