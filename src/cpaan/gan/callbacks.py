"""Callbacks, called at every logging step of a training run, about a hundred times.

A callback is any function of a `TrainingEvent`. It may read the losses, the networks and the score on held-out base
classes, ask to stop, and choose which networks to keep.
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
from cpaan.gan.objective import NETWORKS
from cpaan.gan.run import TrainingRun
from cpaan.training.checkpoints import list_checkpoints, read_checkpoint, write_checkpoint
from cpaan.training.progress import Progress, check_count, is_number
from cpaan.training.weights import part_of

__all__ = ["Callback", "Checkpoints", "EarlyStopping", "PrintedProgress", "TensorBoard", "TrainingEvent"]

SCORE = "score"


class EarlyStopping:
    """Stop training that has not improved for a while, and keep the best networks.

    Parameters
    ----------
    watch : str, default="score"
        ``"score"``, the accuracy on base classes that ``CPAAN(held_out=0.25)`` holds out as if novel; or a term of the
        loss, such as ``"covariance"``, which says less: losses of adversarial networks need not fall.
    patience : int, default=10
        Looks without improvement after which training stops.
    every : int, default=1
        Logging steps, of which there are about a hundred, between looks; the last step is always looked at.
    least : float, default=0.0
        Smallest improvement that counts.
    ties : bool, default=False
        Whether a value as good as the best counts as well: training then continues where nothing can improve, such as
        an accuracy of 100 %.

    Attributes
    ----------
    best_episode, best_value : episode of the best value, and the value
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
        check_count("patience", patience)
        check_count("every", every)
        self.watch, self.patience, self.every, self.least, self.ties = watch, patience, every, least, ties
        self.values: dict[int, float] = {}
        self.best_episode, self.best_value, self._waited = 0, float("nan"), 0

    def __call__(self, event: TrainingEvent) -> None:
        """Compare this logging step with the best."""
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
        """Return what it remembers, for a checkpoint."""
        values = [[episode, value] for episode, value in self.values.items()]
        return {"values": values, "best": [self.best_episode, self.best_value], "waited": self._waited}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.values = dict(state["values"])
        (self.best_episode, self.best_value), self._waited = state["best"], state["waited"]

    def _value(self, event: TrainingEvent) -> float:
        if self.watch == SCORE:
            return event.run.score()
        if self.watch not in event.losses:
            raise InputError(f"unknown quantity {self.watch!r}; watch one of {SCORE}, {', '.join(event.losses)}")
        return event.losses[self.watch]


class Checkpoints:
    """Save networks, optimizers, the random state and the history during training, and resume from them.

    The last two checkpoints are kept, each a folder named after its episode, as tensors and JSON with checksums;
    nothing is ever unpickled. A training that is killed at any moment and resumed ends with the same bits, on the same
    CPU, as one that is not. What precedes training is computed again. `checkpoint_networks` reads the newest networks.

    Parameters
    ----------
    folder : str or path
        One for each training: a folder with checkpoints of another one is refused, or resumed.
    every : int, default=10
        Logging steps, of which there are about a hundred, between checkpoints.
    seconds : float, default=0
        Shortest time between checkpoints.
    resume : bool, default=False
        Resume from the newest undamaged checkpoint, or start where there is none. The data, the seed (`random_state`
        must be a number) and every number of the recipe must be the same.
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
        check_count("every", every)
        if not is_number(seconds) or not 0 <= seconds < float("inf"):
            raise InputError(f"seconds between checkpoints must be a number of at least 0, not {seconds!r}")
        self.folder, self.every, self.seconds = folder, every, seconds
        self.resume, self.stop_on_signals = resume, stop_on_signals
        self._wrote, self._last = False, 0.0
        self._plan: dict[str, Any] = {}

    def begin(self, run: TrainingRun) -> None:
        """Restore the run to resume, or prepare the folder for a new one."""
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
            warnings.warn(f"no undamaged checkpoint in {self.folder}: training starts from the beginning", stacklevel=2)
        elif there and not self._wrote:
            raise InputError(
                f"{self.folder} has checkpoints of an earlier training; resume it (resume=True), remove them, or give "
                "another folder"
            )
        for old in there:
            shutil.rmtree(old, ignore_errors=True)

    def __call__(self, event: TrainingEvent) -> None:
        """Write a checkpoint if it is time for one."""
        due = len(event.run.history.episodes) % self.every == 0 and time.monotonic() - self._last >= self.seconds
        if due or event.run.stopping or event.episode == event.episodes:
            self.save(event.run)

    def save(self, run: TrainingRun) -> None:
        """Write a checkpoint now, unless the run is not finite and has yet to go back."""
        folder = Path(self.folder)
        if not folder.is_dir():
            raise InputError(
                f"{folder} was removed during training, so its state cannot be saved; keep it until training ends"
            )
        if run.trouble() is not None:
            return
        tensors, config = run.state()
        facts = {"architecture": asdict(run.networks.architecture), "numbers": asdict(run.step.recipe)}
        write_checkpoint(folder, run.episode, tensors, {**facts, **config, "plan": self._plan})
        self._wrote, self._last = True, time.monotonic()


def require_same_plan(folder: str | PathLike[str], there: Any, now: dict[str, Any]) -> None:
    """Refuse to resume with other data, another seed or other numbers than those of a checkpoint; name them."""
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
    """Read the networks of the newest undamaged checkpoint in a folder of `Checkpoints`, on the CPU."""
    found = read_checkpoint(Path(folder))
    if found is None:
        raise InputError(f"{folder} has no checkpoint; give the folder that was passed to Checkpoints")
    tensors, config = found
    if "architecture" not in config:
        raise InputError(f"{folder} has checkpoints of another kind of training; give one of adversarial networks")
    networks = Networks(Architecture(**config["architecture"]))
    networks.load_state_dict(part_of(tensors, NETWORKS))
    return networks.eval().requires_grad_(False)


class PrintedProgress:
    """Print a line of losses to the standard error.

    Parameters
    ----------
    every : int, default=10
        Logging steps, of which there are about a hundred, between lines; the last step is always printed.

    Examples
    --------
    >>> import contextlib, sys
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     PrintedProgress(every=1)(Progress(300, 1000, {"cycle_base": 0.125}))
    episode 300 of 1000: cycle_base 0.125
    """

    def __init__(self, *, every: int = 10) -> None:
        check_count("every", every)
        self.every = every
        self._seen = 0

    def __call__(self, progress: Progress) -> None:
        """Print if it is time to."""
        self._seen += 1
        if self._seen % self.every == 0 or progress.ended:
            terms = ", ".join(f"{name} {value:.3g}" for name, value in progress.losses.items())
            print(f"episode {progress.episode} of {progress.episodes}: {terms}", file=sys.stderr)


class TensorBoard:
    """Write every loss, and the score where base classes are held out, for TensorBoard.

    The file is created at the first write; a second training with the same callback gets another file.

    Parameters
    ----------
    folder : str or path
        For ``tensorboard --logdir``.
    writer : callable, optional
        Builds a writer for a folder; by default torch's ``SummaryWriter``, which needs ``cpaan[tensorboard]``.

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
        self.writer.flush()  # there is no event for the end of training

    @property
    def writer(self) -> Any:
        """The writer, built at its first use."""
        if self._writer is None:
            self._writer = (self._make or find_writer())(str(self.folder))
        return self._writer

    def close(self) -> None:
        """Write what is still in memory and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        # Estimators and their callbacks are copied and sent to other processes; an open file cannot be.
        return {**self.__dict__, "_writer": None}


def find_writer() -> Callable[[str], Any]:
    """Return the writer's class; raise an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", "a log for TensorBoard") from error
    return SummaryWriter
