"""Where to compute."""

import torch

from cpaan.errors import InputError
from cpaan.functional.kernels import is_recent_gpu


def choose_device(name: str) -> torch.device:
    """Turn ``"auto"`` or the name of a device into a device that torch can use.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"torch cannot use the device {name!r} here ({reason}); try device='auto'") from error
    return torch.device(name)


def layer_precision(device: torch.device) -> torch.dtype:
    """Give the precision in which layers are best computed while they train.

    >>> layer_precision(torch.device("cpu"))
    torch.float32
    """
    return torch.bfloat16 if is_recent_gpu(device) else torch.float32
