"""The training loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from cpaan.gan.cuda_graph import Captured, DrawnAhead
from cpaan.gan.episodes import EpisodeSampler
from cpaan.gan.networks import Networks
from cpaan.gan.objective import TrainingStep
from cpaan.gan.run import Guard, TrainingRun
from cpaan.math.ky_fan_cuda import fast_products, is_recent_gpu
from cpaan.threads import of_layers, threads_for
from cpaan.training.checkpoints import Stopped, heard_signals
from cpaan.training.progress import LOGGINGS, History, Progress, learning_rate_at

# By a name that torch has documented and its types do not know.
_LINEAR_ALGEBRA_ERROR: type[Exception] = vars(torch.linalg)["LinAlgError"]


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
