"""One step of a backbone's training: augment, compute the loss of every part, change the weights.

What backbones are trained with: penalties on features, and the loss of prototypical networks.

B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features", ICCV 2017 (the
penalties); J. Snell, K. Swersky and R. S. Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

What a backbone is trained to do: a plain classifier of base classes, or prototypical networks.

A task holds the network with what is needed beside it in training, and gives the terms of its loss, so that
DistributedDataParallel can wrap it as a whole.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from cpaan.data.feature_set import IndexArray
from cpaan.math.prototypes import prototypes
from cpaan.representations.augmentation import Augmentation
from cpaan.representations.backbone import encoded, placed
from cpaan.representations.order import Part
from cpaan.representations.processes import Processes
from cpaan.representations.recipe import BackboneRecipe, learning_rate_at
from cpaan.representations.resnet10 import ResNet10
from cpaan.training.weights import initial_weights


def sgm_penalty(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Squared gradient magnitude: the mean of Σ_k (p_k − δ_{yk})² ‖φ‖² over examples.

    It is the squared norm of the gradient that an example's cross-entropy has with respect to a linear classifier, so
    features are favoured with which a classifier of few examples is already right.

    >>> import torch
    >>> sgm_penalty(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([0]))
    tensor(12.5000)
    """
    residuals = logits.softmax(1) - one_hot(labels, logits.shape[1])
    return (residuals.square().sum(1) * features.square().sum(1)).mean()


def l2_penalty(features: Tensor) -> Tensor:
    """Half the mean squared norm of features.

    >>> import torch
    >>> l2_penalty(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor(6.2500)
    """
    return features.square().sum(1).mean() / 2


def prototypical_logits(queries: Tensor, centers: Tensor, scale: Tensor | float) -> Tensor:
    """Scores of classes given their prototypes, −scale · ‖x − l_c‖².

    >>> import torch
    >>> prototypical_logits(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 2.0]]), 0.5)
    tensor([[-0.5000, -2.0000]])
    """
    distances = queries.square().sum(1, keepdim=True) - 2 * queries @ centers.T + centers.square().sum(1)
    return -scale * distances


def prototypical_loss(
    support: Tensor,
    support_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    n_classes: int,
    scale: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of queries under the prototypes of the support.

    Parameters
    ----------
    support, queries : Tensors of shape (n, D) and (m, D)
        Embedded examples.
    support_labels, query_labels : integer Tensors of shape (n,) and (m,)
        Their classes within the task; each class has at least one support example.
    n_classes : int
        N.
    scale : Tensor or float
        Of the squared distances.

    Returns
    -------
    loss, accuracy : Tensor
        The mean over queries of the cross-entropy, and the share of queries whose nearest prototype is the right one.
    """
    centers = prototypes(support, support_labels, n_classes)
    logits = prototypical_logits(queries, centers, scale)
    return cross_entropy(logits, query_labels), (logits.argmax(1) == query_labels).float().mean()


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


class BackboneStep:
    """Holds what a step changes: the weights, and the optimizer's memory.

    Parameters
    ----------
    task : the network with its loss
    recipe : every number
    labels : class index of every image
    processes : those that take steps together
    """

    def __init__(self, task: BackboneTask, recipe: BackboneRecipe, labels: IndexArray, processes: Processes) -> None:
        self.recipe, self.labels, self.processes = recipe, labels, processes
        placed(task, processes.device)
        self.task = task
        self.optimizer = _optimizer(task, recipe)
        self.wrapped = processes.wrap(task).train()
        self.augmentation = Augmentation(
            size=recipe.size, crop=recipe.crop, scale=(recipe.smallest_crop, 1.0), jitter=recipe.jitter
        )

    def __call__(self, parts: Sequence[tuple[Part, Tensor]], progress: float) -> dict[str, Tensor]:
        """Take a step.

        Parameters
        ----------
        parts : the parts of the step that this process takes, with their pixels
        progress : from 0 at the first step to 1 at the end

        Returns
        -------
        dict of Tensor
            The terms of the loss, averaged over the parts.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(progress, self.recipe)
        self.optimizer.zero_grad(set_to_none=True)
        found = [
            self._backward(part, pixels, len(parts), last=number + 1 == len(parts))
            for number, (part, pixels) in enumerate(parts)
        ]
        self.optimizer.step()
        return {name: torch.stack([terms[name] for terms in found]).mean() for name in found[0]}

    def state(self) -> dict[str, Tensor]:
        """Give every tensor that the next step depends on."""
        tensors = {f"task.{name}": value for name, value in self.task.state_dict().items()}
        for name, parameter in self.task.named_parameters():
            memory = self.optimizer.state[parameter].get("momentum_buffer")
            if memory is not None:  # there is none without momentum
                tensors[f"momentum.{name}"] = memory
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go back to a state."""
        prefix = "task."
        self.task.load_state_dict({n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)})
        for name, parameter in self.task.named_parameters():
            if f"momentum.{name}" in tensors:
                memory = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = memory

    def _backward(self, part: Part, pixels: Tensor, n_parts: int, *, last: bool) -> dict[str, Tensor]:
        wait: AbstractContextManager[None] = nullcontext()
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not last:
            wait = self.wrapped.no_sync()  # processes exchange gradients once for a step
        with wait:
            terms = self.wrapped(*self._inputs(part, pixels))
            (terms["loss"] / n_parts).backward()
        return {name: term.detach() for name, term in terms.items()}

    def _inputs(self, part: Part, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int]:
        device = self.processes.device
        images = self.augmentation(pixels, torch.Generator(device).manual_seed(part.seed))
        labels = self.labels[part.rows]
        classes = np.unique(labels[: part.n_support])
        if part.n_support and not np.isin(labels, classes).all():
            # A class whose support images cannot be read is left out of the task, with its queries.
            kept = np.isin(labels, classes)
            labels, images = labels[kept], images[torch.from_numpy(kept).to(device)]
        inside = np.searchsorted(classes, labels)
        moved = [torch.from_numpy(values).to(device, non_blocking=True) for values in (labels, inside)]
        return images, moved[0], moved[1], part.n_support, len(classes)


def _optimizer(task: nn.Module, recipe: BackboneRecipe) -> torch.optim.Optimizer:
    weights = [parameter for parameter in task.parameters() if parameter.ndim > 0]
    scalars = [parameter for parameter in task.parameters() if parameter.ndim == 0]
    groups = [{"params": weights, "weight_decay": recipe.weight_decay}, {"params": scalars, "weight_decay": 0.0}]
    return torch.optim.SGD(
        [group for group in groups if group["params"]], lr=recipe.learning_rate, momentum=recipe.momentum
    )
