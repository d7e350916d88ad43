"""Discriminators: which of the given classes an example is of, or whether it is made up."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax

from cpaan.nn.dense import dense


class Discriminator(nn.Module):
    """D(y | x) over the target classes and one more, "fake".

    The logit of a class is the product of the last hidden layer with a learned projection of the class's
    prototype, so the classes may change from episode to episode and need never have been seen.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    gain : features and prototypes are multiplied by it (see `Generator`)
    negative_slope : of the leaky ReLUs

    >>> discriminator = Discriminator(dimension=2, width=8)
    >>> log_probabilities = discriminator(torch.zeros(5, 2), torch.zeros(3, 2))
    >>> log_probabilities.shape, torch.allclose(log_probabilities.exp().sum(-1), torch.ones(5))
    (torch.Size([5, 4]), True)
    """

    def __init__(self, dimension: int, width: int, *, gain: float = 1.0, negative_slope: float = 0.1) -> None:
        super().__init__()
        self.gain, self.negative_slope = gain, negative_slope
        self.input = nn.Linear(dimension, width)
        self.hidden = nn.Linear(width, width)
        # NOTE[paper]: "prototypes instead of one-hot" as categorical information: the output layer's class
        # weights are a projection of the prototypes.
        self.of_prototype = nn.Linear(dimension, width)
        self.of_fake = nn.Linear(width, 1)

    def forward(self, examples: Tensor, prototypes: Tensor) -> Tensor:
        """Give log-probabilities of shape (…, classes + 1); the last column is "fake"."""
        examples, prototypes = (features.to(self.input.weight.dtype) for features in (examples, prototypes))
        if self.gain != 1:
            examples, prototypes = examples * self.gain, prototypes * self.gain
        hidden = dense(examples, self.input.weight, self.input.bias, self.negative_slope)
        hidden = dense(hidden, self.hidden.weight, self.hidden.bias, self.negative_slope)
        # As in attention: a product of two vectors of unit entries grows with the root of their length.
        weights = self.of_prototype(prototypes) * self.of_prototype.out_features**-0.5
        # The class weights and that of "fake" as one matrix: one product, and nothing to put together behind it.
        bias = torch.cat([weights.new_zeros(weights.shape[-2]), self.of_fake.bias])
        logits = linear(hidden, torch.cat([weights, self.of_fake.weight], dim=-2), bias)
        return log_softmax(logits.float(), dim=-1)
