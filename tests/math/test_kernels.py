"""Which devices have kernels of our own, and what the kernels are given: told without a GPU."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from cpaan.math import ky_fan_cuda as combinations
from cpaan.math import ky_fan_cuda as small_matrices
from cpaan.math.ky_fan_cuda import (
    eigh_by_size,
    is_recent_gpu,
    kernels_for,
    leading_combinations,
    shifted_cholesky,
    whitening,
)


@pytest.mark.parametrize(
    ("cuda", "capability", "recent"),
    [("12.4", (8, 0), True), ("12.4", (9, 0), True), ("12.4", (7, 5), False), (None, (9, 0), False)],
)
def test_a_gpu_is_recent_from_ampere_on_unless_it_is_no_nvidia_gpu(
    cuda: str | None, capability: tuple[int, int], recent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = torch.device("cuda", 1)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {second: capability}.__getitem__)
    assert is_recent_gpu(second) is recent


def on_gpu(size: int, dtype: torch.dtype = torch.float32, is_cuda: bool = True) -> Tensor:
    """Give all that is asked of matrices before they are looked at."""
    shape = torch.Size((3, 70, size, size))
    return cast("Tensor", SimpleNamespace(shape=shape, dtype=dtype, is_cuda=is_cuda, device=torch.device("cuda", 1)))


def test_kernels_are_for_matrices_of_single_precision_on_a_gpu_that_are_not_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels, asked = Mock(LARGEST=64), []

    def find_kernels(name: str, device: torch.device) -> Mock:
        asked.append((name, device))
        return kernels

    monkeypatch.setattr(small_matrices, "find_kernels", find_kernels)
    assert kernels_for(on_gpu(64)) is kernels
    assert kernels_for(on_gpu(65)) is None
    assert kernels_for(on_gpu(64, torch.float64)) is None
    assert kernels_for(on_gpu(64, is_cuda=False)) is None
    assert {device for _, device in asked} == {torch.device("cuda", 1)}
    assert all(find_spec(name) for name, _ in asked)
    monkeypatch.setattr(small_matrices, "find_kernels", lambda name, device: None)  # no Triton
    assert kernels_for(on_gpu(64)) is None


def test_kernels_do_the_work_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Mock(SMALL=32)
    monkeypatch.setattr(small_matrices, "kernels_for", lambda matrices: kernels)
    small, larger = torch.eye(32).repeat(2, 40, 1, 1), torch.eye(33)
    assert eigh_by_size(small) is kernels.eigh_by_size.return_value
    assert torch.equal(eigh_by_size(larger)[0], torch.ones(33))
    kernels.eigh_by_size.assert_called_once_with(small)
    assert whitening(small) is kernels.whitening.return_value
    kernels.whitening.assert_called_once_with(small, shifted_cholesky(small)[2])


def test_kernels_begin_combinations_where_a_processor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, rows = Mock(), torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    gram, begun = rows @ rows.mT, leading_combinations(rows @ rows.mT, 12, 8, steps=0)
    monkeypatch.setattr(combinations, "kernels_for", lambda matrices: kernels)
    assert leading_combinations(gram, 12, 8, steps=3) is kernels.leading_combinations.return_value
    given, start, *others = kernels.leading_combinations.call_args.args
    assert given is gram
    rounding = combinations.ROUNDINGS * torch.finfo(torch.float32).eps
    assert others == [12, 3, shifted_cholesky(torch.eye(8))[2], rounding]
    found, expected = (torch.linalg.qr(rows.mT @ combination).Q for combination in (start, begun))
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT, rtol=0, atol=1e-4)
