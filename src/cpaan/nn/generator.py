"""Generators: translate an example of a source class into a target class, both given by their prototypes."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from cpaan.nn.dense import dense


class Condition(NamedTuple):
    """What a translation has in common with others between the same classes and with the same noise."""

    hidden: Tensor  # what the prototypes and the noise add to the first hidden layer
    shift: Tensor | None  # l_target − l_source, where the generator is residual


class Generator(nn.Module):
    """G(y_target; x, y_source[, z]): a three-layer MLP on an example, two prototypes and noise.

    Inputs broadcast against each other in their leading dimensions. The first layer is linear in each input, so it is
    applied to each of them as it comes and only its outputs are broadcast: a table of N target classes × M examples
    costs N + M first-layer products instead of N · M. What depends on the classes alone, a `Condition`, can be kept
    for the way back of a cycle.

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

    Layers compute in the precision of their weights, whatever that of the features is. It is an ordinary module: it
    works in eval mode on plain tensors, passes gradients to its inputs, and can be compiled and exported by torch.
    The generator of a trained model takes and gives features in the model's units; `PortableGenerator` is the one for
    features as they are.

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
        self.residual, self.gain, self.negative_slope = residual, gain, negative_slope
        together = nn.Linear(3 * dimension + noise_dimension, width)
        sizes = [dimension, dimension, dimension, noise_dimension]
        parts = [nn.Parameter(part.contiguous()) for part in together.weight.detach().split(sizes, dim=1)]
        self.of_example, self.of_source, self.of_target = parts[:3]
        self.of_noise = parts[3] if noise_dimension else None
        self.bias = nn.Parameter(together.bias.detach())
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, dimension)
        if residual:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, example: Tensor, source: Tensor, target: Tensor, noise: Tensor | None = None) -> Tensor:
        """Translate examples from one class to another.

        Parameters
        ----------
        example : Tensor of shape (…, D), of the source class
        source, target : Tensor of shape (…, D), prototypes of the two classes
        noise : Tensor of shape (…, Z), for a generator with noise; left out, it counts as zero

        Returns
        -------
        Tensor of shape (…, D), in the shape that the inputs broadcast to
        """
        return self.translate(example, self.condition(source, target, noise))

    def condition(self, source: Tensor, target: Tensor, noise: Tensor | None = None) -> Condition:
        """Do once what several translations between the same classes share."""
        hidden = self.from_source(source) + self.to_target(target)
        if noise is not None and self.of_noise is not None:
            hidden = hidden + linear(noise.to(self.of_noise.dtype), self.of_noise)
        return Condition(hidden, target - source if self.residual else None)

    def from_source(self, source: Tensor) -> Tensor:
        """Give what source classes add to the first hidden layer."""
        return linear(self._gained(source), self.of_source)

    def to_target(self, target: Tensor) -> Tensor:
        """Give what target classes add to the first hidden layer."""
        return linear(self._gained(target), self.of_target, self.bias)

    def translate(self, example: Tensor, condition: Condition) -> Tensor:
        """Translate `example` between the classes of the condition."""
        hidden = linear(self._gained(example), self.of_example) + condition.hidden
        hidden = leaky_relu(hidden, self.negative_slope, inplace=True)
        hidden = dense(hidden, self.hidden.weight, self.hidden.bias, self.negative_slope)
        made = dense(hidden, self.output.weight, self.output.bias)
        if self.gain != 1:
            made = made / self.gain
        return made if condition.shift is None else made + example + condition.shift

    def _gained(self, features: Tensor) -> Tensor:
        features = features.to(self.of_example.dtype)
        return features if self.gain == 1 else features * self.gain
