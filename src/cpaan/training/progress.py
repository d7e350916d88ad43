"""Progress and history of a training run, and checks of its numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from cpaan.errors import InputError

LOGGINGS = 100  # logging steps of a run: enough for a curve, few enough not to slow it


@dataclass(frozen=True)
class Progress:
    """A logging step of a training run."""

    episode: int
    episodes: int
    losses: dict[str, float]

    @property
    def ended(self) -> bool:
        """Whether it is the last logging step."""
        return self.episode == self.episodes


class Bars(Protocol):
    """Progress bars."""

    def __call__(self, title: str) -> Callable[[Progress], None]:
        """Open a bar for a training run; returns the callback that updates it."""

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Open a bar for a loop; returns a callback that takes the number done and the total."""


def learning_rate_at(episode: int, initial: float, halve_every: int) -> float:
    """Return the learning rate of an episode, counted from 0: halved after every `halve_every` episodes."""
    return float(initial * 0.5 ** (episode // halve_every))


@dataclass
class History:
    """Means of the loss terms between logging steps.

    Losses are summed on their device and read only when logged: training does not wait for them.

    >>> history = History()
    >>> history.add({"cycle": torch.tensor(1.0)}); history.add({"cycle": torch.tensor(3.0)})
    >>> history.log(episode=2)
    {'cycle': 2.0}
    >>> history.episodes, history.losses
    ([2], {'cycle': [2.0]})
    """

    episodes: list[int] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    _names: tuple[str, ...] = field(default=(), repr=False)
    _sums: Tensor = field(default_factory=lambda: torch.zeros(1), repr=False)  # of the terms, then the number of steps
    _finite: Tensor = field(default_factory=lambda: torch.zeros(1), repr=False)  # steps after which each sum was finite

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step; in place after the first step, as a captured graph requires."""
        values = [*losses.values()]
        step = torch.stack([*values, values[0].new_ones(())])
        if self._names == tuple(losses) and self._sums.device == step.device:
            self._sums.add_(step)
        else:
            steps = self._sums[-1].item()
            before = dict(zip(self._names, self._sums.tolist(), strict=False))
            finite = dict(zip(self._names, self._finite.tolist(), strict=False))
            self._names = tuple(losses)
            self._sums = step + step.new_tensor([*(before.get(name, 0.0) for name in losses), steps])
            self._finite = step.new_tensor([*(finite.get(name, steps) for name in losses), steps])
        # A sum that is not finite stays so: the count shows at which step that began, when it is read later.
        self._finite.add_(self._sums.isfinite())

    def first_not_finite(self) -> tuple[tuple[str, ...], int] | None:
        """Return the terms that were not finite first, and the step since the last logging step, from 1."""
        finite = dict(zip(self._names, self._finite.tolist(), strict=False))
        least = min(finite.values(), default=0.0)
        if least >= self._sums[-1].item():
            return None
        return tuple(name for name, steps in finite.items() if steps == least), int(least) + 1

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values, including what was added since the last logging step."""
        *sums, steps = self._sums.tolist()
        named = dict(zip(self._names, sums, strict=True))
        return {"episodes": self.episodes, "losses": self.losses, "sums": named, "steps": int(steps)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, of a run whose losses were finite."""
        self.episodes = list(state["episodes"])
        self.losses = {name: list(values) for name, values in state["losses"].items()}
        self._names = tuple(state["sums"])
        self._sums = torch.tensor([*state["sums"].values(), state["steps"]], dtype=torch.float32)
        self._finite = torch.full_like(self._sums, state["steps"])

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        """Build a history from what `state` returned."""
        history = cls()
        history.restore(state)
        return history

    def log(self, episode: int) -> dict[str, float]:
        """Close a logging step and return its means."""
        *sums, steps = self._sums.tolist()
        means = {name: total / steps for name, total in zip(self._names, sums, strict=True)}
        self.episodes.append(episode)
        for name, mean in means.items():
            self.losses.setdefault(name, []).append(mean)
        self.forget()
        return means

    def forget(self) -> None:
        """Drop what was added since the last logging step."""
        self._sums.zero_()
        self._finite.zero_()


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number, of Python or NumPy, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise InputError unless a value is a whole number of at least `least`.

    >>> check_count("width", 0)
    Traceback (most recent call last):
        ...
    cpaan.errors.InputError: width must be a whole number of at least 1, not 0
    """
    if not _is_count(value, least):
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Raise InputError unless a value is a positive number."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise InputError(f"{name} must be a positive number, not {value!r}")


def read_counts(name: str, values: Any) -> tuple[int, ...]:
    """Read one or more whole numbers of at least 1 from a list, a tuple or an array."""
    listed = tuple(values) if isinstance(values, Sequence) or np.ndim(values) == 1 else ()
    if not listed or not all(_is_count(each, 1) for each in listed):
        raise InputError(f"{name} must be one or more whole numbers of at least 1, as in (1, 5), not {values!r}")
    return tuple(int(each) for each in listed)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
