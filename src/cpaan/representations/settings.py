"""What backbone to train, and with what means."""

from dataclasses import dataclass
from pathlib import Path

from cpaan.errors import InputError
from cpaan.representations.recipe import KINDS, BackboneRecipe


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
