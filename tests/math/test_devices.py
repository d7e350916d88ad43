"""What a GPU runs stays on its device and never asks for a value: told by tensors that have a shape and no values."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cpaan.centers.calibrated import at_length
from cpaan.math import kmeans, linear_gaussian
from cpaan.math.covariance import covariance, quick_truncated_factors
from cpaan.math.ky_fan import covariance_distance, ky_fan_norm
from cpaan.math.ky_fan_cuda import (
    eigh_by_size,
    jacobi_eigh,
    leading_combinations,
    leading_eigenvectors,
    orthonormal,
    shifted_cholesky,
    whitening,
)


class OneDevice(TorchFunctionMode):
    """Refuse work with tensors on several devices, which only some functions do where there are no values."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        tensors = [value for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
        assert function is Tensor.to or len({tensor.device for tensor in tensors if tensor.ndim}) <= 1
        return function(*arguments, **named)


def shaped(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


WORK: dict[str, Callable[[], Tensor | tuple[Tensor, ...]]] = {
    "eigenpairs": lambda: leading_eigenvectors(shaped(2, 30, 30), 4),
    "Ky Fan norm": lambda: ky_fan_norm(shaped(2, 60, 60), 3, "iterative"),
    "combinations": lambda: leading_combinations(shaped(2, 20, 20), 12, 8),
    "distance": lambda: covariance_distance(shaped(2, 3, 5, 40), shaped(2, 4, 40), 3, "iterative"),
    "distance of long factors": lambda: covariance_distance(shaped(2, 3, 80, 90), shaped(2, 60, 90), 3, "iterative"),
    "small eigenpairs": lambda: eigh_by_size(shaped(2, 5, 5)),
    "small eigenpairs by rotations": lambda: jacobi_eigh(shaped(2, 5, 5)),
    "orthonormal": lambda: orthonormal(shaped(2, 9, 5)),
    "whitening": lambda: whitening(shaped(2, 5, 5)),
    "Cholesky": lambda: shifted_cholesky(shaped(2, 5, 5))[:2],
    "factors": lambda: quick_truncated_factors([shaped(30, 20), shaped(9, 20)], 4),
    "covariance": lambda: covariance(shaped(30, 20)),
    "lengths": lambda: at_length(shaped(3, 4), shaped(4), 2.0),
    "ridge": lambda: linear_gaussian._with_ridge(shaped(4, 4), 1.0),
    "members": lambda: kmeans._members(shaped(2, 9).long(), shaped(2, 9).bool(), 3, torch.float32),
}


@pytest.mark.parametrize("name", WORK)
def test_no_value_is_asked_for_and_no_other_device_is_used(name: str) -> None:
    with OneDevice():
        found = WORK[name]()
    assert all(part.is_meta for part in (found if isinstance(found, tuple) else (found,)))
