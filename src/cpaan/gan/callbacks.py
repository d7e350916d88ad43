"""Callbacks: what is done at every logging step of a training, about a hundred times.

A callback is anything that can be called with a `TrainingEvent`: a function of one's own, or one of these. It may look
at the losses, the networks and the score on held-out base classes, ask to stop, and say which networks to keep.

Losses of a training for TensorBoard.
"""

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from cpaan.data.folders import make_folder
from cpaan.errors import InputError
from cpaan.extras import missing_extra
from cpaan.gan.loop import Callback, TrainingEvent
from cpaan.gan.networks import Architecture, Networks
from cpaan.gan.objective import NETWORKS, part_of
from cpaan.gan.run import TrainingRun
from cpaan.training.checkpoints import list_checkpoints, read_checkpoint, write_checkpoint
from cpaan.training.progress import Progress


class TensorBoard:
    """Writes every loss, and the score where base classes are held out, to a folder: a callback.

    A file is made when there is something to write; a second training with the same callback gets one of its own.

    Parameters
    ----------
    folder : str or path
        Where ``tensorboard --logdir`` is to look.
    writer : callable, optional
        Makes what writes to a folder; by default torch's ``SummaryWriter``, which needs ``cpaan[tensorboard]``.

    Examples
    --------
    >>> class Printed:
    ...     def __init__(self, folder): self.folder = folder
    ...     def add_scalar(self, name, value, step): print(self.folder, name, value, step)
    ...     def flush(self): pass
    >>> TensorBoard("logs", writer=Printed)(Progress(10, 20, {"cycle": 2.0}))
    logs loss/cycle 2.0 10
    """

    def __init__(self, folder: str | PathLike[str], *, writer: Callable[[str], Any] | None = None) -> None:
        self.folder, self._make = folder, writer
        self._writer: Any = None

    def __call__(self, progress: Progress) -> None:
        """Write the losses of a logging step."""
        if isinstance(progress, TrainingEvent) and progress.first:
            self.close()
        for term, value in progress.losses.items():
            self.writer.add_scalar(f"loss/{term}", value, progress.episode)
        if isinstance(progress, TrainingEvent) and progress.run.has_score:
            self.writer.add_scalar("score/held_out", progress.run.score(), progress.episode)
        self.writer.flush()  # nobody says when training ends

    @property
    def writer(self) -> Any:
        """What writes to the folder, made when it is first used."""
        if self._writer is None:
            self._writer = (self._make or find_writer())(str(self.folder))
        return self._writer

    def close(self) -> None:
        """Write what is still in memory, and let go of the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        # An open file can be neither copied nor sent to another process, as estimators and their callbacks are.
        return {**self.__dict__, "_writer": None}


def find_writer() -> Callable[[str], Any]:
    """Give what writes logs; refuse where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", "a log for TensorBoard") from error
    return SummaryWriter


__all__ = ["Callback", "Checkpoints", "EarlyStopping", "PrintedProgress", "TensorBoard", "TrainingEvent"]

SCORE = "score"


class EarlyStopping:
    """Stops training that has not become better for a while, and keeps the networks that were best.

    Parameters
    ----------
    watch : str, default="score"
        ``"score"``, the accuracy on base classes held out as if novel, for which ``CPAAN(held_out=0.25)`` leaves
        classes out of training; or a term of the loss, such as ``"covariance"``, which says less: losses of networks
        that play against each other need not fall.
    patience : int, default=10
        Looks without a better value after which training stops.
    every : int, default=1
        Logging steps, of which there are about a hundred, from one look to the next; the last is looked at always.
    least : float, default=0.0
        By how much a value must be better to count.
    ties : bool, default=False
        Whether a value that is as good as that counts as well. Training then goes on where nothing can become better,
        such as an accuracy of 100 %.

    Attributes
    ----------
    best_episode, best_value : where the best value was seen, and what it was
    values : dict, the value at each look, by episode

    Examples
    --------
    >>> stopping = EarlyStopping("covariance", patience=3)
    >>> from cpaan import CPAAN
    >>> augmenter = CPAAN(episodes=2000, callbacks=[stopping])
    """

    def __init__(
        self, watch: str = SCORE, *, patience: int = 10, every: int = 1, least: float = 0.0, ties: bool = False
    ) -> None:
        for name, value in (("patience", patience), ("every", every)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        self.watch, self.patience, self.every, self.least, self.ties = watch, patience, every, least, ties
        self.values: dict[int, float] = {}
        self.best_episode, self.best_value, self._waited = 0, float("nan"), 0

    def __call__(self, event: TrainingEvent) -> None:
        """Compare this logging step with those before."""
        if event.first:
            self.values = {}
        elif len(event.run.history.episodes) % self.every and event.episode != event.episodes:
            return
        value = self.values[event.episode] = self._value(event)
        better = value - self.best_value if self.watch == SCORE else self.best_value - value
        if better > self.least or (self.ties and better == self.least) or event.first:
            self.best_episode, self.best_value, self._waited = event.episode, value, 0
            event.run.keep()
            return
        self._waited += 1
        if self._waited >= self.patience:
            event.run.stop()

    def state(self) -> dict[str, Any]:
        """Give what it remembers, for a checkpoint."""
        values = [[episode, value] for episode, value in self.values.items()]
        return {"values": values, "best": [self.best_episode, self.best_value], "waited": self._waited}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.values = dict(state["values"])
        (self.best_episode, self.best_value), self._waited = state["best"], state["waited"]

    def _value(self, event: TrainingEvent) -> float:
        if self.watch == SCORE:
            return event.run.score()
        if self.watch not in event.losses:
            raise InputError(f"there is no {self.watch!r} to watch; there are {SCORE}, {', '.join(event.losses)}")
        return event.losses[self.watch]


class Checkpoints:
    """Saves networks, optimizers, the random state and the history while training goes on, and goes on from them.

    The last two are kept, each a folder named after its episode, as tensors and JSON with checksums; nothing is ever
    unpickled. A training that is killed at any moment and resumed ends with the same bits on the same CPU, as if it
    had not been. What comes before training is not saved but computed again. `checkpoint_networks` reads the networks
    of the newest that is whole.

    Parameters
    ----------
    folder : str or path
        Of its own for each training: one with checkpoints that this callback did not write is refused, or resumed.
    every : int, default=10
        Logging steps, of which there are about a hundred, between one and the next.
    seconds : float, default=0
        Shortest time between one and the next.
    resume : bool, default=False
        Go on from the newest whole checkpoint; begin where there is none. The data, the seed (so that `random_state`
        must be a number) and every number of the recipe must be the same, and are refused where they are not.
    stop_on_signals : bool, default=False
        On SIGINT or SIGTERM finish the episode, save, and raise `cpaan.training.checkpoints.Stopped`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from cpaan import CPAAN
    >>> X, y = np.random.default_rng(0).normal(size=(80, 5)), np.repeat(np.arange(8), 10)
    >>> saved = Checkpoints(tempfile.mkdtemp(), resume=True)
    >>> augmenter = CPAAN(episodes=5, random_state=0, device="cpu", callbacks=[saved]).fit(X, y)
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        every: int = 10,
        seconds: float = 0.0,
        resume: bool = False,
        stop_on_signals: bool = False,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every must be a whole number of at least 1, not {every!r}")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
            raise InputError(f"seconds between checkpoints must be a number of at least 0, not {seconds!r}")
        self.folder, self.every, self.seconds = folder, every, seconds
        self.resume, self.stop_on_signals = resume, stop_on_signals
        self._wrote, self._last = False, 0.0
        self._plan: dict[str, Any] = {}

    def begin(self, run: TrainingRun) -> None:
        """Restore the training that is to go on, or make room for a new one."""
        folder = Path(self.folder)
        self._plan = json.loads(json.dumps(run.plan()))  # as it reads back: tuples are lists
        self._last = time.monotonic()
        make_folder(folder)
        found = read_checkpoint(folder) if self.resume else None
        if found is not None:
            require_same_plan(self.folder, found[1].get("plan"), self._plan)
            run.restore(*found)
            return
        there = list_checkpoints(folder)
        if there and self.resume:
            warnings.warn(f"there is no whole checkpoint in {self.folder}: beginning anew", stacklevel=2)
        elif there and not self._wrote:
            raise InputError(
                f"{self.folder} has checkpoints of an earlier training; go on with it (resume=True), give a folder "
                "without any, or remove them"
            )
        for old in there:
            shutil.rmtree(old, ignore_errors=True)

    def __call__(self, event: TrainingEvent) -> None:
        """Write a checkpoint where it is time for one."""
        due = len(event.run.history.episodes) % self.every == 0 and time.monotonic() - self._last >= self.seconds
        if due or event.run.stopping or event.episode == event.episodes:
            self.save(event.run)

    def save(self, run: TrainingRun) -> None:
        """Write a checkpoint now; not of a training that is no longer finite, which has yet to go back."""
        folder = Path(self.folder)
        if not folder.is_dir():
            raise InputError(
                f"{folder} has been removed while training went on, so that its state cannot be saved any more"
            )
        if run.trouble() is not None:
            return
        tensors, config = run.state()
        facts = {"architecture": asdict(run.networks.architecture), "numbers": asdict(run.step.recipe)}
        write_checkpoint(folder, run.episode, tensors, {**facts, **config, "plan": self._plan})
        self._wrote, self._last = True, time.monotonic()


def require_same_plan(folder: str | PathLike[str], there: Any, now: dict[str, Any]) -> None:
    """Refuse to go on with other data, another seed or other numbers than those of a checkpoint, by name.

    >>> require_same_plan("model/checkpoints", {"seed": 1}, {"seed": 2})
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: the checkpoints in model/checkpoints are of another training (seed: 1 there, 2 now); ...
    """
    if not isinstance(there, dict):
        raise InputError(f"{folder} has checkpoints of another kind of training; give another folder")
    differing = [name for name in now | there if now.get(name) != there.get(name)]
    if differing:
        shown = "; ".join(f"{name}: {there.get(name)!r} there, {now.get(name)!r} now" for name in differing)
        raise InputError(
            f"the checkpoints in {folder} are of another training ({shown}); give the same data and options as then, "
            "or another folder"
        )


def checkpoint_networks(folder: str | PathLike[str]) -> Networks:
    """Read the networks of the newest whole checkpoint in a folder of `Checkpoints`, on the CPU."""
    found = read_checkpoint(Path(folder))
    if found is None:
        raise InputError(f"{folder} has no checkpoint; give the folder that a training was told to write them to")
    tensors, config = found
    if "architecture" not in config:
        raise InputError(f"{folder} has checkpoints of another kind of training")
    networks = Networks(Architecture(**config["architecture"]))
    networks.load_state_dict(part_of(tensors, NETWORKS))
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
        if self._seen % self.every == 0 or progress.ended:
            terms = ", ".join(f"{name} {value:.3g}" for name, value in progress.losses.items())
            print(f"episode {progress.episode} of {progress.episodes}: {terms}", file=sys.stderr)
