"""Class prototypes: the centroids that stand for classes (equation 1 of the paper)."""

from torch import Tensor


def class_counts(labels: Tensor, n_classes: int) -> Tensor:
    """Count the examples of each class, as integers.

    >>> import torch
    >>> class_counts(torch.tensor([0, 2, 2]), 3)
    tensor([1, 0, 2])
    """
    counts = labels.new_zeros(n_classes)
    return counts.index_add_(0, labels, labels.new_ones(len(labels)))


def prototypes(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Average the examples of each class.

    l_y = Σ_i x_i 1[y_i = y] / Σ_i 1[y_i = y]

    Parameters
    ----------
    features : Tensor of shape (n, D)
    labels : integer Tensor of shape (n,), each from 0 to n_classes − 1
    n_classes : int
        Every class must have at least one example.

    Returns
    -------
    Tensor of shape (n_classes, D)

    >>> import torch
    >>> prototypes(torch.tensor([[0.0, 2.0], [2.0, 4.0], [5.0, 5.0]]), torch.tensor([0, 0, 1]), 2)
    tensor([[1., 3.],
            [5., 5.]])
    """
    sums = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, features)
    return sums / class_counts(labels, n_classes).to(features.dtype).unsqueeze(1)
