"""Whether kernels of our own can be used, which need Triton and a GPU that multiplies matrices in TensorFloat-32."""

from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch

AMPERE = (8, 0)


@lru_cache(maxsize=8)
def find_kernels(name: str, device: torch.device) -> ModuleType | None:
    """Import a module of kernels where they can run on a device.

    >>> find_kernels("cpaan.functional.small_kernels", torch.device("cpu")) is None
    True
    """
    if not is_recent_gpu(device):
        return None
    try:
        return import_module(name)
    except ImportError:  # no Triton
        return None


def is_recent_gpu(device: torch.device) -> bool:
    """Tell whether a device is a CUDA GPU with bfloat16 and TensorFloat-32.

    >>> is_recent_gpu(torch.device("cpu"))
    False
    """
    return (
        device.type == "cuda" and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= AMPERE
    )
