"""How a backbone is trained: every number, by name."""

from dataclasses import dataclass, fields, replace
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
    stem, width : of the `cpaan.nn.resnet10.ResNet10`
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
