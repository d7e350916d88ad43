"""Training a backbone on the images of base classes."""

import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from cpaan.data.class_names import IndexArray
from cpaan.errors import InputError
from cpaan.representations.accuracy import base_accuracy
from cpaan.representations.backbone import Backbone
from cpaan.representations.image_index import ImageIndex
from cpaan.representations.loading import ImageLoader
from cpaan.representations.order import Part, make_order
from cpaan.representations.pixels import Pixels, open_pixels
from cpaan.representations.processes import Processes, joined_processes
from cpaan.representations.recipe import BackboneRecipe
from cpaan.representations.settings import BackboneSettings
from cpaan.representations.step import BackboneStep
from cpaan.representations.tasks import make_task
from cpaan.training.checkpoint import read_checkpoint, write_checkpoint
from cpaan.training.history import History

CHECKPOINTS = "checkpoints"
LOGGINGS = 200
MOST_BETWEEN_LOGGINGS = 50  # steps after which a wish to stop is heard
_SHOWN = 3

# Called with a title and a unit, it opens a bar that is told how many of how many things are done, and maybe a note.
CountBars: TypeAlias = Callable[[str, str], Callable[..., None]]


class Stopped(Exception):  # noqa: N818 - it is no error
    """Training was asked to stop, and has written a checkpoint."""


def train_backbone(
    index: ImageIndex, settings: BackboneSettings, folder: Path, *, resume: bool = False, bars: CountBars | None = None
) -> Backbone | None:
    """Train on the images of an index, whose classes are the base classes, and write the backbone to a folder.

    Parameters
    ----------
    index : images of base classes; those for testing tell the accuracy at the end
    settings : what to train, and how
    folder : of the backbone, and of the checkpoints
    resume : whether to go on from the newest checkpoint there, if any
    bars : shows the progress

    Returns
    -------
    Backbone, or None in a process that is not the first

    Raises
    ------
    Stopped
        After SIGINT or SIGTERM; a checkpoint was written.
    """
    with joined_processes(settings.device) as processes:
        run = _Run(index, settings, folder, processes, bars if processes.is_first else None)
        run.go(resume)
        return run.finish()


class _Run:
    """One process's part of a training run."""

    def __init__(
        self,
        index: ImageIndex,
        settings: BackboneSettings,
        folder: Path,
        processes: Processes,
        bars: CountBars | None,
    ) -> None:
        self.index, self.settings, self.folder = index, settings, folder
        self.processes, self.bars = processes, bars
        self.skipped: dict[str, str] = {}
        self.pixels = self._open(index.part("train"), "reading images")
        labels, recipe = self.pixels.labels, settings.recipe
        _require_enough(labels, index.classes, settings)
        self.order = make_order(settings.kind, labels, recipe, processes.count * settings.accumulate, settings.seed)
        self.steps = recipe.epochs * self.order.steps_per_epoch
        task = make_task(settings.kind, len(index.classes), recipe, settings.seed)
        if settings.start is not None:
            task.network.load_state_dict(_network_of(settings.start, recipe).state_dict())
        self.take_step = BackboneStep(task, recipe, labels, processes)
        self.history, self.done = History(), 0

    def go(self, resume: bool) -> None:
        """Take all steps that are still to be taken."""
        if resume:
            self._restore()
        every = self.settings.log_every or min(max(1, self.steps // LOGGINGS), MOST_BETWEEN_LOGGINGS)
        tell = self._teller()
        saved = time.monotonic()
        with _stop_asked() as asked:
            for parts in self._parts():
                self.history.add(self.take_step(parts, self.done / self.steps))
                self.done += 1
                if self.done % every and self.done < self.steps:
                    continue
                tell(self._log())
                stop = self.processes.agree(asked.is_set())
                due = self.processes.agree(time.monotonic() - saved >= self.settings.checkpoint_seconds)
                if self.done < self.steps and (stop or due):
                    self._save()
                    saved = time.monotonic()
                    if stop:
                        raise Stopped

    def finish(self) -> Backbone | None:
        """Test, and write the backbone."""
        self.processes.average_buffers(self.take_step.task)
        if not self.processes.is_first:
            return None
        task, settings = self.take_step.task, self.settings
        details: dict[str, Any] = {
            "history": {"step": self.history.episodes, **self.history.losses},
            "seed": settings.seed,
            "parts": self.processes.count * settings.accumulate,
        }
        if self.index.is_test.any():
            test = self._open(self.index.part("test"), "reading test images")
            head = task.head if settings.kind == "resnet10" else None
            details["accuracy"] = base_accuracy(task.network, head, self.pixels, test, settings.recipe, settings.seed)
        if self.skipped:
            shown = "; ".join(f"{name}: {reason}" for name, reason in list(self.skipped.items())[:_SHOWN])
            warnings.warn(f"{len(self.skipped)} images could not be read and were left out ({shown})", stacklevel=2)
            details["skipped"] = self.skipped
        backbone = Backbone(task.network.eval(), settings.kind, settings.recipe, self.index.classes, details)
        backbone.save(self.folder)
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        return backbone

    def _open(self, index: ImageIndex, title: str) -> Pixels:
        settings = self.settings
        loader = ImageLoader(index, settings.recipe.stored, workers=settings.workers, on_bad=settings.on_bad)
        loader.skipped = self.skipped
        tell = None if self.bars is None else self.bars(title, "images")
        return open_pixels(loader, self.processes.device, settings.cache, tell)

    def _parts(self) -> Iterator[list[tuple[Part, Tensor]]]:
        """Give the parts of this process, step by step, an epoch at a time so that workers can read ahead."""
        first = self.settings.accumulate * self.processes.rank
        mine = range(first, first + self.settings.accumulate)
        while self.done < self.steps:
            end = (self.done // self.order.steps_per_epoch + 1) * self.order.steps_per_epoch
            taken = self.pixels.take(self.order.part(step, part) for step in range(self.done, end) for part in mine)
            for _ in range(self.done, end):
                yield [next(taken) for _ in mine]

    def _log(self) -> dict[str, float]:
        self.history.log(self.done)
        means = self.processes.average({name: values[-1] for name, values in self.history.losses.items()})
        for name, mean in means.items():
            self.history.losses[name][-1] = mean
        if not np.isfinite(means["loss"]):
            raise InputError(
                f"the loss is no longer finite after {self.done} steps; give a smaller learning_rate, or more warmup"
            )
        return means

    def _teller(self) -> Callable[[dict[str, float]], None]:
        if self.bars is None:
            return lambda losses: None
        tell = self.bars(f"training {self.settings.kind}", "images")
        per_step = len(self.order.part(0, 0).rows) * self.processes.count * self.settings.accumulate

        def told(losses: dict[str, float]) -> None:
            note = f"loss {losses['loss']:.3f}, {100 * losses['accuracy']:.1f} % right"
            tell(self.done * per_step, self.steps * per_step, note)

        return told

    def _save(self) -> None:
        if self.processes.is_first:
            history = {"episodes": self.history.episodes, "losses": self.history.losses}
            config = {"run": self._plan(), "history": history}
            write_checkpoint(self.folder / CHECKPOINTS, self.done, self.take_step.state(), config)

    def _restore(self) -> None:
        found = read_checkpoint(self.folder / CHECKPOINTS)
        if found is None:
            return
        tensors, config = found
        plan = self._plan()
        differing = [name for name, value in plan.items() if config["run"].get(name) != value]
        if differing:
            raise InputError(
                f"the checkpoints in {self.folder} are of another run (other {', '.join(differing)}); give the same "
                "options as then, or another folder"
            )
        self.take_step.restore(tensors)
        self.history = History(config["history"]["episodes"], config["history"]["losses"])
        self.done = config["step"]

    def _plan(self) -> dict[str, Any]:
        """Give what must be the same for a run to go on."""
        return {
            "kind": self.settings.kind,
            "numbers": asdict(self.settings.recipe),
            "seed": self.settings.seed,
            "parts": self.processes.count * self.settings.accumulate,
            "images": self.index.fingerprint,
        }


def _require_enough(labels: IndexArray, classes: tuple[str, ...], settings: BackboneSettings) -> None:
    """Refuse classes with fewer images than a step takes of one, by name."""
    recipe = settings.recipe
    needed = recipe.shots + recipe.queries if settings.kind == "prototypical" else 1
    counts = np.bincount(labels, minlength=len(classes))
    few = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < needed]
    if few:
        shown = ", ".join(few[:_SHOWN]) + (f" and {len(few) - _SHOWN} more" if len(few) > _SHOWN else "")
        raise InputError(
            f"too few training images of {shown}: each class needs {needed}; add images, leave the classes out, or "
            "--set fewer shots and queries"
        )


def _network_of(folder: Path, recipe: BackboneRecipe) -> nn.Module:
    backbone = Backbone.load(folder)
    there, here = (backbone.recipe.stem, backbone.recipe.width), (recipe.stem, recipe.width)
    if there != here:
        raise InputError(
            f"{folder} has a {there[0]} stem and width {there[1]}, and the recipe a {here[0]} stem and width "
            f"{here[1]}; give the same recipe, or --set stem and width"
        )
    return backbone.network


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Note SIGINT and SIGTERM instead of dying of them, where signals can be caught."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
