"""Class prototypes (equation 1 of the paper), and Euclidean distances between examples and between classes."""

import torch
from torch import Tensor

from cpaan.math.rows import Rows, is_large, row_blocks

# Enough for a scale that is stable to a few per mille, and bounded work on any bank.
MOST_CLASSES, MOST_EXAMPLES = 500, 200


def class_counts(labels: Tensor, n_classes: int) -> Tensor:
    """Count the examples of each class, as integers."""
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


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Compute the squared Euclidean distance of every row of `left` to every row of `right`.

    Subtracts a common origin first: ‖a‖² − 2a·b + ‖b‖² cancels badly far from zero.

    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[25.,  1.]])
    """
    origin = right.mean(dim=-2, keepdim=True)
    left, right = left - origin, right - origin
    squares = left.square().sum(-1, keepdim=True) + right.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * left @ right.mT).clamp_min(0)


def mean_within_class_distance(features: Rows, labels: Tensor, n_classes: int) -> float:
    """Average the distance between two distinct examples of one class, over pairs and then over classes.

    Large banks are thinned evenly to 500 classes of 200 examples; classes with one example are left out.
    Returns 0.0 where no class has two examples.
    """
    stride = -(-n_classes // MOST_CLASSES)
    of_class = torch.argsort(labels, stable=True).split(class_counts(labels, n_classes).tolist())
    means = []
    for members in of_class[::stride]:
        chosen = members[:: max(1, -(-len(members) // MOST_EXAMPLES))]
        if len(chosen) > 1:
            means.append(torch.pdist(features[chosen].double()).mean())
    return float(torch.stack(means).mean()) if means else 0.0
