"""Draws from Gaussians that are given by factors F of their covariances, Fᵀ F = Σ."""

import torch
from torch import Tensor


def draw_gaussian(factor: Tensor, number: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from N(0, Fᵀ F).

    x = Fᵀ ε, ε ~ N(0, I)

    Multiplies in single precision, in units in which nothing over- or underflows, whatever those of the factor are.

    Parameters
    ----------
    factor : Tensor of shape (r, D)
    number : how many
    generator : decides the draw
    dtype : of the result

    Returns
    -------
    Tensor of shape (number, D)

    >>> draw_gaussian(torch.zeros(3, 2), 1, torch.Generator(), torch.double)
    tensor([[0., 0.]], dtype=torch.float64)
    """
    unit, size = to_unit(factor, torch.float32)
    drawn = torch.randn((number, len(factor)), generator=generator) @ unit
    return drawn.to(dtype).mul_(size)


def draw_mixed(factors: Tensor, ranks: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from N(0, mean of Σ_c over the classes c of a row), for each row of `classes`.

    Independent draws of the single Gaussians add up to one of their mean: no D × D matrix is ever made or factored.

    Parameters
    ----------
    factors : Tensor of shape (ranks.sum(), D), those of all classes below one another
    ranks : integer Tensor of shape (C,), how many rows each class has
    classes : integer Tensor of shape (n, k), distinct within a row
    generator : decides the draw

    Returns
    -------
    Tensor of shape (n, D), in single precision

    >>> draw_mixed(torch.zeros(2, 3), torch.tensor([1, 1]), torch.tensor([[0, 1]]), torch.Generator())
    tensor([[0., 0., 0.]])
    """
    drawn = torch.zeros((len(classes), factors.shape[1]))
    starts = ranks.cumsum(0) - ranks
    for label in classes.unique().tolist():
        rows = (classes == label).any(1).nonzero().squeeze(1)
        factor = factors[int(starts[label]) : int(starts[label] + ranks[label])].float()
        drawn.index_add_(0, rows, torch.randn((len(rows), len(factor)), generator=generator) @ factor)
    return drawn.div_(classes.shape[1] ** 0.5)


def to_unit(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Divide by the largest absolute value, so that a narrower floating type can hold the rest.

    >>> to_unit(torch.tensor([2e30, -4e30], dtype=torch.double), torch.half)
    (tensor([ 0.5000, -1.0000], dtype=torch.float16), 4e+30)
    """
    size = float(values.abs().max()) or 1.0
    return (values / size).to(dtype), size


def add_centers(deviations: Tensor, centers: Tensor, number: Tensor) -> Tensor:
    """Add center i to `number[i]` rows, in place, the first center's rows first.

    >>> add_centers(torch.zeros(3, 1), torch.tensor([[1.0], [5.0]]), torch.tensor([2, 1])).flatten()
    tensor([1., 1., 5.])
    """
    for rows, center in zip(deviations.split(number.tolist()), centers, strict=True):
        rows.add_(center.to(deviations.dtype))
    return deviations
