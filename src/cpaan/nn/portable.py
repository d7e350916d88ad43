"""A trained generator for use elsewhere: features go in and come out as they are, in the user's own units."""

import copy

from torch import Tensor, nn

from cpaan.functional.scaling import Scaling
from cpaan.nn.generator import Generator


class PortableGenerator(nn.Module):
    """G_n with the change of units before and after it, in single precision on the CPU.

    Parameters
    ----------
    generator : Generator
        What was trained; it is copied.
    scaling : Scaling
        From the user's units to those that it was trained in.

    >>> import torch
    >>> scaling = Scaling(torch.tensor([10.0, 10.0]), 2.0)
    >>> portable = PortableGenerator(Generator(dimension=2, width=8, residual=True), scaling)
    >>> portable(torch.tensor([[11.0, 10.0]]), torch.tensor([[10.0, 10.0]]), torch.tensor([[20.0, 30.0]])).tolist()
    [[21.0, 30.0]]
    """

    def __init__(self, generator: Generator, scaling: Scaling) -> None:
        super().__init__()
        self.generator = copy.deepcopy(generator).cpu().float()
        self.register_buffer("origin", scaling.origin.detach().cpu().float().clone())
        self.factor = float(scaling.factor)
        self.eval().requires_grad_(False)

    origin: Tensor

    def forward(self, example: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Translate examples of source classes to target classes, all in the user's units: each (…, D)."""
        scaling = Scaling(self.origin, self.factor)
        made: Tensor = self.generator(*(scaling.apply(each.float()) for each in (example, source, target)))
        return scaling.undo(made)
