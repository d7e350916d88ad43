"""What made examples lack of the way base classes vary, and deviations that make up for it.

The covariance term of training looks at the largest few directions of a difference; the others a generator may lose,
and does. After training, with Σ_w the covariance within base classes and Σ_G that of examples which are made of each
base class from the others, both pooled over classes, what is lacking is the positive part

Σ_+ = U max(Λ, 0) Uᵀ,   Σ_w − Σ_G = U Λ Uᵀ

and every made example gets a Gaussian deviation of this covariance beside its own.
"""

import torch
from torch import Tensor

from cpaan.augmenters.model import Completion, Model
from cpaan.centers.class_center import within_covariance
from cpaan.threads import of_covariance, threads_for

# Directions that are kept as they are; of the others, the mean variance.
RANK = 128
# Examples, in numbers of features, that Σ_G is estimated from, and of how many classes at most.
EXAMPLES_PER_FEATURE, MOST_CLASSES = 16, 400


def find_completion(model: Model, generator: torch.Generator) -> Completion:
    """Compare what a trained model makes of its base classes with how these vary."""
    if model.center is None:
        raise ValueError("a model without centres is not completed")
    n_classes, dimension = model.base.prototypes.shape
    with threads_for(of_covariance(_made_of_class(min(n_classes, MOST_CLASSES), dimension), dimension)):
        return lacking(within_covariance(model.center), _made_covariance(model, generator).double().cpu(), RANK)


def _made_of_class(n_classes: int, dimension: int) -> int:
    return -(-EXAMPLES_PER_FEATURE * dimension // n_classes) + 1


def lacking(wanted: Tensor, made: Tensor, rank: int) -> Completion:
    """Give the positive part of a difference of covariances, (D, D) each.

    >>> found = lacking(torch.diag(torch.tensor([5.0, 2.0, 2.0, 0.0])), torch.eye(4), rank=1)
    >>> found.factor.abs(), found.tail
    (tensor([[2., 0., 0., 0.]]), 0.5)
    """
    values, vectors = torch.linalg.eigh(wanted - made)
    values = values.clamp_min(0)
    kept = min(rank, len(values))
    factor = (vectors[:, -kept:] * values[-kept:].sqrt()).T
    return Completion(factor.float(), float(values[:-kept].sum()) / len(values))


def _made_covariance(model: Model, generator: torch.Generator) -> Tensor:
    base = model.base.prototypes
    n_classes, dimension = base.shape
    labels = torch.arange(0, n_classes, -(-n_classes // MOST_CLASSES))
    number = _made_of_class(len(labels), dimension)
    scatter, total = base.new_zeros((dimension, dimension)), 0
    for label in labels.tolist():
        target = base[label : label + 1]
        others = torch.arange(n_classes, device=base.device) != label
        similarity = base.new_zeros((1, n_classes))
        similarity[:, others] = model.neighborhood.similarity(target, base[others])
        made = model.make_from(similarity, target, torch.tensor([number], device=base.device), generator)
        deviations = made - made.mean(0)
        scatter.addmm_(deviations.T, deviations)
        total += number - 1
    return scatter / total
