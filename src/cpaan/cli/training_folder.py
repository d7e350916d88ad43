"""The folder of a model that is being trained: what is there, and what may be done with it."""

import shutil
from pathlib import Path
from typing import Any

from cpaan.errors import InputError

CHECKPOINTS = "checkpoints"
_CLASSIFIER = "classifier"


def is_trained(output: Path, augmenter: Any, *, alone: bool, resume: bool, overwrite: bool) -> bool:
    """Tell whether there is nothing left to do; refuse a folder that must not be written to.

    Parameters
    ----------
    output : the folder, which no other process writes to
    augmenter : as it is to be trained
    alone : whether it is saved without a classifier
    resume : whether a training that is there goes on
    overwrite : whether a model that is there may be replaced; a training that was interrupted goes on nevertheless
        where that is asked for
    """
    from cpaan.data.folders import CONFIG, LOCK, TENSORS, remove_leftovers, require_model_folder
    from cpaan.training.checkpoints import list_checkpoints

    begun, has_model = bool(list_checkpoints(output / CHECKPOINTS)), (output / CONFIG).exists()
    whole = has_model and not begun and (alone or (output / _CLASSIFIER / CONFIG).exists())
    if whole and resume and _is_same(output, augmenter, overwrite=overwrite):
        return True
    if begun and not resume and not overwrite:
        raise InputError(f"{output} holds a training that was interrupted; go on with --resume, or --overwrite it")
    remove_leftovers(output)
    ours = all(file.name in (LOCK, CHECKPOINTS, TENSORS) for file in output.iterdir())
    require_model_folder(output, overwrite=overwrite or resume or not has_model, ours=ours)
    if not resume:
        remove_checkpoints(output)
    return False


def remove_checkpoints(output: Path) -> None:
    """Remove the checkpoints of a training, which nobody needs once the model is written."""
    shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)


def _is_same(output: Path, augmenter: Any, *, overwrite: bool) -> bool:
    """Tell whether a model was trained with the same options; where it was not, it is refused or to be replaced."""
    from cpaan.data.folders import read_config

    config = read_config(output)
    there = {"method": config["kind"], **config.get("parameters", {})}
    now = {"method": type(augmenter).__name__, **augmenter.saved_parameters()}
    differing = [name for name in there | now if there.get(name) != now.get(name)]
    if differing and not overwrite:
        shown = "; ".join(f"{name}: {there.get(name)!r} there, {now.get(name)!r} now" for name in differing)
        raise InputError(
            f"{output} holds a model that was trained otherwise ({shown}); give another folder, or --overwrite it"
        )
    return not differing
