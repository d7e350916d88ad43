"""The three terms of the loss: adversarial (equation 3 of the paper), cycle consistency and covariance preservation.

Pairs of an episode form a table of N novel classes × M base examples, and weights α of shape (N, M) make its mean the
expectation over y_n, then over the base examples translated to y_n.
"""

from torch import Tensor

from cpaan.math.covariance import deviation_factor
from cpaan.math.ky_fan import covariance_distance


def real_loss(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """−E log D(y | x) over real examples: what the discriminator pays for classes not recognised.

    >>> import torch
    >>> real_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]))
    tensor(0.6931)
    """
    return -_of_label(log_probabilities, labels).mean()


def fake_loss(log_probabilities: Tensor, weights: Tensor) -> Tensor:
    """−E α log D(N + 1 | G(…)): what the discriminator pays for synthetic examples it believes.

    >>> import torch
    >>> fake_loss(torch.tensor([[0.25, 0.25, 0.5]]).log(), torch.tensor([1.0]))
    tensor(0.6931)
    """
    return -(log_probabilities[..., -1] * weights).mean()


def fooling_loss(log_probabilities: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """−E α log D(y | G(…)): what the generator pays for synthetic examples not taken for their class.

    >>> import torch
    >>> fooling_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]), torch.tensor([1.0]))
    tensor(0.6931)
    """
    # NOTE[paper]: the non-saturating form; the printed minimax game has vanishing gradients while the
    # discriminator is ahead.
    return -(_of_label(log_probabilities, labels) * weights).mean()


def _of_label(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    index = labels.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return log_probabilities.gather(-1, index).squeeze(-1)


def cycle_loss(returned: Tensor, started: Tensor, weights: Tensor) -> Tensor:
    """E α ‖G(G'(x)) − x‖² for one direction of the cycle: a translation there and back ends where it started.

    >>> import torch
    >>> cycle_loss(torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2), torch.ones(1, 1))
    tensor(25.)
    """
    # NOTE[paper]: the printed norm lost its "− x".
    return ((returned - started).square().sum(-1) * weights).mean()


def covariance_loss(synthetic: Tensor, counted: Tensor, base_factors: Tensor, weights: Tensor, m: int) -> Tensor:
    """E over y_n of Σ_b α(y_b, y_n) ‖[Σ_x(y_b) − Σ_G(y_n)]_m‖, the Ky Fan m-norm of covariance differences.

    Σ_G is the covariance of all synthetic examples of y_n about their centroid, the pseudo-prototype.

    Parameters
    ----------
    synthetic : Tensor of shape (N, M, D)
    counted : Tensor of shape (N, M)
        Whether a synthetic example counts for its class: 0 where the base class is not related to it.
    base_factors : Tensor of shape (N or 1, P, r, D)
        Factors of the base covariances that each novel class is compared with; rows are orthogonal, the longest first.
    weights : Tensor of shape (N, P)
    m : number of singular values

    >>> import torch
    >>> still = torch.zeros(1, 4, 2)
    >>> covariance_loss(still, torch.ones(1, 4), torch.eye(2).view(1, 1, 2, 2), torch.ones(1, 1), m=1).round(decimals=3)
    tensor(1.)
    """
    distances = covariance_distance(base_factors, deviation_factor(synthetic, counted), m)
    return (weights * distances).sum(-1).mean()


def heaviest_pairs(class_weights: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Keep the `number` base classes of largest weight for each novel class, without changing a class's total.

    >>> import torch
    >>> heaviest_pairs(torch.tensor([[0.1, 0.6, 0.3]]), 2)
    (tensor([[0.6667, 0.3333]]), tensor([[1, 2]]))
    """
    kept, classes = class_weights.topk(number, dim=-1)
    return kept * (class_weights.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)), classes


def left_out_bound(class_weights: Tensor, number: int, base_factors: Tensor, synthetic: Tensor, m: int) -> Tensor:
    """Bound how far the loss of the heaviest pairs can be from that of all pairs.

    With α summing to 1, κ of it kept and every distance d(b, n) at most ‖[Σ_x]_m‖ + tr Σ_G, by the triangle inequality,

    mean over kept, weighed by α / κ, − Σ_b α d ≤ (1 − κ) max over b of d(b, n), and the same below.

    `base_factors`, (C, r, D), have orthogonal rows, the longest first; `synthetic` has the shape (N, M, D).
    """
    total = class_weights.sum(-1)
    lost = total - class_weights.topk(number, dim=-1).values.sum(-1)
    largest = base_factors[:, :m].square().sum((-2, -1)).amax()
    variance = deviation_factor(synthetic).square().sum((-2, -1))
    return (lost * (largest + variance)).mean()
