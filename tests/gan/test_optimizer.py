"""Optimizers: Adam as torch has it, without torch's compiler."""

import subprocess
import sys

import torch
from torch import nn

from cpaan.gan.optimizer import Optimizer

WITHOUT_COMPILER = """
import sys, torch
from cpaan.gan.optimizer import Optimizer
weight = torch.nn.Parameter(torch.ones(3))
Optimizer([weight], [weight], torch.tensor(0.1), 0.5).update(weight.square().sum())
assert "torch._dynamo" not in sys.modules
"""


def make_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (4,), (2,))]


def loss_of(weights: list[nn.Parameter], target: torch.Tensor) -> torch.Tensor:
    return (weights[0] @ target + weights[1]).square().sum()  # the last weight has no part in it


def test_updates_are_those_of_torchs_adam_to_the_bit() -> None:
    weights, expected = make_weights(), make_weights()
    rate = torch.tensor(0.01)
    ours = Optimizer(weights, weights, rate, 0.5)
    theirs = torch.optim.Adam(expected, rate, (0.5, 0.999), fused=True)
    for target in torch.randn((20, 3), generator=torch.Generator().manual_seed(1)):
        ours.update(loss_of(weights, target))
        theirs.zero_grad()
        loss_of(expected, target).backward()
        theirs.step()
    assert all(torch.equal(found, wanted) for found, wanted in zip(weights, expected, strict=True))
    remembered = {f"{n}.{name}": v for n, of_one in theirs.state_dict()["state"].items() for name, v in of_one.items()}
    assert ours.state().keys() == remembered.keys()
    assert all(torch.equal(value, remembered[name]) for name, value in ours.state().items())


def test_training_does_not_load_torchs_compiler() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], check=True)
