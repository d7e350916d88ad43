"""Checkpoints: the state of a training run, from which it can go on.

Each is a folder of its own, named after the step, with tensors, JSON and a checksum. A new one is written beside the
last, which is removed only after; one that was torn by a crash is recognised, and the one before is taken.
"""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from cpaan.data.model_folder import read_model, write_model
from cpaan.errors import InputError

KIND = "checkpoint"
KEPT = 2
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
    write_model(folder / f"{step:0{_DIGITS}d}", KIND, tensors, {**config, "step": step})
    for old in list_checkpoints(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the newest checkpoint that is whole, or give None where there is none."""
    return next((found for found in map(_read, list_checkpoints(folder)) if found is not None), None)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    try:
        return read_model(path, KIND)
    except InputError as error:
        warnings.warn(f"{error}; taking the checkpoint before it", stacklevel=2)
        return None


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), reverse=True)
