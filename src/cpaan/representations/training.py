"""Training a backbone on the images of base classes.

How well a backbone tells base classes apart.
"""

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
import torch
from torch import Tensor, nn

from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import IndexArray
from cpaan.data.folders import CONFIG, TENSORS
from cpaan.data.untrusted import reading
from cpaan.errors import InputError
from cpaan.math.prototypes import prototypes
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, encoded
from cpaan.representations.images import ImageIndex
from cpaan.representations.loading import ImageLoader
from cpaan.representations.order import Part, make_order
from cpaan.representations.pixels import Pixels, open_pixels
from cpaan.representations.processes import Processes, joined_processes
from cpaan.representations.recipe import BackboneRecipe, BackboneSettings
from cpaan.representations.step import BackboneStep, make_task, prototypical_logits
from cpaan.training.checkpoints import read_checkpoint, write_checkpoint
from cpaan.training.progress import History

TOP = (1, 5)
_BATCH = 256
_FOR_PROTOTYPES = 50  # training images of each class that a prototype is the mean of


@torch.no_grad()
def base_accuracy(
    network: nn.Module,
    head: nn.Module | None,
    train: Pixels,
    test: Pixels,
    recipe: BackboneRecipe,
    seed: int,
) -> dict[str, float]:
    """Give the top-1 and top-5 accuracy on test images in percent.

    By the classifier that was trained, or where there is none by the nearest prototype, the mean of up to 50 training
    images of a class.
    """
    network.eval()
    if head is None:
        rows = _some_of_each(train.labels, seed)
        features, labels = _encode(network, train, rows, recipe)
        centers = prototypes(features, labels, int(train.labels.max()) + 1)
    features, labels = _encode(network, test, np.arange(len(test.labels)), recipe)
    scores = prototypical_logits(features, centers, 1.0) if head is None else head(features)
    ranks = scores.argsort(dim=1, descending=True) == labels.unsqueeze(1)
    return {f"top{k}": 100 * float(ranks[:, :k].any(1).float().mean()) for k in TOP}


def _some_of_each(labels: IndexArray, seed: int) -> IndexArray:
    rng = np.random.default_rng(seed)
    members = (np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1))
    return np.concatenate([rng.permutation(rows)[:_FOR_PROTOTYPES] for rows in members])


def _encode(network: nn.Module, pixels: Pixels, rows: IndexArray, recipe: BackboneRecipe) -> tuple[Tensor, Tensor]:
    parts = [Part(rows[start : start + _BATCH], 0, 0) for start in range(0, len(rows), _BATCH)]
    features, labels = [], []
    for part, images in pixels.take(parts):
        features.append(encoded(network, center_view(images, recipe.size)))
        labels.append(torch.from_numpy(pixels.labels[part.rows]))
    found = torch.cat(features)
    return found, torch.cat(labels).to(found.device)


CHECKPOINTS = "checkpoints"
LOGGINGS = 200
STEPS_BETWEEN_TALKS = 10  # of several processes, which then agree on whether to stop and to write a checkpoint
FEWEST_CLASSES = 2
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
    folder : of the backbone, and of the checkpoints; what is there of another run is removed, unless it is resumed
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
        _require_enough(index.part("train").labels, index.classes, settings)
        if not resume and processes.is_first:
            clear_run(folder)
        run = _Run(index, settings, folder, processes, bars if processes.is_first else None)
        try:
            run.go(resume)
            return run.finish()
        finally:
            run.pixels.close()


def clear_run(folder: Path) -> None:
    """Remove a backbone and the checkpoints of a folder."""
    for name in (CONFIG, TENSORS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


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
        recipe, parts = settings.recipe, processes.count * settings.accumulate
        make_order(settings.kind, index.part("train").labels, recipe, parts, settings.seed)  # refuses early
        task = make_task(settings.kind, len(index.classes), recipe, settings.seed)
        if settings.start is not None:
            task.network.load_state_dict(_network_of(settings.start, recipe).state_dict())
        self.pixels = self._open(index.part("train"), "reading images")
        labels = self.pixels.labels
        _require_enough(labels, index.classes, settings)
        self.order = make_order(settings.kind, labels, recipe, parts, settings.seed)
        self.steps = recipe.epochs * self.order.steps_per_epoch
        self.take_step = BackboneStep(task, recipe, labels, processes)
        self.history, self.done = History(), 0

    def go(self, resume: bool) -> None:
        """Take all steps that are still to be taken."""
        if resume:
            self._restore()
        every = self.settings.log_every or max(1, self.steps // LOGGINGS)
        tell = self._teller()
        saved = time.monotonic()
        with _stop_asked() as asked:
            for parts in self._parts():
                self.history.add(self.take_step(parts, self.done / self.steps))
                self.done += 1
                if self.done % every == 0 or self.done == self.steps:
                    tell(self._log())
                if self.done == self.steps or (self.processes.count > 1 and self.done % STEPS_BETWEEN_TALKS):
                    continue
                stop = self.processes.agree(asked.is_set())
                if stop or self.processes.agree(time.monotonic() - saved >= self.settings.checkpoint_seconds):
                    self._save()
                    saved = time.monotonic()
                if stop:
                    raise Stopped

    def finish(self) -> Backbone | None:
        """Test, and write the backbone."""
        self.processes.average_buffers(self.take_step.task)
        task, settings = self.take_step.task, self.settings
        details: dict[str, Any] = {
            "history": {"step": self.history.episodes, **self.history.losses},
            "seed": settings.seed,
            "parts": self.processes.count * settings.accumulate,
        }
        if self.processes.is_first and self.index.is_test.any():
            test = self._open(self.index.part("test"), "reading test images")
            head = task.head if settings.kind == "resnet10" else None
            details["accuracy"] = base_accuracy(task.network, head, self.pixels, test, settings.recipe, settings.seed)
            test.close()
        skipped = {name: why for found in self.processes.gather(self.skipped) for name, why in found.items()}
        if not self.processes.is_first:
            return None
        if skipped:
            shown = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:_SHOWN])
            message = f"{len(skipped)} images could not be read and were left out ({shown}); all are in {CONFIG}"
            warnings.warn(message, stacklevel=2)
            details["skipped"] = skipped
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
            config = {"run": self._plan(), "history": self.history.state()}
            write_checkpoint(self.folder / CHECKPOINTS, self.done, self.take_step.state(), config)

    def _restore(self) -> None:
        found = read_checkpoint(self.folder / CHECKPOINTS)
        if found is None:
            self._require_same_step()
            if self.processes.is_first:
                warnings.warn(f"there is no checkpoint in {self.folder}: beginning anew", stacklevel=2)
            return
        tensors, config = found
        plan = self._plan()
        with reading(self.folder / CHECKPOINTS):
            differing = [name for name, value in plan.items() if config["run"].get(name) != value]
        if differing:
            raise InputError(
                f"the checkpoints in {self.folder} are of another run (other {', '.join(differing)}); give the same "
                "options as then, or another folder"
            )
        with reading(self.folder / CHECKPOINTS):
            self.take_step.restore(tensors)
            self.history = History.from_state(config["history"])
            self.done = as_whole_number(config["step"], "step", minimum=0)
        self._require_same_step()

    def _require_same_step(self) -> None:
        found = self.processes.gather(self.done)
        if len(set(found)) > 1:
            raise InputError(
                f"processes would go on from different steps ({', '.join(map(str, found))}): {self.folder} must be one "
                "folder that all machines see"
            )

    def _plan(self) -> dict[str, Any]:
        """Give what must be the same for a run to go on."""
        return {
            "kind": self.settings.kind,
            "numbers": asdict(self.settings.recipe),
            "seed": self.settings.seed,
            "processes × accumulate": self.processes.count * self.settings.accumulate,
            "start": None if self.settings.start is None else str(self.settings.start),
            "images": self.index.fingerprint,
        }


def _require_enough(labels: IndexArray, classes: tuple[str, ...], settings: BackboneSettings) -> None:
    """Refuse classes with fewer images than a step takes of one, by name."""
    recipe = settings.recipe
    if len(classes) < FEWEST_CLASSES:
        raise InputError(
            f"there is {len(classes)} base class, and telling classes apart needs {FEWEST_CLASSES} or more"
        )
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

    def hear(number: int, _: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once, then
        asked.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
