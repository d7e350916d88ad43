"""One step of a backbone's training: augment, compute the loss of every part, change the weights."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from cpaan.data.class_names import IndexArray
from cpaan.representations.augmentation import Augmentation
from cpaan.representations.backbone import placed
from cpaan.representations.order import Part
from cpaan.representations.processes import Processes
from cpaan.representations.recipe import BackboneRecipe
from cpaan.representations.schedule import learning_rate_at
from cpaan.representations.tasks import BackboneTask


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
