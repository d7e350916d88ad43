"""One step of a backbone's training, taken by one process or by several together.

The losses follow B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
ICCV 2017 (penalties on features), and J. Snell, K. Swersky and R. S. Zemel, "Prototypical Networks for Few-shot
Learning", NeurIPS 2017.
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy, one_hot

from cpaan.data.feature_set import IndexArray
from cpaan.math.prototypes import prototypes
from cpaan.representations.augmentation import Augmentation
from cpaan.representations.backbone import ResNet10, encode_images, move_network
from cpaan.representations.pixels import Part
from cpaan.representations.recipe import BackboneRecipe, learning_rate_at
from cpaan.training.device import choose_device
from cpaan.training.weights import initial_weights

Terms = dict[str, Tensor]


class BackboneStep:
    """Augment the parts of a step, compute their losses, and update the weights."""

    def __init__(self, task: "Task", recipe: BackboneRecipe, labels: IndexArray, processes: "Processes") -> None:
        self.task, self.recipe, self.labels, self.processes = task, recipe, labels, processes
        move_network(task, processes.device)
        self.optimizer = _make_optimizer(task, recipe)
        self.wrapped = processes.wrap(task).train()
        self.augmentation = Augmentation(
            size=recipe.size, crop=recipe.crop, scale=(recipe.smallest_crop, 1.0), jitter=recipe.jitter
        )

    def __call__(self, parts: Sequence[tuple[Part, Tensor]], progress: float) -> Terms:
        """Take a step on this process's parts and their pixels; return the loss terms, averaged over the parts."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(progress, self.recipe)
        self.optimizer.zero_grad(set_to_none=True)
        found = [self._backward(*part, len(parts), is_last=part is parts[-1]) for part in parts]
        self.optimizer.step()
        return {name: torch.stack([terms[name] for terms in found]).mean() for name in found[0]}

    def state(self) -> dict[str, Tensor]:
        """Return every tensor that the next step depends on."""
        tensors = {f"task.{name}": value for name, value in self.task.state_dict().items()}
        for name, parameter in self.task.named_parameters():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Return to a saved state."""
        prefix = "task."
        self.task.load_state_dict({n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)})
        for name, parameter in self.task.named_parameters():
            if f"momentum.{name}" in tensors:
                momentum = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = momentum

    def _backward(self, part: Part, pixels: Tensor, n_parts: int, *, is_last: bool) -> Terms:
        wait: AbstractContextManager[None] = nullcontext()
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not is_last:
            wait = self.wrapped.no_sync()  # processes exchange gradients once per step
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
            # A class without readable support images is left out of the task, with its queries.
            kept = np.isin(labels, classes)
            labels, images = labels[kept], images[torch.from_numpy(kept).to(device)]
        inside = np.searchsorted(classes, labels)
        moved = [torch.from_numpy(values).to(device, non_blocking=True) for values in (labels, inside)]
        return images, moved[0], moved[1], part.n_support, len(classes)


def _make_optimizer(task: nn.Module, recipe: BackboneRecipe) -> torch.optim.Optimizer:
    weights = [parameter for parameter in task.parameters() if parameter.ndim > 0]
    scalars = [parameter for parameter in task.parameters() if parameter.ndim == 0]
    groups = [{"params": weights, "weight_decay": recipe.weight_decay}, {"params": scalars, "weight_decay": 0.0}]
    return torch.optim.SGD(
        [group for group in groups if group["params"]], lr=recipe.learning_rate, momentum=recipe.momentum
    )


class Task(nn.Module):
    """A network with its loss, as one module that DistributedDataParallel can wrap."""

    network: nn.Module
    head: nn.Module | None


class ClassifierTask(Task):
    """Cross-entropy over all base classes, with an optional penalty on the features."""

    def __init__(self, network: nn.Module, dimension: int, n_classes: int, recipe: BackboneRecipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.head: nn.Module = nn.Linear(dimension, n_classes, bias=False)

    def forward(self, images: Tensor, labels: Tensor, task_labels: Tensor, n_support: int, ways: int) -> Terms:
        """Compute the loss of images; the last three arguments are for prototypical networks."""
        features = encode_images(self.network, images)
        logits = self.head(features)
        loss = cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)
        terms = {"cross_entropy": loss.detach(), "accuracy": (logits.argmax(1) == labels).float().mean()}
        if self.recipe.penalty != "none":
            sgm = self.recipe.penalty == "sgm"
            penalty = sgm_penalty(features, logits, labels) if sgm else l2_penalty(features)
            loss = loss + self.recipe.penalty_weight * penalty
            terms["penalty"] = penalty.detach()
        return {"loss": loss, **terms}


class PrototypicalTask(Task):
    """Cross-entropy of queries under −s ‖x − l_c‖², with l_c the mean of a few support examples.

    Squared distances between D features grow with D and would saturate the softmax: s starts at `distance_scale` / D
    and is trained, as its logarithm. If `classifier_weight` is positive, the loss of a plain classifier is added, which
    preserves features that a task of few classes does not need.
    """

    def __init__(self, network: nn.Module, dimension: int, n_classes: int, recipe: BackboneRecipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.log_scale = nn.Parameter(torch.tensor(math.log(recipe.distance_scale / dimension)))
        self.head = nn.Linear(dimension, n_classes, bias=False) if recipe.classifier_weight > 0 else None

    def forward(self, images: Tensor, labels: Tensor, task_labels: Tensor, n_support: int, ways: int) -> Terms:
        """Compute the loss of a task of `ways` classes, whose first `n_support` images are its support."""
        features = encode_images(self.network, images)
        loss, accuracy = prototypical_loss(features, task_labels, n_support, ways, self.log_scale.exp())
        terms = {"prototypical": loss.detach(), "accuracy": accuracy}
        if self.head is not None:
            plain = cross_entropy(self.head(features), labels, label_smoothing=self.recipe.label_smoothing)
            loss = loss + self.recipe.classifier_weight * plain
            terms["cross_entropy"] = plain.detach()
        return {"loss": loss, **terms}


def make_task(kind: str, n_classes: int, recipe: BackboneRecipe, seed: int) -> Task:
    """Make a task with a new network, whose weights depend on the seed alone."""
    with initial_weights(seed):
        network = ResNet10(stem=recipe.stem, width=recipe.width)
        make = ClassifierTask if kind == "resnet10" else PrototypicalTask
        return make(network, network.dimension, n_classes, recipe)


def sgm_penalty(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Squared gradient magnitude: the mean of Σ_k (p_k − δ_{yk})² ‖φ‖² over examples.

    This is the squared norm of the gradient of an example's cross-entropy with respect to a linear classifier. It
    favours features on which a classifier of few examples is already right.
    """
    residuals = logits.softmax(1) - one_hot(labels, logits.shape[1])
    return (residuals.square().sum(1) * features.square().sum(1)).mean()


def l2_penalty(features: Tensor) -> Tensor:
    """Half the mean squared norm of features."""
    return features.square().sum(1).mean() / 2


def prototypical_logits(queries: Tensor, centers: Tensor, scale: Tensor | float) -> Tensor:
    """Scores of classes given their prototypes, −scale · ‖x − l_c‖²."""
    distances = queries.square().sum(1, keepdim=True) - 2 * queries @ centers.T + centers.square().sum(1)
    return -scale * distances


def prototypical_loss(
    features: Tensor, labels: Tensor, n_support: int, n_classes: int, scale: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy of queries under the prototypes of the support, the first `n_support` rows."""
    centers = prototypes(features[:n_support], labels[:n_support], n_classes)
    logits, wanted = prototypical_logits(features[n_support:], centers, scale), labels[n_support:]
    return cross_entropy(logits, wanted), (logits.argmax(1) == wanted).float().mean()


@dataclass(frozen=True)
class Processes:
    """One process among those that train together, as `torchrun` starts them."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found

    def average(self, values: dict[str, float]) -> dict[str, float]:
        """Average numbers over all processes."""
        found = self.gather(values)
        return {name: sum(each[name] for each in found) / self.count for name in values}

    def average_buffers(self, module: nn.Module) -> None:
        """Average running means and variances, which each process has of its own images."""
        if self.count > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    distributed.all_reduce(buffer)
                    buffer.div_(self.count)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Average gradients over all processes."""
        if self.count == 1:
            return module
        places = [self.device] if self.device.type == "cuda" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            # Buffers play no part in training; they stay separate until they are averaged.
            return nn.parallel.DistributedDataParallel(module, device_ids=places, broadcast_buffers=False)


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or be the only one."""
    place = choose_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(0, 1, place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), place)
    finally:
        distributed.destroy_process_group()
