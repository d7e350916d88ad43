"""The training loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from cpaan.functional.kernels import is_recent_gpu
from cpaan.functional.precision import fast_products
from cpaan.sampling.episodes import EpisodeSampler
from cpaan.training.captured import Captured, DrawnAhead
from cpaan.training.history import History
from cpaan.training.step import TrainingStep

LOGGINGS = 100  # logging steps of a run: enough for a curve, few enough not to slow it


@dataclass(frozen=True)
class Progress:
    """How far training is, told at every logging step."""

    episode: int
    episodes: int
    losses: dict[str, float]


class Bars(Protocol):
    """Whatever shows progress: called with a title, it gives what a training run is to tell its progress to."""

    def __call__(self, title: str) -> Callable[[Progress], None]:
        """Open a bar for a training run."""

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Open a bar that is told how many of how many things are done."""


def learning_rate_at(episode: int, initial: float, halve_every: int) -> float:
    """Give the learning rate of an episode (counted from 0): halved every so often.

    >>> learning_rate_at(0, 1.0, 10), learning_rate_at(9, 1.0, 10), learning_rate_at(20, 1.0, 10)
    (1.0, 1.0, 0.25)
    """
    return float(initial * 0.5 ** (episode // halve_every))


def train(
    step: TrainingStep,
    sampler: EpisodeSampler,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None = None,
) -> History:
    """Train for all episodes of the step's recipe.

    Parameters
    ----------
    step : holds the networks, which are trained in place
    sampler : draws the episodes
    generator : decides every random draw
    tell : called at every logging step
    """
    recipe = step.recipe
    history = History()

    def take_step() -> None:
        history.add(step(sampler.draw(generator), generator))

    next_episode: Callable[[], None] = take_step
    if is_recent_gpu(generator.device) and not sampler.waits:
        next_episode = Captured(DrawnAhead(step, sampler, generator, history), generator)
    every = max(1, recipe.episodes // LOGGINGS)
    with fast_products():
        for episode in range(recipe.episodes):
            if episode % recipe.halve_every == 0:
                step.learning_rate.fill_(learning_rate_at(episode, recipe.learning_rate, recipe.halve_every))
            next_episode()
            if (episode + 1) % every == 0 or episode + 1 == recipe.episodes:
                losses = history.log(episode + 1)
                if tell is not None:
                    tell(Progress(episode + 1, recipe.episodes, losses))
    return history
