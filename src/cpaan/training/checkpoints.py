"""Checkpoints: the state of a training run, from which it can go on.

Each is a folder of its own, named after the step, with tensors, JSON and checksums. A new one is written beside the
last, which is removed only after; one that was torn by a crash is recognised, and the one before is taken.

SIGINT and SIGTERM while networks are trained.
"""

import hashlib
import json
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from cpaan.data.folders import CONFIG, read_model, sync_folder, write_model
from cpaan.errors import InputError

KIND = "checkpoint"
KEPT = 2
HEAD = ("format", "format_version", "kind", "sha256")  # what a model's configuration holds beside what is given
_CHECKSUM = "checksum"
_DIGITS = 10


def write_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write the state after so many steps, and remove all but the last two.

    Checkpoints of another run must not be there: begin a run in a folder without any.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_checkpoint(folder, 7, {"weight": torch.ones(2)}, {"seed": 0})
    >>> tensors, config = read_checkpoint(folder)
    >>> config["step"], tensors["weight"]
    (7, tensor([1., 1.]))
    """
    path, content = folder / f"{step:0{_DIGITS}d}", {**config, "step": step}
    try:
        write_model(path, KIND, tensors, {**content, _CHECKSUM: _checksum(content)})
        sync_folder(folder)
    except InputError:
        shutil.rmtree(path, ignore_errors=True)  # the one before is whole
        raise
    there = list_checkpoints(folder)
    newer = [other for other in there if int(other.name) > step]  # damaged, or this run would have gone on from them
    for old in [*newer, *[other for other in there if other not in newer][KEPT:]]:
        shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the newest checkpoint that is whole, or give None where there is none."""
    return next((found for found in map(_read, list_checkpoints(folder)) if found is not None), None)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    try:
        tensors, config = read_model(path, KIND)
        if config.pop(_CHECKSUM, None) != _checksum({k: v for k, v in config.items() if k not in HEAD}):
            raise InputError(f"{path / CONFIG} is damaged: it does not match its checksum")
    except (InputError, KeyError) as error:  # a configuration that lost what it must have
        warnings.warn(f"the checkpoint {path} is passed over: {error}; taking the one before it", stacklevel=2)
        return None
    return tensors, config


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), reverse=True)


class Stopped(Exception):  # noqa: N818 - it is no error
    """Training was asked to stop, and has written a checkpoint.

    Attributes
    ----------
    signal : the number of the signal
    episode, episodes : how many are done, and how many there are to be
    """

    def __init__(self, signal_number: int, episode: int, episodes: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after episode {episode} of {episodes}")
        self.signal, self.episode, self.episodes = signal_number, episode, episodes


class StopSignal:
    """Which signal asks to stop; None as long as none does."""

    number: int | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Note a signal; a second Ctrl+C ends everything at once."""
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def heard_signals(wanted: bool = True) -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM instead of dying of them, where that is wanted and signals can be caught.

    >>> with heard_signals() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     asked.number == signal.SIGTERM
    True
    """
    asked = StopSignal()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
