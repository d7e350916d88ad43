"""Class prototypes: the centroids that stand for classes (equation 1 of the paper)."""

from torch import Tensor

from cpaan.functional.rows import Rows, is_large, row_blocks


def class_counts(labels: Tensor, n_classes: int) -> Tensor:
    """Count the examples of each class, as integers.

    >>> import torch
    >>> class_counts(torch.tensor([0, 2, 2]), 3)
    tensor([1, 0, 2])
    """
    counts = labels.new_zeros(n_classes)
    return counts.index_add_(0, labels, labels.new_ones(len(labels)))


def prototypes(features: Rows, labels: Tensor, n_classes: int) -> Tensor:
    """Average the examples of each class.

    l_y = Σ_i x_i 1[y_i = y] / Σ_i 1[y_i = y]

    Parameters
    ----------
    features : Tensor of shape (n, D), or rows that are read a block at a time
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
    sums = features[:0].new_zeros(n_classes, features.shape[1])
    for block in row_blocks(features) if is_large(features) else [slice(None)]:
        sums.index_add_(0, labels[block], features[block])
    return sums / class_counts(labels, n_classes).to(sums.dtype).unsqueeze(1)
