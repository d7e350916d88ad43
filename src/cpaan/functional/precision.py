"""How exactly a GPU multiplies matrices of single precision; other devices always use all digits."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def _tensor_float(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def fast_products() -> AbstractContextManager[None]:
    """Let a GPU multiply matrices with the eleven leading digits of each factor; sums keep all of float32's."""
    return _tensor_float(True)


def full_precision() -> AbstractContextManager[None]:
    """Do matrix products in all of float32's digits, whatever a GPU was told to do otherwise."""
    return _tensor_float(False)
