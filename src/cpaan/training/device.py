"""Where to compute."""

import torch

from cpaan.errors import InputError
from cpaan.math.ky_fan_cuda import is_recent_gpu

_NAMES = "give auto, cpu, cuda or mps"


def choose_device(name: str) -> torch.device:
    """Turn the name of a device, or ``"auto"``, into one that torch can use; raise InputError where it cannot.

    ``"auto"`` takes a GPU that torch can use, or else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind = name.partition(":")[0] if isinstance(name, str) else None
    if kind is None or kind == "meta":  # computes shapes without values
        raise InputError(f"torch cannot use the device {name!r} here; {_NAMES}")
    try:
        device = torch.device(name)
        # Compute: a device that exists may still lack the operations.
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"torch cannot use the device {name!r} here ({reason}); {_cure(kind)}") from error
    return device


def _cure(kind: str) -> str:
    if kind == "cuda":
        if torch.version.cuda is None and torch.version.hip is None:
            return "this torch was built without CUDA: install one with it, or take device='auto'"
        count = torch.cuda.device_count()
        if count:
            return f"there are {count} devices, cuda:0 to cuda:{count - 1}"
        return "there is no NVIDIA GPU, or its driver is missing; take device='auto'"
    if kind == "mps":
        return "that is for Macs with an Apple GPU; take device='auto'"
    return _NAMES


def layer_precision(device: torch.device) -> torch.dtype:
    """Return the precision in which layers train fastest."""
    return torch.bfloat16 if is_recent_gpu(device) else torch.float32
