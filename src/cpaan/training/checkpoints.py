"""Checkpoints of a training run, and SIGINT and SIGTERM during training.

Each checkpoint is a folder named after its step, with tensors, JSON and checksums. A new one is written next to the
last, which is removed afterwards; one that a crash left incomplete is recognised, and the one before is used.
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
HEAD = ("format", "format_version", "kind", "sha256")  # what `write_model` adds to a configuration
_CHECKSUM = "checksum"
_DIGITS = 10


def write_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write the state after so many steps, and remove all but the last two.

    The folder must not hold checkpoints of another run.

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
    newer = [other for other in there if int(other.name) > step]  # damaged, or this run would have resumed from them
    for old in [*newer, *[other for other in there if other not in newer][KEPT:]]:
        shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the newest undamaged checkpoint, if there is one."""
    return next((found for found in map(_read, list_checkpoints(folder)) if found is not None), None)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    try:
        tensors, config = read_model(path, KIND)
        if config.pop(_CHECKSUM, None) != _checksum({k: v for k, v in config.items() if k not in HEAD}):
            raise InputError(f"{path / CONFIG} is damaged: it does not match its checksum")
    except (InputError, KeyError) as error:  # a required entry of the configuration is missing
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


class Stopped(Exception):  # noqa: N818 - not an error
    """Training was asked to stop by a signal, and has written a checkpoint."""

    def __init__(self, signal_number: int, episode: int, episodes: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after episode {episode} of {episodes}")
        self.signal, self.episode, self.episodes = signal_number, episode, episodes


class StopSignal:
    """The signal that asks to stop, if any."""

    number: int | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Note a signal; a second Ctrl+C interrupts at once."""
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def heard_signals(wanted: bool = True) -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM instead of dying, if wanted and in the main thread, where signals can be caught."""
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
