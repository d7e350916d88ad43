"""Callbacks: what is done at every logging step of a training, about a hundred times.

A callback is anything that can be called with a `TrainingEvent`: a function of one's own, or one of these. It may look
at the losses, the networks and the score on held-out base classes, ask to stop, and say which networks to keep.
"""

import shutil
import sys
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from cpaan.errors import InputError
from cpaan.nn.networks import Architecture, Networks
from cpaan.training.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from cpaan.training.tensorboard import TensorBoard
from cpaan.training.trainer import Callback, Progress, TrainingEvent, TrainingRun

__all__ = ["Callback", "Checkpoints", "EarlyStopping", "PrintedProgress", "TensorBoard", "TrainingEvent"]

SCORE = "score"
_NETWORKS = "networks."


class EarlyStopping:
    """Stops training that has not become better for a while, and keeps the networks that were best.

    Parameters
    ----------
    watch : str, default="score"
        ``"score"``, the accuracy on base classes held out as if novel, for which ``CPAAN(held_out=0.25)`` leaves
        classes out of training; or a term of the loss, such as ``"covariance"``, which says less: losses of networks
        that play against each other need not fall.
    patience : int, default=10
        Logging steps without a better value after which training stops.
    least : float, default=0.0
        By how much a value must be better to count.

    Attributes
    ----------
    best_episode, best_value : where the best value was seen, and what it was
    values : dict, the value at each logging step, by episode

    Examples
    --------
    >>> stopping = EarlyStopping("covariance", patience=3)
    >>> from cpaan import CPAAN
    >>> augmenter = CPAAN(episodes=2000, callbacks=[stopping])
    """

    def __init__(self, watch: str = SCORE, *, patience: int = 10, least: float = 0.0) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise InputError(f"patience must be a whole number of at least 1, not {patience!r}")
        self.watch, self.patience, self.least = watch, patience, least
        self.values: dict[int, float] = {}
        self.best_episode, self.best_value, self._waited = 0, float("nan"), 0

    def __call__(self, event: TrainingEvent) -> None:
        """Compare this logging step with those before."""
        if event.first:
            self.values = {}
        value = self.values[event.episode] = self._value(event)
        better = value - self.best_value if self.watch == SCORE else self.best_value - value
        if better > self.least or event.first:
            self.best_episode, self.best_value, self._waited = event.episode, value, 0
            event.run.keep()
            return
        self._waited += 1
        if self._waited >= self.patience:
            event.run.stop()

    def _value(self, event: TrainingEvent) -> float:
        if self.watch == SCORE:
            return event.run.score()
        if self.watch not in event.losses:
            raise InputError(f"there is no {self.watch!r} to watch; there are {SCORE}, {', '.join(event.losses)}")
        return event.losses[self.watch]


class Checkpoints:
    """Saves networks, optimizers, the random state and the history while training goes on.

    The last two are kept, each a folder named after its episode, as tensors and JSON with a checksum; nothing is ever
    unpickled. `checkpoint_networks` reads the newest that is whole.

    Parameters
    ----------
    folder : str or path
        Of its own for each training: one with checkpoints that this callback did not write is refused.
    every : int, default=10
        Logging steps, of which there are about a hundred, between one and the next.
    """

    def __init__(self, folder: str | PathLike[str], *, every: int = 10) -> None:
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every must be a whole number of at least 1, not {every!r}")
        self.folder, self.every = folder, every
        self._wrote = False

    def __call__(self, event: TrainingEvent) -> None:
        """Write a checkpoint where it is time for one."""
        if event.first:
            self._make_room()
        if len(event.run.history.episodes) % self.every == 0 or event.episode == event.episodes:
            write_checkpoint(Path(self.folder), event.episode, *run_state(event.run))
            self._wrote = True

    def _make_room(self) -> None:
        there = list_checkpoints(Path(self.folder))
        if there and not self._wrote:
            raise InputError(
                f"{self.folder} has checkpoints of an earlier training; give a folder without any, or remove them"
            )
        for old in there:
            shutil.rmtree(old)


def run_state(run: TrainingRun) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Give all that a training is made of at a logging step, as tensors and as what JSON can hold."""
    tensors = {f"{_NETWORKS}{name}": value for name, value in run.networks.state_dict().items()}
    for side, player in (("discriminators", run.step.discriminators), ("generators", run.step.generators)):
        for number, moments in player.optimizer.state_dict()["state"].items():
            tensors |= {f"{side}.{number}.{name}": value for name, value in moments.items()}
    tensors |= {"learning_rate": run.step.learning_rate, "random_state": run.generator.get_state()}
    config = {
        "architecture": asdict(run.networks.architecture),
        "numbers": asdict(run.step.recipe),
        "history": run.history.state(),
    }
    return tensors, config


def checkpoint_networks(folder: str | PathLike[str]) -> Networks:
    """Read the networks of the newest whole checkpoint in a folder of `Checkpoints`, on the CPU."""
    found = read_checkpoint(Path(folder))
    if found is None:
        raise InputError(f"{folder} has no checkpoint; give the folder that a training was told to write them to")
    tensors, config = found
    if "architecture" not in config:
        raise InputError(f"{folder} has checkpoints of another kind of training")
    networks = Networks(Architecture(**config["architecture"]))
    networks.load_state_dict(
        {name.removeprefix(_NETWORKS): value for name, value in tensors.items() if name.startswith(_NETWORKS)}
    )
    return networks.eval().requires_grad_(False)


class PrintedProgress:
    """Prints a line of losses to the standard error.

    Parameters
    ----------
    every : int, default=10
        Logging steps, of which there are about a hundred, between one line and the next; the last is printed always.

    Examples
    --------
    >>> import contextlib, sys
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     PrintedProgress(every=1)(Progress(300, 1000, {"cycle_base": 0.125}))
    episode 300 of 1000: cycle_base 0.125
    """

    def __init__(self, *, every: int = 10) -> None:
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every must be a whole number of at least 1, not {every!r}")
        self.every = every
        self._seen = 0

    def __call__(self, progress: Progress) -> None:
        """Print where it is time to."""
        self._seen += 1
        if self._seen % self.every == 0 or progress.episode == progress.episodes:
            terms = ", ".join(f"{name} {value:.3g}" for name, value in progress.losses.items())
            print(f"episode {progress.episode} of {progress.episodes}: {terms}", file=sys.stderr)
