"""Checks of output paths before anything long is begun."""

import os
from pathlib import Path

from cpaan.errors import InputError


def require_writable_file(path: Path) -> None:
    """Refuse a file that could not be written in the end."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
    _require_writable_folder(path.parent, path)


def require_model_folder(path: Path, *, overwrite: bool, ours: bool = False) -> None:
    """Refuse a folder that a model could not, or should not, be written to; nothing is made yet.

    Parameters
    ----------
    path : the folder
    overwrite : whether a model that is there may be replaced
    ours : whether what is there is known to be of a model, although there is none yet
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"cannot write a model to {path}: it is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()):
        if not ours and not (path / "config.json").exists():
            raise InputError(f"{path} is not empty and holds no model; give another folder")
        if not overwrite:
            raise InputError(f"{path} holds a model already; give another folder, or --overwrite")
    existing = path
    while not existing.exists():
        existing = existing.parent
    _require_writable_folder(existing, path)


def _require_writable_folder(folder: Path, wanted: Path) -> None:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"cannot write {wanted}: {folder} {what}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {wanted}: no permission to write in {folder}")
