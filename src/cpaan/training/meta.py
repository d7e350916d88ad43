"""Meta-training: one gradient step for each task drawn from base classes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.sampling.tasks import Task, TaskSampler
from cpaan.threads import of_layers, threads_for
from cpaan.training.checks import check_count, check_positive, is_number, read_counts
from cpaan.training.history import History
from cpaan.training.trainer import LOGGINGS, Progress, learning_rate_at


@dataclass(frozen=True)
class MetaRecipe:
    """Every number of meta-training.

    Attributes
    ----------
    episodes : tasks, each one gradient step
    ways, shots, queries : N, the numbers K to draw from, and Q of a task
    learning_rate, halve_every : Adam's rate, and the episodes after which it is halved
    weight_decay : of Adam, decoupled
    """

    episodes: int
    ways: int
    shots: tuple[int, ...]
    queries: int
    learning_rate: float
    halve_every: int
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("episodes", "ways", "queries", "halve_every"):
            check_count(name, getattr(self, name))
        object.__setattr__(self, "shots", read_counts("shots", self.shots))  # as the dataclass is frozen
        check_positive("learning_rate", self.learning_rate)
        if not is_number(self.weight_decay) or not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay must be a number of at least 0, not {self.weight_decay!r}")


def meta_train(
    loss_of: Callable[[Task], dict[str, Tensor]],
    parameters: Iterable[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None = None,
) -> History:
    """Minimise the expected loss of tasks by Adam.

    Parameters
    ----------
    loss_of : gives the terms of a task's loss by name, of which the one called ``"loss"`` is minimised
    parameters : what is trained
    sampler : draws the tasks
    recipe : how long, and how fast
    generator : decides every random draw
    tell : called at every logging step
    """
    trained = list(parameters)
    rows = recipe.ways * (max(recipe.shots) + recipe.queries)
    with threads_for(of_layers(rows, trained)):
        return _take_steps(loss_of, trained, sampler, recipe, generator, tell)


def _take_steps(
    loss_of: Callable[[Task], dict[str, Tensor]],
    parameters: list[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None,
) -> History:
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    history = History()
    every = max(1, recipe.episodes // LOGGINGS)
    for episode in range(recipe.episodes):
        rate = learning_rate_at(episode, recipe.learning_rate, recipe.halve_every)
        for group in optimizer.param_groups:
            group["lr"] = rate
        terms = loss_of(sampler.draw(generator))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        history.add({name: term.detach() for name, term in terms.items()})
        if (episode + 1) % every == 0 or episode + 1 == recipe.episodes:
            losses = history.log(episode + 1)
            if tell is not None:
                tell(Progress(episode + 1, recipe.episodes, losses))
    return history
