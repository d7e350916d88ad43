"""Covariance preservation: synthetic examples vary as the base classes do that they come from."""

from torch import Tensor

from cpaan.functional.covariance import deviation_factor
from cpaan.functional.ky_fan import ky_fan_norm_of_difference


def heaviest_pairs(class_weights: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Keep the base classes of largest weight for each novel class, without changing a class's total.

    Parameters
    ----------
    class_weights : Tensor of shape (N, C)
    number : how many base classes to keep for each novel class

    Returns
    -------
    weights, classes : Tensors of shape (N, number)

    >>> import torch
    >>> heaviest_pairs(torch.tensor([[0.1, 0.6, 0.3]]), 2)
    (tensor([[0.6667, 0.3333]]), tensor([[1, 2]]))
    """
    kept, classes = class_weights.topk(number, dim=-1)
    return kept * (class_weights.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)), classes


def covariance_loss(
    synthetic: Tensor, counted: Tensor, base_factors: Tensor, weights: Tensor, m: int, solver: str = "auto"
) -> Tensor:
    """E over y_n of Σ_b α(y_b, y_n) ‖[Σ_x(y_b) − Σ_G(y_n)]_m‖, the Ky Fan m-norm of covariance differences.

    Σ_G is the covariance of all synthetic examples of y_n about their centroid, the pseudo-prototype.

    Parameters
    ----------
    synthetic : Tensor of shape (N, M, D)
    counted : Tensor of shape (N, M)
        Whether a synthetic example stands for its class: 0 where the base class is not related to it.
    base_factors : Tensor of shape (N or 1, P, r, D)
        Factors of the base covariances that each novel class is compared with.
    weights : Tensor of shape (N, P)
    m : number of singular values
    solver : see `cpaan.functional.ky_fan.ky_fan_norm`

    >>> import torch
    >>> still = torch.zeros(1, 4, 2)
    >>> covariance_loss(still, torch.ones(1, 4), torch.eye(2).view(1, 1, 2, 2), torch.ones(1, 1), m=1)
    tensor(1.)
    """
    synthetic_factors = deviation_factor(synthetic, counted).unsqueeze(1)
    distances = ky_fan_norm_of_difference(base_factors, synthetic_factors, m, solver)
    return (weights * distances).sum(-1).mean()
