"""The training loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.functional.kernels import is_recent_gpu
from cpaan.functional.precision import fast_products
from cpaan.nn.networks import Networks
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


class TrainingRun:
    """A training of adversarial networks under way, and what callbacks may ask of it.

    Attributes
    ----------
    step : holds the networks and their optimizers
    generator : decides every random draw
    history : of the losses so far
    stopping : whether training ends with this logging step
    """

    def __init__(
        self,
        step: TrainingStep,
        generator: torch.Generator,
        history: History,
        score: Callable[[Networks], float] | None = None,
    ) -> None:
        self.step, self.generator, self.history, self.stopping = step, generator, history, False
        self._score = score
        self._scored: tuple[int, float] | None = None
        self._kept: dict[str, Tensor] | None = None

    @property
    def networks(self) -> Networks:
        """The networks as they are now, in single precision."""
        return self.step.trained

    @property
    def has_score(self) -> bool:
        """Whether base classes are held out, so that there is a score."""
        return self._score is not None

    def score(self) -> float:
        """Give the accuracy, in percent, on base classes held out as if novel; computed once a logging step."""
        if self._score is None:
            raise InputError(
                "there is no score, because no base classes are held out: ask for some with CPAAN(held_out=0.25), or "
                "watch a term of the loss; networks that are trained directly on novel classes have no score"
            )
        now = self.history.episodes[-1]
        if self._scored is None or self._scored[0] != now:
            self._scored = now, self._score(self.networks)
        return self._scored[1]

    def stop(self) -> None:
        """End training when all callbacks have been called."""
        self.stopping = True

    def keep(self) -> None:
        """Take the networks as they are now for the result, whatever they learn from now on."""
        self._kept = {name: value.clone() for name, value in self.networks.state_dict().items()}

    def finish(self) -> None:
        """Take the networks that were kept, if any were."""
        if self._kept is not None:
            self.networks.load_state_dict(self._kept)


@dataclass(frozen=True)
class TrainingEvent(Progress):
    """A logging step of a training of adversarial networks.

    Attributes
    ----------
    episode, episodes : how many are done, and how many there are to be
    losses : mean of every loss term since the last logging step
    run : the training itself
    """

    run: TrainingRun = field(repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether it is the first logging step of its training."""
        return self.episode == self.run.history.episodes[0]


Callback = Callable[[TrainingEvent], None]


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
    callbacks: Sequence[Callback] = (),
    score: Callable[[Networks], float] | None = None,
) -> History:
    """Train for all episodes of the step's recipe, or until a callback asks to stop.

    Parameters
    ----------
    step : holds the networks, which are trained in place
    sampler : draws the episodes
    generator : decides every random draw
    callbacks : called one after the other at every logging step, and never between, so that a GPU need not wait
    score : gives the score of networks on classes that are not trained on, for callbacks that ask for it
    """
    recipe = step.recipe
    history = History()
    run = TrainingRun(step, generator, history, score)

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
                event = TrainingEvent(episode + 1, recipe.episodes, history.log(episode + 1), run)
                for callback in callbacks:
                    callback(event)
                if run.stopping:
                    break
    run.finish()
    return history
