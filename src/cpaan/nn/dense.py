"""A layer, leaky_relu(W x + b), with as few passes over its values as a GPU needs."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear

from cpaan.functional.kernels import find_kernels


def dense(values: Tensor, weight: Tensor, bias: Tensor, negative_slope: float = 1.0) -> Tensor:
    """Give leaky_relu(W x + b); a slope of 1 leaves the activation out.

    Parameters
    ----------
    values : Tensor of shape (…, inputs); converted to the precision of the weights
    weight : Tensor of shape (outputs, inputs)
    bias : Tensor of shape (outputs,)
    negative_slope : of the leaky ReLU

    >>> dense(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.zeros(2), 0.5)
    tensor([[ 1., -1.]])
    """
    values = values.to(weight.dtype)
    if values.is_cuda and not torch.compiler.is_compiling() and _kernels(values.device) is not None:
        fused: Tensor = _Dense.apply(values, weight, bias, negative_slope)  # type: ignore[no-untyped-call]
        return fused
    flat = values.reshape(-1, values.shape[-1])  # in place on a view, as of more dimensions, would mean copies
    found = linear(flat, weight, bias)
    if negative_slope != 1:
        found = leaky_relu(found, negative_slope, inplace=True)
    return found.view(*values.shape[:-1], len(weight))


class _Dense(torch.autograd.Function):
    """What follows the products, forward and backward, in one pass each."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, negative_slope: float) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])
        found = flat @ weight.T
        kernels = _kernels(values.device)
        assert kernels is not None
        kernels.activate(found, bias, negative_slope)
        ctx.save_for_backward(flat, weight, found)
        ctx.negative_slope, ctx.shape = negative_slope, values.shape
        return found.view(*values.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight, found = ctx.saved_tensors
        kernels = _kernels(flat.device)
        assert kernels is not None
        gradient = grad_output.reshape(len(flat), -1).contiguous()
        wanted = ctx.needs_input_grad
        gradient, of_bias = kernels.derivative(gradient, found, ctx.negative_slope)
        of_values = (gradient @ weight).view(ctx.shape) if wanted[0] else None
        of_weight = gradient.T @ flat if wanted[1] else None
        return of_values, of_weight, of_bias, None


def _kernels(device: torch.device) -> ModuleType | None:
    return find_kernels("cpaan.nn.dense_kernels", device)
