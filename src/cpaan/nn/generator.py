"""Generators: translate an example of a source class into a target class, both given by their prototypes."""

from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear


class Generator(nn.Module):
    """G(y_target; x, y_source[, z]): a three-layer MLP on an example, two prototypes and noise.

    Inputs broadcast against each other in their leading dimensions. The first layer is linear in each input, so it is
    applied to each of them as it comes and only its outputs are broadcast: a table of N target classes × M examples
    costs N + M first-layer products instead of N · M.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    noise_dimension : 0 for a generator without noise
    residual : start from "keep the deviation", l_target + (x − l_source), and learn what to add;
        otherwise the output is the MLP's alone, as in the paper
    gain : inputs are multiplied and outputs divided by it, so that layers see values of about one
        whatever the units of the features; 1 is the paper's
    negative_slope : of the leaky ReLUs

    >>> import torch
    >>> generator = Generator(dimension=2, width=8, residual=True)
    >>> generator(torch.ones(1, 5, 2), torch.zeros(1, 5, 2), torch.zeros(3, 1, 2)).shape
    torch.Size([3, 5, 2])
    """

    def __init__(
        self,
        dimension: int,
        width: int,
        *,
        noise_dimension: int = 0,
        residual: bool = False,
        gain: float = 1.0,
        negative_slope: float = 0.1,
    ) -> None:
        super().__init__()
        self.sizes = [dimension, dimension, dimension, noise_dimension]
        self.residual, self.gain, self.negative_slope = residual, gain, negative_slope
        self.input = nn.Linear(sum(self.sizes), width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, dimension)
        if residual:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, example: Tensor, source: Tensor, target: Tensor, noise: Tensor | None = None) -> Tensor:
        """Translate `example` of the class with prototype `source` to the class with prototype `target`."""
        of_example, of_source, of_target, of_noise = self.input.weight.split(self.sizes, dim=1)
        hidden = (
            linear(example * self.gain, of_example, self.input.bias)
            + linear(source * self.gain, of_source)
            + linear(target * self.gain, of_target)
        )
        if noise is not None:
            hidden = hidden + linear(noise, of_noise)
        hidden = leaky_relu(hidden, self.negative_slope)
        hidden = leaky_relu(self.hidden(hidden), self.negative_slope)
        made: Tensor = self.output(hidden) / self.gain
        return target + (example - source) + made if self.residual else made
