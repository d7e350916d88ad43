"""What may be tuned: the paper's coarse grid, and a wider space.

λ's mean something at one feature scale only, and recipes have different ones. Both spaces are laid about the numbers of
the recipe that is tuned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from cpaan.errors import InputError
from cpaan.training.recipe import Recipe
from cpaan.training.variant import Variant

SPACES = ("paper", "wide")
# With more, base classes that can be translated from are few.
MOST_NOVEL, MOST_SHOTS, MOST_RANK = 40, 20, 64
_DIGITS = 3


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    name: str
    values: tuple[Any, ...]

    def suggest(self, trial: Any) -> Any:
        """Ask Optuna for a value."""
        return trial.suggest_categorical(self.name, self.values)


@dataclass(frozen=True)
class Whole:
    """A whole number from a range, as likely to be doubled as to be halved."""

    name: str
    low: int
    high: int

    def suggest(self, trial: Any) -> int:
        """Ask Optuna for a value."""
        return int(trial.suggest_int(self.name, self.low, self.high, log=True))


@dataclass(frozen=True)
class Real:
    """A number from a range, as likely to be doubled as to be halved."""

    name: str
    low: float
    high: float

    def suggest(self, trial: Any) -> float:
        """Ask Optuna for a value; three digits are enough, and can be typed."""
        return rounded(trial.suggest_float(self.name, self.low, self.high, log=True))


Dimension = Choice | Whole | Real


def rounded(value: float) -> float:
    """Round to three significant digits.

    >>> rounded(0.00123456), rounded(12345.6)
    (0.00123, 12300.0)
    """
    return round(float(value), _DIGITS - 1 - floor(log10(abs(value)))) if value else 0.0


def make_space(
    name: str, recipe: Recipe, variant: Variant, n_base: int, fixed: Mapping[str, Any]
) -> tuple[Dimension, ...]:
    """Lay a space about a recipe's own numbers.

    Parameters
    ----------
    name : ``"paper"``, a grid over λ_cyc, λ_cov, m, N_b and K_b as the paper searched; or ``"wide"``
    recipe : whose numbers are tuned
    variant : numbers of terms that it does not have are left out
    n_base : base classes of a fold, of which half can play novel ones at most
    fixed : numbers that are not to be tuned

    >>> from cpaan.training.recipe import QUICK
    >>> from cpaan.training.variant import find_variant
    >>> for dimension in make_space("paper", QUICK, find_variant("ccov-gan"), 40, {"ky_fan_rank": 10}):
    ...     print(dimension)
    Choice(name='cycle_weight', values=(10.0, 50.0, 250.0))
    Choice(name='covariance_weight', values=(2.0, 10.0, 50.0))
    Choice(name='novel_per_episode', values=(5, 10, 20))
    Choice(name='shots_per_episode', values=(2, 5, 10))
    """
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; choose one of {', '.join(SPACES)}")
    dimensions = _grid(recipe, n_base) if name == "paper" else _wide(recipe, n_base)
    absent = set(fixed)
    if not variant.cycle:
        absent.add("cycle_weight")
    if not variant.covariance:
        absent |= {"covariance_weight", "ky_fan_rank", "covariance_pairs"}
    found = tuple(dimension for dimension in dimensions if dimension.name not in absent)
    if not found:
        raise InputError("there is nothing left to tune: every number of the space is given with --set")
    return found


def _grid(recipe: Recipe, n_base: int) -> list[Dimension]:
    most = max(1, n_base // 2)
    shots, rank = recipe.shots_per_episode, recipe.ky_fan_rank
    return [
        _weights("cycle_weight", recipe.cycle_weight),
        _weights("covariance_weight", recipe.covariance_weight),
        Choice("ky_fan_rank", _about(rank, MOST_RANK)),
        Choice("novel_per_episode", _about(min(recipe.novel_per_episode, most), most)),
        Choice("shots_per_episode", _about(shots, max(shots, MOST_SHOTS))),
    ]


def _weights(name: str, own: float) -> Choice:
    return Choice(name, tuple(rounded(own * factor) for factor in (0.2, 1.0, 5.0)))


def _about(own: int, most: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, own // 2), own, min(2 * own, max(own, most))}))


def _wide(recipe: Recipe, n_base: int) -> list[Dimension]:
    dimensions: list[Dimension] = [
        Real("cycle_weight", recipe.cycle_weight / 30, recipe.cycle_weight * 30),
        Real("covariance_weight", recipe.covariance_weight / 30, recipe.covariance_weight * 30),
        Whole("ky_fan_rank", 1, MOST_RANK),
        Whole("novel_per_episode", 2, max(2, min(MOST_NOVEL, n_base // 2))),
        Whole("shots_per_episode", 1, MOST_SHOTS),
        Real("learning_rate", recipe.learning_rate / 10, recipe.learning_rate * 10),
        Choice("width", (recipe.width // 2, recipe.width, 2 * recipe.width)),
        Choice("generator", ("plain", "residual")),
        Choice("covariance_pairs", (1, 2, 4, 8, "all")),
        Real("within_distance", recipe.within_distance / 5, recipe.within_distance * 5),
    ]
    if recipe.temperature == "calibrated":
        dimensions.append(Real("perplexity", 2.0, 30.0))
    return dimensions
