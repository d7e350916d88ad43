"""The adversarial game between a generator and a classifying discriminator (equation 3 of the paper)."""

from torch import Tensor


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Average over the pairs of an episode, each times its weight: E over y_n, then E over its pairs."""
    return (values * weights).mean()


def real_loss(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """−E log D(y | x) over real examples of known classes.

    Parameters
    ----------
    log_probabilities : Tensor of shape (…, classes + 1), of a `Discriminator`
    labels : integer Tensor that broadcasts to (…)

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
    return -weighted_mean(log_probabilities[..., -1], weights)


def fooling_loss(log_probabilities: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """−E α log D(y | G(…)): what the generator pays for synthetic examples not taken for their class.

    >>> import torch
    >>> fooling_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]), torch.tensor([1.0]))
    tensor(0.6931)
    """
    # NOTE[paper]: the non-saturating form; the printed minimax game has vanishing gradients while the
    # discriminator is ahead.
    return -weighted_mean(_of_label(log_probabilities, labels), weights)


def _of_label(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    index = labels.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return log_probabilities.gather(-1, index).squeeze(-1)
