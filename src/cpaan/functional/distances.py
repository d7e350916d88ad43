"""Euclidean distances between examples and between classes."""

import torch
from torch import Tensor

from cpaan.functional.prototypes import class_counts
from cpaan.functional.rows import Rows

# Enough for a scale that is stable to a few per mille, and bounded work on any bank.
MOST_CLASSES, MOST_EXAMPLES = 500, 200


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Squared Euclidean distance of every row of `left` to every row of `right`.

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

    >>> x = torch.tensor([[0.0], [1.0], [5.0], [8.0]])
    >>> mean_within_class_distance(x, torch.tensor([0, 0, 1, 1]), 2)
    2.0
    """
    stride = -(-n_classes // MOST_CLASSES)
    of_class = torch.argsort(labels, stable=True).split(class_counts(labels, n_classes).tolist())
    means = []
    for members in of_class[::stride]:
        chosen = members[:: max(1, -(-len(members) // MOST_EXAMPLES))]
        if len(chosen) > 1:
            means.append(torch.pdist(features[chosen].double()).mean())
    return float(torch.stack(means).mean()) if means else 0.0
