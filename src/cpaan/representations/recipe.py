"""How a backbone is trained: every number, by name.

The learning rate in the course of training.

What backbone to train, and with what means.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from cpaan.errors import InputError

KINDS = ("resnet10", "prototypical")


@dataclass(frozen=True)
class BackboneRecipe:
    """Every number of a backbone's training.

    Attributes
    ----------
    size : pixels of the square that the network sees
    stored : pixels of the square that images are decoded to, of which training sees random crops
    crop : ``"resized"``, ``"padded"`` or ``"none"``, see `cpaan.representations.augmentation.Augmentation`
    smallest_crop : share of an image's area that a resized crop has at least
    jitter : strength of changes in brightness, contrast and saturation
    stem, width : of the `cpaan.representations.resnet10.ResNet10`
    epochs : passes over the images
    batch_size : images in a step of the plain classifier
    ways, shots, queries : of a task of prototypical networks, which is one step
    learning_rate, momentum, weight_decay : of SGD
    schedule : ``"step"``, ÷ 10 after each third of the epochs, or ``"cosine"``
    warmup : share of the steps in which the rate rises from zero
    label_smoothing : of the plain classifier
    penalty, penalty_weight : ``"none"``, ``"sgm"`` or ``"l2"``, on the features of the plain classifier
    distance_scale : of squared distances at the start, for each feature; it is trained
    classifier_weight : of a plain classifier's loss beside that of prototypical networks
    """

    size: int
    stored: int
    crop: Literal["resized", "padded", "none"]
    smallest_crop: float
    jitter: float
    stem: str
    width: int
    epochs: int
    batch_size: int
    ways: int
    shots: int
    queries: int
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    warmup: float
    label_smoothing: float
    penalty: str
    penalty_weight: float
    distance_scale: float
    classifier_weight: float

    def __post_init__(self) -> None:
        for name in ("size", "stored", "width", "epochs", "batch_size", "ways", "shots", "queries"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("learning_rate", "distance_scale", "smallest_crop"):
            if not _is_number(getattr(self, name)) or not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a positive number, not {getattr(self, name)!r}")
        for name in (
            "jitter",
            "weight_decay",
            "warmup",
            "label_smoothing",
            "penalty_weight",
            "classifier_weight",
            "momentum",
        ):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a number of at least 0, not {getattr(self, name)!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                shown = ", ".join(map(repr, choices))
                raise InputError(f"{name} must be one of {shown}, not {getattr(self, name)!r}")
        for name in ("momentum", "warmup", "label_smoothing"):
            if not getattr(self, name) < 1:
                raise InputError(f"{name} must be below 1, not {getattr(self, name)!r}")
        if self.smallest_crop > 1:
            raise InputError(f"smallest_crop must be at most 1, not {self.smallest_crop!r}")
        if self.stored < self.size:
            raise InputError(f"stored ({self.stored} pixels) must be at least size ({self.size})")


_CHOICES = {
    "crop": ("resized", "padded", "none"),
    "stem": ("large", "small"),
    "schedule": ("step", "cosine"),
    "penalty": ("none", "sgm", "l2"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# The low-shot benchmark's: 90 epochs of SGD, random resized crops of 224 pixels, flips and colour jitter.
PAPER = BackboneRecipe(
    size=224,
    stored=256,
    crop="resized",
    smallest_crop=0.08,
    jitter=0.4,
    stem="large",
    width=64,
    epochs=90,
    batch_size=256,
    # Found on Tiny-ImageNet's base classes: one shot, and a plain classifier beside it. With five shots and without it
    # novel classes lose three points at one shot; begun from a plain classifier, four.
    ways=32,
    shots=1,
    queries=7,
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    schedule="step",
    warmup=0.0,
    label_smoothing=0.0,
    penalty="none",
    penalty_weight=0.02,
    distance_scale=1.0,
    classifier_weight=0.5,
)

# For images of 28 to 96 pixels: a network that does not shrink them at once, and a schedule for few epochs.
SMALL = replace(
    PAPER,
    size=64,
    stored=64,
    crop="padded",
    stem="small",
    epochs=70,
    learning_rate=0.2,
    weight_decay=5e-4,
    schedule="cosine",
    warmup=0.05,
    label_smoothing=0.1,
)

RECIPES = {"paper": PAPER, "small": SMALL}


def make_backbone_recipe(name: str, **changes: Any) -> BackboneRecipe:
    """Take a recipe by name and change numbers by name.

    `size` alone also changes `stored`, in proportion.

    >>> make_backbone_recipe("small", size=28).stored
    28
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; choose one of {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    unknown = set(changes) - {field.name for field in fields(BackboneRecipe)}
    if unknown:
        known = ", ".join(field.name for field in fields(BackboneRecipe))
        raise InputError(f"a backbone's recipe has no {', '.join(sorted(unknown))}; it has {known}")
    if isinstance(changes.get("size"), int) and "stored" not in changes:
        changes["stored"] = round(changes["size"] * recipe.stored / recipe.size)
    return replace(recipe, **changes)


_STAGES = 3
_DROP = 0.1


def learning_rate_at(progress: float, recipe: BackboneRecipe) -> float:
    """Give the learning rate at a point from 0, the first step, to 1, the end.

    >>> from cpaan.representations.recipe import PAPER
    >>> [round(learning_rate_at(progress, PAPER), 6) for progress in (0.0, 0.3, 0.34, 0.99)]
    [0.1, 0.1, 0.01, 0.001]
    """
    if progress < recipe.warmup:
        return recipe.learning_rate * progress / recipe.warmup
    if recipe.schedule == "step":
        return float(recipe.learning_rate * _DROP ** int(progress * _STAGES))
    rest = (progress - recipe.warmup) / (1 - recipe.warmup)
    return recipe.learning_rate * (1 + math.cos(math.pi * rest)) / 2


@dataclass(frozen=True)
class BackboneSettings:
    """What to train, and with what means.

    Attributes
    ----------
    kind : ``"resnet10"``, a plain classifier of base classes, or ``"prototypical"``
    recipe : every number of the training
    seed : decides every random draw
    start : folder of a backbone to begin with, instead of random weights
    device : ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``
    workers : processes that decode images
    on_bad : ``"refuse"`` or ``"skip"`` images that cannot be read
    cache : ``"auto"``, ``"always"`` or ``"never"`` hold all pixels in the device's memory
    accumulate : parts of a batch that a process normalises one after the other
    checkpoint_seconds : time between checkpoints
    log_every : steps between two entries of the history, by default about two hundred in all
    """

    kind: str
    recipe: BackboneRecipe
    seed: int = 0
    start: Path | None = None
    device: str = "auto"
    workers: int = 0
    on_bad: str = "refuse"
    cache: str = "auto"
    accumulate: int = 1
    checkpoint_seconds: float = 60.0
    log_every: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number from 0 to 2^63 − 1, not {self.seed!r}")
        for name in ("accumulate", "log_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
