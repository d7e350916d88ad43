"""Everything that decides how a backbone is trained: recipes, the learning rate schedule, and run settings."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from cpaan.errors import InputError

KINDS = ("resnet10", "prototypical")
CACHES = ("auto", "always", "never")
STEMS = ("large", "small")

_STAGES = 3
_DROP = 0.1


@dataclass(frozen=True)
class BackboneRecipe:
    """Every number of a backbone's training, by name; by default those of the low-shot benchmark.

    They are 90 epochs of SGD, random resized crops of 224 pixels, flips and colour jitter.
    """

    size: int = 224  # pixels of the square that the network sees
    stored: int = 256  # pixels of the square that images are decoded to, from which training crops
    crop: Literal["resized", "padded", "none"] = "resized"  # see `cpaan.representations.augmentation.Augmentation`
    smallest_crop: float = 0.08  # smallest area of a resized crop, as a fraction of the image
    jitter: float = 0.4  # strength of changes in brightness, contrast and saturation
    stem: str = "large"  # of the `cpaan.representations.backbone.ResNet10`, as is width
    width: int = 64
    epochs: int = 90
    batch_size: int = 256  # images per step of the plain classifier
    # A task of prototypical networks, which is one step. One shot, plus the loss of a plain classifier, was chosen on
    # Tiny-ImageNet's base classes: five shots without that loss cost novel classes three points at one shot, and
    # starting from a plain classifier four.
    ways: int = 32
    shots: int = 1
    queries: int = 7
    learning_rate: float = 0.1  # of SGD, as are momentum and weight_decay
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "step"  # divides the rate by 10 after each third of the epochs; "cosine" lowers it to zero
    warmup: float = 0.0  # fraction of the steps in which the rate rises from zero
    label_smoothing: float = 0.0  # of the plain classifier
    penalty: str = "none"  # on the features of the plain classifier, or "sgm" or "l2"
    penalty_weight: float = 0.02
    distance_scale: float = 1.0  # initial scale of squared distances, divided by the number of features; trained
    classifier_weight: float = 0.5  # of the plain classifier's loss that is added to that of prototypical networks

    def __post_init__(self) -> None:
        for name, (is_valid, wanted) in _RULES.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise InputError(f"{name} must be {wanted}, got {value!r}")
        if self.stored < self.size:
            raise InputError(f"stored ({self.stored} pixels) must be at least size ({self.size})")


_Rule = tuple[Callable[[Any], bool], str]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(wanted: str, is_inside: Callable[[float], bool]) -> _Rule:
    return (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and is_inside(value),
        f"a number {wanted}",
    )


def _one_of(*choices: str) -> _Rule:
    return lambda value: value in choices, f"one of {', '.join(map(repr, choices))}"


_COUNT: _Rule = _is_count, "a whole number of at least 1"
_POSITIVE = _number("above 0", lambda value: 0 < value < math.inf)
_FROM_ZERO = _number("of at least 0", lambda value: 0 <= value < math.inf)
_BELOW_ONE = _number("of at least 0 and below 1", lambda value: 0 <= value < 1)

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("size", "stored", "width", "epochs", "batch_size", "ways", "shots", "queries"), _COUNT),
    **dict.fromkeys(("learning_rate", "distance_scale"), _POSITIVE),
    **dict.fromkeys(("jitter", "weight_decay", "penalty_weight", "classifier_weight"), _FROM_ZERO),
    **dict.fromkeys(("momentum", "warmup", "label_smoothing"), _BELOW_ONE),
    "smallest_crop": _number("above 0 and at most 1", lambda value: 0 < value <= 1),
    "crop": _one_of("resized", "padded", "none"),
    "stem": _one_of(*STEMS),
    "schedule": _one_of("step", "cosine"),
    "penalty": _one_of("none", "sgm", "l2"),
}

PAPER = BackboneRecipe()

# For images of 28 to 96 pixels: a stem that keeps their size, and a schedule for few epochs.
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
NUMBERS = tuple(field.name for field in fields(BackboneRecipe))


def make_backbone_recipe(name: str, **changes: Any) -> BackboneRecipe:
    """Look up a recipe by name and change some of its numbers; `size` alone also scales `stored`.

    >>> make_backbone_recipe("small", size=28).stored
    28
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; choose one of {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    unknown = sorted(set(changes) - set(NUMBERS))
    if unknown:
        raise InputError(f"a backbone's recipe has no {', '.join(unknown)}; it has {', '.join(NUMBERS)}")
    if isinstance(changes.get("size"), int) and "stored" not in changes:
        changes["stored"] = round(changes["size"] * recipe.stored / recipe.size)
    return replace(recipe, **changes)


def learning_rate_at(progress: float, recipe: BackboneRecipe) -> float:
    """Compute the learning rate at a point of training from 0, the first step, to 1, the end."""
    if progress < recipe.warmup:
        return recipe.learning_rate * progress / recipe.warmup
    if recipe.schedule == "step":
        return float(recipe.learning_rate * _DROP ** int(progress * _STAGES))
    rest = (progress - recipe.warmup) / (1 - recipe.warmup)
    return recipe.learning_rate * (1 + math.cos(math.pi * rest)) / 2


@dataclass(frozen=True)
class BackboneSettings:
    """What to train, and with which resources."""

    kind: str  # "resnet10", a plain classifier of base classes, or "prototypical"
    recipe: BackboneRecipe
    seed: int = 0  # determines every random draw
    start: Path | None = None  # folder of a backbone to start from instead of random weights
    device: str = "auto"  # "auto", "cpu", "cuda" or "mps"
    workers: int = 0  # processes that decode images
    on_bad: str = "refuse"  # or "skip" unreadable images
    cache: str = "auto"  # "auto", "always" or "never" keep all pixels in the device's memory
    accumulate: int = 1  # parts of a batch that a process normalises one after the other
    checkpoint_seconds: float = 60.0  # between checkpoints
    log_every: int | None = None  # steps between entries of the history; by default about two hundred entries in all

    def __post_init__(self) -> None:
        for name, choices in (("kind", KINDS), ("cache", CACHES)):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number from 0 to 2^63 − 1, got {self.seed!r}")
        for name in ("accumulate", "log_every"):
            value = getattr(self, name)
            if not _is_count(value) and not (name == "log_every" and value is None):
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
