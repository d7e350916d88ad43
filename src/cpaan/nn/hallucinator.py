"""Hallucinator: one more example of a class, made of an example that is there and noise."""

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init


class Hallucinator(nn.Module):
    """G(x, z): a three-layer MLP that begins as x + ε z.

    Its layers begin as blocks of identities. A hidden layer is twice as wide as the features, half of it for what is
    above zero and half for what is below, x = relu(x) − relu(−x), so that features of either sign come through:

    h₁ = relu([x + ε z, −x − ε z]),  h₂ = relu(h₁),  G = [I, −I] h₂

    NOTE[paper]: there features are non-negative and hidden layers as wide as they are, which is the upper half alone.

    Parameters
    ----------
    dimension : D, of features and of noise
    noise : ε
    floor : least value of each feature, (D,), or None; zero in the user's units where features are never negative

    >>> hallucinator = Hallucinator(2, noise=0.5)
    >>> hallucinator(torch.tensor([[1.0, -2.0]]), torch.tensor([[2.0, 0.0]])).tolist()
    [[2.0, -2.0]]
    """

    floor: Tensor | None

    def __init__(self, dimension: int, *, noise: float, floor: Tensor | None = None) -> None:
        super().__init__()
        # Without torch's initial weights, which would be drawn from the global random state.
        self.first = skip_init(nn.Linear, 2 * dimension, 2 * dimension)
        self.second = skip_init(nn.Linear, 2 * dimension, 2 * dimension)
        self.third = skip_init(nn.Linear, 2 * dimension, dimension)
        self.register_buffer("floor", floor)
        identity = torch.eye(dimension)
        with torch.no_grad():
            above = torch.cat([identity, noise * identity], dim=1)
            self.first.weight.copy_(torch.cat([above, -above]))
            self.second.weight.copy_(torch.eye(2 * dimension))
            self.third.weight.copy_(torch.cat([identity, -identity], dim=1))
            for layer in (self.first, self.second, self.third):
                layer.bias.zero_()

    def forward(self, example: Tensor, noise: Tensor) -> Tensor:
        """Make examples of (…, D) examples and (…, D) noise."""
        hidden = torch.relu(self.first(torch.cat([example, noise], dim=-1)))
        made: Tensor = self.third(torch.relu(self.second(hidden)))
        return made if self.floor is None else torch.maximum(made, self.floor.to(made.dtype))
