"""The training loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from cpaan.functional.kernels import is_recent_gpu
from cpaan.functional.precision import fast_products
from cpaan.nn.networks import Networks
from cpaan.sampling.episodes import EpisodeSampler
from cpaan.threads import of_layers, threads_for
from cpaan.training.captured import Captured, DrawnAhead
from cpaan.training.guard import Guard
from cpaan.training.history import History
from cpaan.training.run import TrainingRun
from cpaan.training.signals import Stopped, heard_signals
from cpaan.training.step import TrainingStep

# By a name that torch has documented and its types do not know.
_LINEAR_ALGEBRA_ERROR: type[Exception] = vars(torch.linalg)["LinAlgError"]
LOGGINGS = 100  # logging steps of a run: enough for a curve, few enough not to slow it


@dataclass(frozen=True)
class Progress:
    """How far training is, told at every logging step."""

    episode: int
    episodes: int
    losses: dict[str, float]

    @property
    def ended(self) -> bool:
        """Whether it is the last logging step."""
        return self.episode == self.episodes


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
    def ended(self) -> bool:
        """Whether it is the last logging step, as far as the callbacks before have decided."""
        return super().ended or self.run.stopping

    @property
    def first(self) -> bool:
        """Whether it is the first logging step of its training."""
        return self.episode == self.run.history.episodes[0]


Callback = Callable[[TrainingEvent], None]


@runtime_checkable
class Saver(Protocol):
    """A callback that saves a training, and from which one can go on.

    Attributes
    ----------
    stop_on_signals : whether SIGINT and SIGTERM end training after the episode, when all is saved
    """

    stop_on_signals: bool

    def __call__(self, event: TrainingEvent) -> None:
        """Save where it is time to."""

    def begin(self, run: TrainingRun) -> None:
        """Make ready before the first episode, or restore the training that is to go on."""

    def save(self, run: TrainingRun) -> None:
        """Save now, between logging steps too."""


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
    plan: Callable[[], dict[str, Any]] = dict,
) -> History:
    """Train for all episodes of the step's recipe, or until a callback asks to stop.

    Parameters
    ----------
    step : holds the networks, which are trained in place
    sampler : draws the episodes
    generator : decides every random draw
    callbacks : called one after the other at every logging step, those that save last, and never between, so that a GPU
        need not wait
    score : gives the score of networks on classes that are not trained on, for callbacks that ask for it
    plan : gives what must be the same for a training to go on from what was saved

    Raises
    ------
    InputError
        Where losses are not finite, again and again.
    Stopped
        After SIGINT or SIGTERM, where a callback that saves asks to stop then; it has saved.
    """
    recipe = step.recipe
    run = TrainingRun(step, generator, History(), score, callbacks, plan)
    next_episode = _episode_taker(run, sampler)
    savers = [callback for callback in callbacks if isinstance(callback, Saver)]
    ordered: list[Callback] = sorted(callbacks, key=lambda callback: isinstance(callback, Saver))
    for saver in savers:
        saver.begin(run)
    every = max(1, recipe.episodes // LOGGINGS)
    guard, rate = Guard(run), None
    signals = heard_signals(any(saver.stop_on_signals for saver in savers))
    with threads_for(episode_multiplications(step)), fast_products(), signals as asked:
        while run.episode < recipe.episodes and not run.stopping:
            wanted = learning_rate_at(run.episode, recipe.learning_rate, recipe.halve_every) * 0.5**run.slowed
            if wanted != rate:
                rate = wanted
                step.learning_rate.fill_(rate)
            failed = _fails(next_episode)
            run.episode += 1
            due = run.episode % every == 0 or run.episode == recipe.episodes
            if (due or failed) and guard.passes(failed=failed):
                event = TrainingEvent(run.episode, recipe.episodes, run.history.log(run.episode), run)
                for callback in ordered:
                    callback(event)
            if asked.number is not None:
                for saver in savers:
                    saver.save(run)
                raise Stopped(asked.number, run.episode, recipe.episodes)
    run.finish()
    return run.history


def episode_multiplications(step: TrainingStep) -> float:
    """Count those of an episode's largest layer; pairs are as many as examples, or every one with every class."""
    recipe = step.recipe
    rows = recipe.batch_size * (1 if recipe.pairing == "drawn" else recipe.novel_per_episode)
    return of_layers(rows, step.trained.parameters())


def _fails(next_episode: Callable[[], None]) -> bool:
    """Train on an episode, and tell whether that was broken off."""
    try:
        next_episode()
    except _LINEAR_ALGEBRA_ERROR:  # on a CPU, decompositions refuse what is not finite
        return True
    return False


def _episode_taker(run: TrainingRun, sampler: EpisodeSampler) -> Callable[[], None]:
    """Give what trains on the next episode."""
    if is_recent_gpu(run.generator.device) and not sampler.waits:
        ahead = DrawnAhead(run.step, sampler, run.generator, run.history)
        run.pending = ahead.pending()
        return Captured(ahead, run.generator)

    def take_step() -> None:
        run.history.add(run.step(sampler.draw(run.generator), run.generator))

    return take_step
