"""Numbers of a recipe compared on base classes held out as if novel.

An augmenter is trained on the classes that remain; its score is the top-1 accuracy of a final classifier, averaged over
LSL and GLSL, numbers of shots and draws. Novel classes and test examples have no part in it.

What may be tuned: the paper's coarse grid, and a wider space.

λ's mean something at one feature scale only, and recipes have different ones. Both spaces are laid about the numbers of
the recipe that is tuned.

Base classes parted into folds, each of which is held out in turn as if its classes were novel.

A fold is a low-shot problem of its own, made of training examples of base classes alone: neither novel classes nor test
examples have a part in it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.augmenters.named import CPAAN
from cpaan.centers import ShotMean
from cpaan.centers.cross_validation import corrected_interval
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import ShotSource
from cpaan.errors import InputError
from cpaan.evaluation.benchmark import normalize
from cpaan.evaluation.cell import NORMALIZATIONS, Cell, run_cell
from cpaan.evaluation.fitted_methods import Learned
from cpaan.evaluation.run_folder import Interval
from cpaan.gan.objective import Variant, find_variant
from cpaan.gan.recipe import Recipe, make_recipe
from cpaan.methods import Settings, make_augmenter, make_classifier
from cpaan.threads import limited_threads

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

    >>> from cpaan.gan.recipe import QUICK
    >>> from cpaan.gan.objective import find_variant
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


FEWEST_QUERIES, MOST_QUERIES = 5, 30
FEWEST_HELD_OUT, FEWEST_REMAINING = 2, 4
FEWEST_EXAMPLES = 2  # of a class that is not held out: one to learn from, one to test with
QUERY_SHARE = 4  # of the examples of such a class, a quarter at most are for testing
Indices = NDArray[np.int64]


def held_out_fold(base: FeatureSet, fold: int, folds: int, most_shots: int, seed: int) -> BenchmarkData:
    """Hold some base classes out.

    Parameters
    ----------
    base : training examples of base classes
    fold, folds : which of how many
    most_shots : largest number of shots that will be drawn of a held-out class; smaller classes are never held out
    seed : decides how classes are parted, and which examples are for testing

    Returns
    -------
    BenchmarkData
        With numbers for names.

    >>> base = FeatureSet(np.arange(240.0).reshape(-1, 1), np.repeat(np.arange(8), 30))
    >>> data = held_out_fold(base, 0, 4, most_shots=5, seed=0)
    >>> len(data.novel_classes), len(data.base_classes), len(data.novel_test), len(data.base_test)
    (2, 6, 50, 42)
    """
    random = np.random.default_rng([seed, folds])
    order = np.argsort(base.labels, kind="stable")
    members = [random.permutation(rows) for rows in np.split(order, np.cumsum(base.counts)[:-1])]
    large = random.permutation(np.flatnonzero(base.counts >= most_shots + FEWEST_QUERIES))
    held = np.sort(large[fold::folds])
    rest = np.setdiff1d(np.flatnonzero(base.counts >= FEWEST_EXAMPLES), held)
    if len(large) // folds < FEWEST_HELD_OUT or len(rest) < FEWEST_REMAINING:
        raise InputError(
            f"{len(large)} of {base.n_classes} base classes have the {most_shots + FEWEST_QUERIES} examples that it "
            f"takes to be held out, too few for {folds} folds of {FEWEST_HELD_OUT} or more with {FEWEST_REMAINING} "
            "remaining; tune with fewer shots or fewer folds, or on more base classes"
        )
    of_held = [_parted(members[c], min(MOST_QUERIES, len(members[c]) - most_shots)) for c in held]
    of_rest = [_parted(members[c], min(MOST_QUERIES, max(1, len(members[c]) // QUERY_SHARE))) for c in rest]
    pool = _examples(base, held, [rows for rows, _ in of_held])
    starts = np.cumsum([0, *(len(rows) for rows, _ in of_held)])
    places = tuple(np.arange(start, stop) for start, stop in pairwise(starts))
    return BenchmarkData(
        base_train=_examples(base, rest, [rows for rows, _ in of_rest]),
        base_test=_examples(base, rest, [queries for _, queries in of_rest]),
        novel_test=_examples(base, held, [queries for _, queries in of_held]),
        shot_source=ShotSource(pool.classes, places, pool.take),
    )


def _parted(rows: Indices, queries: int) -> tuple[Indices, Indices]:
    return rows[queries:], rows[:queries]


def _examples(base: FeatureSet, classes: Indices, rows: Sequence[Any]) -> FeatureSet:
    labels = np.repeat(np.arange(len(classes)), [len(part) for part in rows])
    return FeatureSet(base.features[np.concatenate(rows)], labels, [int(c) for c in classes])


FEWEST_FOLDS = 2


@dataclass(frozen=True)
class TuningPlan:
    """What is tuned, and how numbers are compared; written to the study, and compared when it goes on.

    Attributes
    ----------
    method : one of the paper's variants
    recipe : whose numbers are tuned
    space : ``"paper"`` or ``"wide"``, see `make_space`
    classifier : final classifier
    normalize : ``none``, ``l2`` or ``center-l2``
    shots : numbers of shots K
    folds : parts of the base classes, each of which is held out once
    draws : of the shots of each fold
    numbers : of the recipe, changed by name and not tuned
    seed : decides every random draw but the numbers that are tried
    device : where to train; not compared
    """

    method: str = "ccov-gan"
    recipe: str = "quick"
    space: str = "paper"
    classifier: str = "linear"
    normalize: str = "none"
    shots: tuple[int, ...] = (1, 5)
    folds: int = 4
    draws: int = 3
    numbers: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("folds", FEWEST_FOLDS), ("draws", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not self.shots or min(self.shots) < 1:
            raise InputError(f"shots must be whole numbers of at least 1, not {', '.join(map(str, self.shots))}")
        if self.normalize not in NORMALIZATIONS:
            raise InputError(f"unknown normalization {self.normalize!r}; choose one of {', '.join(NORMALIZATIONS)}")
        if not isinstance(self.augmenter({}), CPAAN):
            raise InputError(
                f"{self.method} has no numbers to tune; choose one of c-gan, ccyc-gan, cdeli-gan, ccov-gan"
            )
        if isinstance(make_classifier(self.classifier), MetaClassifier):
            raise InputError(f"{self.classifier} is trained itself; choose nearest-prototype, linear or cosine")
        if self.classifier == "nearest-prototype" and not isinstance(self.augmenter({}).resolve("center"), ShotMean):
            raise InputError(
                "about an estimated centre, real and synthetic examples have the same mean whatever the networks do, "
                "so that all numbers are alike to nearest-prototype; choose linear or cosine, or --set center=shots"
            )

    @cached_property
    def own(self) -> Recipe:
        """The recipe with its own numbers and those that are not tuned."""
        return self.changed({})

    def changed(self, numbers: Mapping[str, Any]) -> Recipe:
        """Give the recipe with some numbers tried; refuse numbers that do not go together."""
        known = set(Recipe.__dataclass_fields__)
        given = {**self.numbers, **numbers}
        return make_recipe(self.recipe, **{name: value for name, value in given.items() if name in known})

    def augmenter(self, numbers: Mapping[str, Any]) -> Any:
        """Make an augmenter with some numbers tried."""
        settings = Settings(self.recipe, self.device, self.seed, numbers={**self.numbers, **numbers})
        return make_augmenter(self.method, settings)

    def space_for(self, base: FeatureSet) -> tuple[Dimension, ...]:
        """Give what may be tried."""
        fewest = base.n_classes - -(-base.n_classes // self.folds)
        return make_space(self.space, self.own, find_variant(self.method), fewest, self.numbers)

    def identity(self, base: FeatureSet) -> dict[str, Any]:
        """Give what must be the same where a study goes on, as JSON holds it."""
        digest = hashlib.sha256(f"{base.features.dtype} {base.features.shape} {base.classes!r}".encode())
        digest.update(np.ascontiguousarray(base.labels).data)
        digest.update(np.ascontiguousarray(base.features).data)
        plan = {name: value for name, value in asdict(self).items() if name != "device"}
        found: dict[str, Any] = json.loads(json.dumps({**plan, "data": digest.hexdigest()[:16]}))
        return found


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores numbers of a recipe, fold by fold.

    Attributes
    ----------
    plan : how
    base : training examples of base classes
    """

    plan: TuningPlan
    base: FeatureSet

    def fold(self, number: int) -> BenchmarkData:
        """Give the low-shot problem of a fold, normalised as the plan asks."""
        plan = self.plan
        return normalize(held_out_fold(self.base, number, plan.folds, max(plan.shots), plan.seed), plan.normalize)

    def score(self, numbers: Mapping[str, Any], number: int) -> float:
        """Train with some numbers on what remains beside a fold, and give the mean accuracy in percent."""
        plan, data = self.plan, self.fold(number)
        augmenter = plan.augmenter(numbers)
        # Names that no held-out class has.
        names = [("base", int(label)) for label in data.base_train.labels]
        with limited_threads(1):  # settings are tried side by side, by several processes
            augmenter.fit(data.base_train.features, names)
        learned = Learned({plan.method: augmenter}, {plan.classifier: make_classifier(plan.classifier)})
        cells = [
            Cell(plan.method, plan.classifier, k, draw, plan.seed) for k in plan.shots for draw in range(plan.draws)
        ]
        return float(np.mean([row["top1"] for cell in cells for row in run_cell(data, learned, cell)]))

    def afresh(self) -> "Scorer":
        """Give one that parts classes otherwise, trains from other weights and draws other shots."""
        return replace(self, plan=replace(self.plan, seed=self.plan.seed + 1))


@dataclass(frozen=True)
class Setting:
    """Numbers that were tried, and the score in each fold."""

    trial: int
    numbers: Mapping[str, Any]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score over folds."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class Tuning:
    """What a study found so far.

    Attributes
    ----------
    own : scores of the recipe's own numbers in each fold; fewer than folds where they are not done yet
    settings : those that were tried in every fold, the best first
    given_up : how many were not worth trying in every fold, or did not go together
    confirmed : the best setting's scores, and those of the recipe's own numbers, where both were measured afresh
    """

    own: tuple[float, ...]
    settings: tuple[Setting, ...]
    given_up: int
    confirmed: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def gain(self, setting: Setting) -> Interval | None:
        """Give what a setting gains over the recipe's own numbers, with its interval over folds."""
        return paired_gain(setting.scores, self.own)

    @property
    def confirmed_gain(self) -> Interval | None:
        """What the best setting gains where it was measured afresh: to be the best of many is partly luck."""
        return None if self.confirmed is None else paired_gain(*self.confirmed)


def paired_gain(scores: Sequence[float], own: Sequence[float]) -> Interval | None:
    """Give the mean difference over folds, with an interval for folds that overlap; None where folds are missing.

    >>> paired_gain([52.0, 54.0], [50.0, 52.0]), paired_gain([52.0, 54.0], [50.0])
    (Interval(mean=2.0, half_width=0.0), None)
    """
    if len(scores) != len(own) or len(own) < FEWEST_FOLDS:
        return None
    return Interval(*corrected_interval(np.subtract(scores, own).tolist(), ratio=1 / (len(own) - 1)))
