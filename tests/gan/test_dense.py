"""A layer in one piece against the plain operations that it stands for."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear

from cpaan.gan.networks import dense

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def operands(device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 37, 20), (70, 20), (70,))  # no multiples of what a kernel takes at once
    values, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return tuple(part.to(device).requires_grad_() for part in (values, weight, bias))  # type: ignore[return-value]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slope", [0.1, 1.0])
def test_values_and_gradients_are_those_of_plain_operations(device: str, slope: float) -> None:
    ours, theirs = operands(device), operands(device)
    found = dense(*ours, slope)
    expected = leaky_relu(linear(*theirs), slope)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_that_need_no_gradient_get_none(device: str) -> None:
    values, weight, bias = (part.detach() for part in operands(device))
    dense(values.requires_grad_(), weight, bias, 0.1).sum().backward()
    assert values.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_layers_compute_in_the_precision_of_their_weights(device: str) -> None:
    values, weight, bias = (part.detach() for part in operands(device))
    weight, bias = (part.bfloat16().requires_grad_() for part in (weight, bias))
    found, expected = dense(values, weight, bias, 0.1), leaky_relu(linear(values, weight.float(), bias.float()), 0.1)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=5e-2)
    gradients = torch.autograd.grad(found.float().square().sum(), (weight, bias))
    exact = torch.autograd.grad(expected.square().sum(), (weight, bias))
    for one, other in zip(gradients, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert float((one - other).abs().max()) < 0.05 * float(other.abs().max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(0, 20), (3, 0, 20), (20,)])
def test_no_rows_and_a_single_row_go_through(device: str, shape: tuple[int, ...]) -> None:
    _, weight, bias = operands(device)
    values = torch.ones(shape, device=device)
    torch.testing.assert_close(dense(values, weight, bias, 0.1), leaky_relu(linear(values, weight, bias), 0.1))
