"""Train a backbone on the images of base classes."""

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
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
from cpaan.representations.backbone import Backbone, encode_images
from cpaan.representations.images import ImageIndex
from cpaan.representations.loading import ImageLoader
from cpaan.representations.pixels import Part, Pixels, make_order, open_pixels
from cpaan.representations.recipe import BackboneRecipe, BackboneSettings
from cpaan.representations.step import BackboneStep, Processes, joined_processes, make_task, prototypical_logits
from cpaan.training.checkpoints import heard_signals, read_checkpoint, write_checkpoint
from cpaan.training.progress import History

CHECKPOINTS = "checkpoints"
LOGGINGS = 200
STEPS_BETWEEN_TALKS = 10  # steps after which several processes agree on stopping and on writing a checkpoint
FEWEST_CLASSES = 2
_TOP = (1, 5)
_BATCH = 256
_PER_PROTOTYPE = 50  # training images that a prototype averages at test time
_SHOWN = 3

# Called with a title and a unit, it opens a progress bar: a function of the number done, the total and perhaps a note.
CountBars: TypeAlias = Callable[[str, str], Callable[..., None]]


class Stopped(Exception):  # noqa: N818 - it is not an error
    """Training stopped on a signal, after writing a checkpoint."""


def train_backbone(
    index: ImageIndex, settings: BackboneSettings, folder: Path, *, resume: bool = False, bars: CountBars | None = None
) -> Backbone | None:
    """Train on the images of an index, whose classes are the base classes, and write the backbone to a folder.

    Returns the backbone, or None in any process but the first. SIGINT or SIGTERM write a checkpoint and raise Stopped.

    Parameters
    ----------
    index : ImageIndex
        Images of base classes; those for testing measure the accuracy at the end.
    settings : BackboneSettings
        What to train, and how.
    folder : Path
        For the backbone and its checkpoints. Unless resuming, those of an earlier run are removed.
    resume : bool
        Continue from the newest checkpoint in the folder, if there is one.
    bars : callable, optional
        Opens progress bars.
    """
    with joined_processes(settings.device) as processes:
        _require_enough(index.part("train").labels, index.classes, settings)
        if not resume and processes.is_first:
            _clear(folder)
        run = _Run(index, settings, folder, processes, bars if processes.is_first else None)
        try:
            run.train(resume)
            return run.finish()
        finally:
            run.pixels.close()


def _clear(folder: Path) -> None:
    for name in (CONFIG, TENSORS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


class _Run:
    """One process's part of a training run."""

    def __init__(
        self, index: ImageIndex, settings: BackboneSettings, folder: Path, processes: Processes, bars: CountBars | None
    ) -> None:
        self.index, self.settings, self.folder = index, settings, folder
        self.processes, self.bars = processes, bars
        self.skipped: dict[str, str] = {}
        recipe, parts = settings.recipe, processes.count * settings.accumulate
        make_order(settings.kind, index.part("train").labels, recipe, parts, settings.seed)  # fails before decoding
        task = make_task(settings.kind, len(index.classes), recipe, settings.seed)
        if settings.start is not None:
            task.network.load_state_dict(_start_network(settings.start, recipe).state_dict())
        self.pixels = self._open(index.part("train"), "reading images")
        labels = self.pixels.labels
        _require_enough(labels, index.classes, settings)
        self.order = make_order(settings.kind, labels, recipe, parts, settings.seed)
        self.steps = recipe.epochs * self.order.steps_per_epoch
        self.take_step = BackboneStep(task, recipe, labels, processes)
        self.history, self.done = History(), 0

    def train(self, resume: bool) -> None:
        """Take all remaining steps."""
        if resume:
            self._restore()
        every = self.settings.log_every or max(1, self.steps // LOGGINGS)
        tell = None if self.bars is None else self.bars(f"training {self.settings.kind}", "images")
        saved = time.monotonic()
        with heard_signals() as asked:
            for parts in self._parts():
                self.history.add(self.take_step(parts, self.done / self.steps))
                self.done += 1
                if self.done % every == 0 or self.done == self.steps:
                    self._log(tell)
                if self.done == self.steps or (self.processes.count > 1 and self.done % STEPS_BETWEEN_TALKS):
                    continue
                is_due = time.monotonic() - saved >= self.settings.checkpoint_seconds
                flags = self.processes.gather((asked.number is not None, is_due))  # of any process
                if any(map(any, flags)):
                    self._save()
                    saved = time.monotonic()
                if any(stop for stop, _ in flags):
                    raise Stopped

    def finish(self) -> Backbone | None:
        """Test the network, and write the backbone."""
        task, settings = self.take_step.task, self.settings
        self.processes.average_buffers(task)
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
            message = f"{len(skipped)} images could not be read and were left out ({shown}); {CONFIG} lists all"
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
        """Yield this process's parts of each step, requested by the epoch so that workers can read ahead."""
        first = self.settings.accumulate * self.processes.rank
        mine = range(first, first + self.settings.accumulate)
        while self.done < self.steps:
            end = (self.done // self.order.steps_per_epoch + 1) * self.order.steps_per_epoch
            taken = self.pixels.take(self.order.part(step, part) for step in range(self.done, end) for part in mine)
            for _ in range(self.done, end):
                yield [next(taken) for _ in mine]

    def _log(self, tell: Callable[..., None] | None) -> None:
        self.history.log(self.done)
        means = self.processes.average({name: values[-1] for name, values in self.history.losses.items()})
        for name, mean in means.items():
            self.history.losses[name][-1] = mean
        if not np.isfinite(means["loss"]):
            raise InputError(
                f"the loss is no longer finite after {self.done} steps; use a smaller learning_rate or more warmup"
            )
        if tell is not None:
            images = len(self.order.part(0, 0).rows) * self.processes.count * self.settings.accumulate
            note = f"loss {means['loss']:.3f}, {100 * means['accuracy']:.1f} % right"
            tell(self.done * images, self.steps * images, note)

    def _save(self) -> None:
        if self.processes.is_first:
            config = {"run": self._identity(), "history": self.history.state()}
            write_checkpoint(self.folder / CHECKPOINTS, self.done, self.take_step.state(), config)

    def _restore(self) -> None:
        found = read_checkpoint(self.folder / CHECKPOINTS)
        if found is not None:
            tensors, config = found
            with reading(self.folder / CHECKPOINTS):
                differing = [name for name, value in self._identity().items() if config["run"].get(name) != value]
                if differing:
                    raise InputError(
                        f"{self.folder / CHECKPOINTS} is of another run (other {', '.join(differing)}); give the same "
                        "options, or another folder"
                    )
                self.take_step.restore(tensors)
                self.history = History.from_state(config["history"])
                self.done = as_whole_number(config["step"], "step", minimum=0)
        elif self.processes.is_first:
            warnings.warn(f"there is no checkpoint in {self.folder}: starting over", stacklevel=2)
        done = self.processes.gather(self.done)
        if len(set(done)) > 1:
            raise InputError(
                f"processes would resume from different steps ({', '.join(map(str, done))}): {self.folder} must be one "
                "folder that all machines see"
            )

    def _identity(self) -> dict[str, Any]:
        """Everything that must be equal for a run to resume."""
        return {
            "kind": self.settings.kind,
            "numbers": asdict(self.settings.recipe),
            "seed": self.settings.seed,
            "processes × accumulate": self.processes.count * self.settings.accumulate,
            "start": None if self.settings.start is None else str(self.settings.start),
            "images": self.index.fingerprint,
        }


def _require_enough(labels: IndexArray, classes: tuple[str, ...], settings: BackboneSettings) -> None:
    """Refuse, by name, classes with fewer images than a step takes of one."""
    recipe = settings.recipe
    if len(classes) < FEWEST_CLASSES:
        raise InputError(f"there is {len(classes)} base class; a classifier needs at least {FEWEST_CLASSES}")
    needed = recipe.shots + recipe.queries if settings.kind == "prototypical" else 1
    counts = np.bincount(labels, minlength=len(classes))
    few = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < needed]
    if few:
        shown = ", ".join(few[:_SHOWN]) + (f" and {len(few) - _SHOWN} more" if len(few) > _SHOWN else "")
        raise InputError(
            f"too few training images of {shown}: each class needs {needed}; add images, leave the classes out, or "
            "--set fewer shots and queries"
        )


def _start_network(folder: Path, recipe: BackboneRecipe) -> nn.Module:
    backbone = Backbone.load(folder)
    there, here = (backbone.recipe.stem, backbone.recipe.width), (recipe.stem, recipe.width)
    if there != here:
        raise InputError(
            f"{folder} has a {there[0]} stem and width {there[1]}, but the recipe has a {here[0]} stem and width "
            f"{here[1]}; give the same recipe, or --set stem and width"
        )
    return backbone.network


@torch.no_grad()
def base_accuracy(
    network: nn.Module, head: nn.Module | None, train: Pixels, test: Pixels, recipe: BackboneRecipe, seed: int
) -> dict[str, float]:
    """Compute the top-1 and top-5 accuracy on test images in percent.

    Classify with the trained head, or without one by the nearest prototype, the mean of up to 50 training images.
    """
    network.eval()
    if head is None:
        features, labels = _encode(network, train, _some_of_each(train.labels, seed), recipe)
        centers = prototypes(features, labels, int(train.labels.max()) + 1)
    features, labels = _encode(network, test, np.arange(len(test.labels)), recipe)
    scores = prototypical_logits(features, centers, 1.0) if head is None else head(features)
    ranks = scores.argsort(dim=1, descending=True) == labels.unsqueeze(1)
    return {f"top{k}": 100 * float(ranks[:, :k].any(1).float().mean()) for k in _TOP}


def _some_of_each(labels: IndexArray, seed: int) -> IndexArray:
    rng = np.random.default_rng(seed)
    members = (np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1))
    return np.concatenate([rng.permutation(rows)[:_PER_PROTOTYPE] for rows in members])


def _encode(network: nn.Module, pixels: Pixels, rows: IndexArray, recipe: BackboneRecipe) -> tuple[Tensor, Tensor]:
    parts = [Part(rows[start : start + _BATCH], 0, 0) for start in range(0, len(rows), _BATCH)]
    features, labels = [], []
    for part, images in pixels.take(parts):
        features.append(encode_images(network, center_view(images, recipe.size)))
        labels.append(torch.from_numpy(pixels.labels[part.rows]))
    found = torch.cat(features)
    return found, torch.cat(labels).to(found.device)
