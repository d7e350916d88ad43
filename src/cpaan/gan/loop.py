"""The training loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from cpaan.gan.cuda_graph import CudaGraph, DrawnAhead
from cpaan.gan.episodes import EpisodeSampler
from cpaan.gan.networks import Networks
from cpaan.gan.objective import TrainingStep
from cpaan.gan.run import NanRecovery, TrainingRun
from cpaan.math.ky_fan_cuda import fast_products, is_recent_gpu
from cpaan.threads import of_layers, threads_for
from cpaan.training.checkpoints import Stopped, heard_signals
from cpaan.training.progress import LOGGINGS, History, Progress, learning_rate_at

# Documented by torch, but missing from its types.
_LINEAR_ALGEBRA_ERROR: type[Exception] = vars(torch.linalg)["LinAlgError"]


@dataclass(frozen=True)
class TrainingEvent(Progress):
    """A logging step of the training of adversarial networks.

    Attributes
    ----------
    episode, episodes : number done, and in total
    losses : mean of every loss term since the last logging step
    run : the training run
    """

    run: TrainingRun = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether it is the last logging step, as far as earlier callbacks have decided."""
        return super().ended or self.run.stopping

    @property
    def first(self) -> bool:
        """Whether it is the first logging step of the run."""
        return self.episode == self.run.history.episodes[0]


Callback = Callable[[TrainingEvent], None]


@runtime_checkable
class Saver(Protocol):
    """A callback that saves a training run and can resume it."""

    stop_on_signals: bool  # whether SIGINT and SIGTERM end training after the episode, once it is saved

    def __call__(self, event: TrainingEvent) -> None:
        """Save if it is time to."""

    def begin(self, run: TrainingRun) -> None:
        """Prepare for the first episode, or restore the run to resume."""

    def save(self, run: TrainingRun) -> None:
        """Save now, possibly between logging steps."""


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
    generator : source of every random draw
    callbacks : called at every logging step, those that save last, and never between: a GPU need not wait
    score : scores networks on classes that are not trained on, for callbacks that ask for it
    plan : returns what must be the same for a training to resume from a checkpoint

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
    nan_recovery = NanRecovery(run)
    every = max(1, recipe.episodes // LOGGINGS)
    signals = heard_signals(any(saver.stop_on_signals for saver in savers))
    with threads_for(episode_multiplications(step)), fast_products(), signals as asked:
        while run.episode < recipe.episodes and not run.stopping:
            step.set_learning_rate(
                learning_rate_at(run.episode, recipe.learning_rate, recipe.halve_every) * 0.5**run.slowed
            )
            failed = _fails(next_episode)
            run.episode += 1
            due = run.episode % every == 0 or run.episode == recipe.episodes
            if (due or failed) and nan_recovery.passes(failed=failed):
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
    """Count the multiplications of an episode's largest layer: one row a pair."""
    recipe = step.recipe
    rows = recipe.batch_size * (1 if recipe.pairing == "drawn" else recipe.novel_per_episode)
    return of_layers(rows, step.trained.parameters())


def _fails(next_episode: Callable[[], None]) -> bool:
    """Train on an episode; whether a decomposition failed."""
    try:
        next_episode()
    except _LINEAR_ALGEBRA_ERROR:  # on a CPU, decompositions refuse what is not finite
        return True
    return False


def _episode_taker(run: TrainingRun, sampler: EpisodeSampler) -> Callable[[], None]:
    """Return a function that trains on the next episode: on a recent GPU, a captured graph."""
    if is_recent_gpu(run.generator.device) and not sampler.waits:
        ahead = DrawnAhead(run.step, sampler, run.generator, run.history)
        run.pending = ahead.pending()
        return CudaGraph(ahead, run.generator)

    def take_step() -> None:
        run.history.add(run.step(sampler.draw(run.generator), run.generator))

    return take_step
