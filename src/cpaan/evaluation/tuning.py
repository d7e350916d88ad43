"""Numbers of a recipe compared on base classes held out as if novel.

An augmenter is trained on the classes that remain; its score is the top-1 accuracy of a final classifier, averaged over
LSL and GLSL, numbers of shots and draws. Novel classes and test examples have no part in it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpaan.augmenters.center_search import corrected_interval
from cpaan.augmenters.cpaan import CPAAN
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.evaluation.benchmark import normalize
from cpaan.evaluation.cell import Cell, run_cell
from cpaan.evaluation.held_out_folds import held_out_fold
from cpaan.evaluation.intervals import Interval
from cpaan.evaluation.learned import Learned
from cpaan.evaluation.normalization import NORMALIZATIONS
from cpaan.evaluation.tuning_space import Dimension, make_space
from cpaan.methods import Settings, make_augmenter, make_classifier
from cpaan.threads import limited_threads
from cpaan.training.recipe import Recipe, make_recipe
from cpaan.training.variant import find_variant

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
        if self.classifier == "nearest-prototype" and self.own.anchor == "center":
            raise InputError(
                "about an estimated centre, real and synthetic examples have the same mean whatever the networks do, "
                "so that all numbers are alike to nearest-prototype; choose linear or cosine, or --set anchor=shots"
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
