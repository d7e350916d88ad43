"""What a backbone is trained to do: a plain classifier of base classes, or prototypical networks.

A task holds the network with what is needed beside it in training, and gives the terms of its loss, so that
DistributedDataParallel can wrap it as a whole.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpaan.nn.initial_weights import initial_weights
from cpaan.nn.resnet10 import ResNet10
from cpaan.representations.backbone import encoded
from cpaan.representations.losses import l2_penalty, prototypical_loss, sgm_penalty
from cpaan.representations.recipe import BackboneRecipe

Terms = dict[str, Tensor]


class BackboneTask(nn.Module):
    """A network, and what is trained beside it."""

    network: nn.Module
    head: nn.Module | None


class ClassifierTask(BackboneTask):
    """Cross-entropy over all base classes, with an optional penalty on the features."""

    def __init__(self, network: nn.Module, dimension: int, n_classes: int, recipe: BackboneRecipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.head: nn.Module = nn.Linear(dimension, n_classes, bias=False)

    def forward(self, images: Tensor, labels: Tensor, task_labels: Tensor, n_support: int, ways: int) -> Terms:
        """Give the loss of images; the last three arguments are for tasks of few examples."""
        features = encoded(self.network, images)
        logits = self.head(features)
        loss = cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)
        terms = {"cross_entropy": loss.detach(), "accuracy": (logits.argmax(1) == labels).float().mean()}
        if self.recipe.penalty != "none":
            sgm = self.recipe.penalty == "sgm"
            penalty = sgm_penalty(features, logits, labels) if sgm else l2_penalty(features)
            loss = loss + self.recipe.penalty_weight * penalty
            terms["penalty"] = penalty.detach()
        return {"loss": loss, **terms}


class PrototypicalTask(BackboneTask):
    """Cross-entropy of queries under −s ‖x − l_c‖², l_c the mean of a few support examples.

    Squared distances between D features grow with D, and the softmax of them saturates: s starts at
    `distance_scale` / D and is trained, as its logarithm.

    Where `classifier_weight` is above zero a plain classifier is trained beside it, which keeps the features from
    forgetting what a task of few classes does not need.
    """

    def __init__(self, network: nn.Module, dimension: int, n_classes: int, recipe: BackboneRecipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.log_scale = nn.Parameter(torch.tensor(math.log(recipe.distance_scale / dimension)))
        self.head = nn.Linear(dimension, n_classes, bias=False) if recipe.classifier_weight > 0 else None

    def forward(self, images: Tensor, labels: Tensor, task_labels: Tensor, n_support: int, ways: int) -> Terms:
        """Give the loss of a task of `ways` classes, whose first `n_support` images are its support."""
        features = encoded(self.network, images)
        loss, accuracy = prototypical_loss(
            features[:n_support],
            task_labels[:n_support],
            features[n_support:],
            task_labels[n_support:],
            ways,
            self.log_scale.exp(),
        )
        terms = {"prototypical": loss.detach(), "accuracy": accuracy}
        if self.head is not None:
            plain = cross_entropy(self.head(features), labels, label_smoothing=self.recipe.label_smoothing)
            loss = loss + self.recipe.classifier_weight * plain
            terms["cross_entropy"] = plain.detach()
        return {"loss": loss, **terms}


def make_task(kind: str, n_classes: int, recipe: BackboneRecipe, seed: int) -> BackboneTask:
    """Make a task with a new network, whose weights follow from the seed alone."""
    with initial_weights(seed):
        network = ResNet10(stem=recipe.stem, width=recipe.width)
        make = ClassifierTask if kind == "resnet10" else PrototypicalTask
        return make(network, network.dimension, n_classes, recipe)
