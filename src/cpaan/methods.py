"""The one table of public names and methods: where classes live, and what a method's name stands for.

A method is an augmenter and a final classifier on given features. Methods with an augmenter leave the choice of the
classifier to the run, or bring the one that they were trained with; methods without one are a classifier on the real
examples alone. In addition to the names of the table, ``CENTER+DEVIATIONS`` names any cell of the grid of `Anchored`,
such as ``calibrated+transfer``. Nothing is imported before it is used: the command line answers without loading torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.augmenters.base import BaseAugmenter
    from cpaan.classifiers.base import ScoreClassifier

EstimatorT = TypeVar("EstimatorT")
OWN = "own"  # the classifier that an augmenter was trained with, its `classifier_`

# Modules of the names that `cpaan` exports.
PUBLIC = {
    "CPAAN": "cpaan.augmenters.named",
    "MAML": "cpaan.classifiers.maml",
    "Anchored": "cpaan.augmenters.anchored",
    "AttentiveWeightGenerator": "cpaan.classifiers.attentive_weights",
    "CosineClassifier": "cpaan.classifiers.cosine",
    "DeviationTransfer": "cpaan.augmenters.named",
    "DistributionCalibration": "cpaan.augmenters.distribution_calibration",
    "EmpiricalBayes": "cpaan.augmenters.named",
    "FeatureHallucination": "cpaan.augmenters.feature_hallucination",
    "FeatureImagination": "cpaan.augmenters.feature_imagination",
    "FeatureSet": "cpaan.data.feature_set",
    "InputError": "cpaan.errors",
    "LinearClassifier": "cpaan.classifiers.linear",
    "LowShotClassifier": "cpaan.low_shot.classifier",
    "MatchingNetwork": "cpaan.classifiers.matching",
    "NearestPrototype": "cpaan.classifiers.nearest_prototype",
    "PooledGaussian": "cpaan.augmenters.named",
    "PrototypeMatchingNetwork": "cpaan.classifiers.matching",
    "PrototypicalNetwork": "cpaan.classifiers.prototypical",
    "SiameseNetwork": "cpaan.classifiers.siamese",
    "Smote": "cpaan.augmenters.smote",
    "load_glyphs": "cpaan.data.toys",
    "make_spiral": "cpaan.data.toys",
}


def public(name: str) -> Any:
    """Import a public name.

    >>> public("Smote").__name__
    'Smote'
    """
    return getattr(import_module(PUBLIC[name]), name)


@dataclass(frozen=True)
class Settings:
    """What a run asks of every method."""

    recipe: str = "quick"  # for those that are trained; those without a default recipe take the quick one
    device: str = "auto"
    random_state: Any = None
    tell: Any = None  # called with the progress of a training
    numbers: Mapping[str, Any] = field(default_factory=dict)  # changed by plain name in those that have them


@dataclass(frozen=True)
class Method:
    """One row of a results table."""

    name: str  # as on the command line
    summary: str
    # Public name of its augmenter, or a function of settings that makes one; None for a method without.
    kind: "str | Callable[[Settings], BaseAugmenter] | None" = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    classifier: str | None = None  # its classifier, "own" for the one its augmenter brings, None where the run chooses

    @property
    def augmenter(self) -> "Callable[[Settings], BaseAugmenter] | None":
        """What makes the augmenter, unfitted; None for a method without."""
        kind = self.kind
        return (
            (lambda settings: _configured(public(kind), settings, self.parameters)) if isinstance(kind, str) else kind
        )


# Public names of final classifiers, or functions of settings that make one.
CLASSIFIERS: "dict[str, str | Callable[[Settings], ScoreClassifier]]" = {
    "nearest-prototype": "NearestPrototype",
    "linear": "LinearClassifier",
    "cosine": "CosineClassifier",
    "siamese": "SiameseNetwork",
    "maml": "MAML",
    "attentive-weights": "AttentiveWeightGenerator",
    "prototypical": "PrototypicalNetwork",
    "matching": "MatchingNetwork",
    "prototype-matching": "PrototypeMatchingNetwork",
}


def _plain(name: str, summary: str) -> Method:
    return Method(name, summary, classifier=name)


def _network(variant: str, summary: str) -> Method:
    return Method(variant, summary, "CPAAN", {"variant": variant})


METHODS = {
    method.name: method
    for method in (
        _plain("nearest-prototype", "nearest class mean, no augmentation"),
        _plain("linear", "multinomial logistic regression, no augmentation"),
        _plain("cosine", "trained weights compared by angle, no augmentation"),
        _plain("siamese", "a twin network that tells whether two examples are of one class"),
        _plain("maml", "a network that a few steps of gradient descent adapt to the shots"),
        _plain("attentive-weights", "cosine classifier whose novel weights come from attention over base classes"),
        _plain("prototypical", "class means in an embedding learned on base classes"),
        _plain("matching", "cosine attention to the shots, which know each other"),
        _plain("prototype-matching", "matching with class means, which know each other"),
        _network("c-gan", "conditional GAN from base to novel classes, the paper's start"),
        _network("ccyc-gan", "c-GAN with cycle consistency"),
        _network("cdeli-gan", "cCyc-GAN with trained Gaussian-mixture noise"),
        _network("ccov-gan", "cCyc-GAN that preserves covariance: the paper's method"),
        Method(
            "feature-hallucination",
            "analogies with what varies within base classes; classes are filled up to 20 examples, as published",
            "FeatureHallucination",
            {"fill_to": 20},
        ),
        Method(
            "feature-imagination",
            "five examples of each class, by a hallucinator trained through the loss of a prototypical network",
            "FeatureImagination",
            {"per_class": 5},
            OWN,
        ),
        Method(
            "feature-imagination-pmn",
            "feature imagination trained through a prototype matching network",
            "FeatureImagination",
            {"per_class": 5, "classifier": "prototype-matching"},
            OWN,
        ),
        Method(
            "distribution-calibration",
            "Gaussians from the statistics of the base classes nearest to each shot",
            "DistributionCalibration",
        ),
        Method("smote", "interpolation between the shots of a class", "Smote"),
        Method(
            "deviation-transfer",
            "deviations of base examples from their class mean, moved to the shots",
            "DeviationTransfer",
        ),
        Method("gaussian", "Gaussian with the pooled covariance of base classes", "PooledGaussian"),
        Method(
            "empirical-bayes",
            "Gaussian about the posterior mean of the class centre, given shots and base classes",
            "EmpiricalBayes",
        ),
    )
}
# Augmenters of the table, and the grid that every cell can be made from.
AUGMENTERS = (*dict.fromkeys(method.kind for method in METHODS.values() if isinstance(method.kind, str)), "Anchored")
# Parts of CENTER+DEVIATIONS; those of the cells that have a class of their own.
CENTERS = ("shots", "posterior", "calibrated")
NETWORKS = ("c-gan", "ccyc-gan", "cdeli-gan", "ccov-gan")
DEVIATIONS = ("none", "gaussian", "transfer", *NETWORKS)
CELLS = {"shots+gaussian": "gaussian", "shots+transfer": "deviation-transfer", "posterior+gaussian": "empirical-bayes"}
GRAMMAR = f"CENTER+DEVIATIONS, where CENTER is {', '.join(CENTERS)} and DEVIATIONS {', '.join(DEVIATIONS)}"


def find_method(name: str) -> Method:
    """Look up a method by name, or a cell of the grid centre × deviations.

    >>> find_method("linear").classifier
    'linear'
    >>> find_method("calibrated+transfer").summary
    'transfer deviations about the calibrated centre'
    """
    if name in METHODS:
        return METHODS[name]
    center, _, deviations = name.partition("+")
    if center not in CENTERS or deviations not in DEVIATIONS:
        cells = [f"{center}+{deviations}" for center in CENTERS for deviations in DEVIATIONS]
        close = get_close_matches(name, [*METHODS, *cells], n=1)
        hint = f"did you mean {close[0]!r}? Choose" if close else "choose"
        raise InputError(f"unknown method {name!r}; {hint} from {', '.join(METHODS)}, or {GRAMMAR}")
    summary = f"{deviations if deviations != 'none' else 'no'} deviations about the {_TITLES[center]}"
    if name in CELLS:
        same = METHODS[CELLS[name]]
        return Method(name, summary, same.kind, same.parameters)
    if deviations in NETWORKS:
        return Method(name, summary, "CPAAN", {"variant": deviations, "center": center})
    return Method(name, summary, "Anchored", {"center": center, "deviations": deviations})


_TITLES = {"shots": "mean of the shots", "posterior": "posterior mean", "calibrated": "calibrated centre"}


def augmenter_classes() -> "tuple[type[BaseAugmenter], ...]":
    """Import every class of augmenters."""
    return tuple(map(public, AUGMENTERS))


def make_augmenter(name: str, settings: Settings) -> "BaseAugmenter":
    """Make an unfitted augmenter by the name of its method, with numbers changed by name.

    >>> make_augmenter("smote", Settings(random_state=3))
    Smote(random_state=3)
    """
    make = find_method(name).augmenter
    if make is None:
        makers = ", ".join(method.name for method in METHODS.values() if method.augmenter is not None)
        raise InputError(f"{name} makes no examples; choose one of {makers}, or {GRAMMAR}")
    require_known_numbers([name], [], settings)
    return make(settings)


def require_known_numbers(methods: Sequence[str], classifiers: Sequence[str], settings: Settings) -> None:
    """Refuse numbers that none of the methods and classifiers has."""
    makers = [maker for maker in (find_method(name).augmenter for name in methods) if maker is not None]
    estimators = [*(make(settings) for make in makers), *(make_classifier(name) for name in classifiers)]
    known = {name for estimator in estimators for name in _plain_names(estimator)}
    unknown = sorted(set(settings.numbers) - known)
    if unknown:
        who = methods[0] if len(methods) == 1 else "none of the methods"
        raise InputError(
            f"{who} has {'no ' if len(methods) == 1 else ''}{', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )


def make_classifier(name: str, settings: Settings | None = None) -> "ScoreClassifier":
    """Make an unfitted final classifier by name.

    >>> make_classifier("linear")
    LinearClassifier()
    """
    if name not in CLASSIFIERS:
        raise InputError(f"unknown classifier {name!r}; choose one of {', '.join(CLASSIFIERS)}")
    kind, asked = CLASSIFIERS[name], settings or Settings()
    made: ScoreClassifier = _configured(public(kind), asked, {}) if isinstance(kind, str) else kind(asked)
    return made


def load_augmenter(folder: str | PathLike[str], *, device: str = "auto") -> "BaseAugmenter":
    """Read an augmenter of any method that was saved."""
    from cpaan.data.folders import read_config

    kind = read_config(Path(folder))["kind"]
    if kind not in AUGMENTERS:
        raise InputError(f"{folder} holds a {kind}, which makes no examples; give a model of cpaan fit")
    loaded: BaseAugmenter = public(kind).load(folder, device=device)
    return loaded


def _configured(kind: Any, settings: Settings, parameters: Mapping[str, Any]) -> Any:
    """Make an estimator with what the settings say and it has a parameter for."""
    has = kind().get_params(deep=False)
    recipe = settings.recipe if kind.__name__ == "CPAAN" or settings.recipe != "default" else "quick"
    asked = {"recipe": recipe, "device": settings.device, "tell": settings.tell, "random_state": settings.random_state}
    # A final classifier that is not trained on base classes has no recipe, and keeps its own random state.
    given = asked if "recipe" in has or hasattr(kind, "augment") else {}
    estimator = kind(**{name: value for name, value in given.items() if name in has}, **parameters)
    return set_numbers(estimator, settings.numbers, strict=False)


def set_numbers(estimator: EstimatorT, numbers: Mapping[str, Any], *, strict: bool = True) -> EstimatorT:
    """Set parameters by plain name, those of its parts too; refuse or, unless `strict`, leave out unknown names.

    >>> set_numbers(public("CPAAN")(), {"cycle_weight": 2.0, "rounds": 3, "reservoir": 0})
    CPAAN(center=Calibrated(rounds=3), recipe=DEFAULT.but(cycle_weight=2.0),
          reservoir=0)
    """
    left = dict(numbers)
    for nested in (False, True):  # parts first, then their parameters
        places = {name: place for name, place in _plain_names(estimator).items() if ("__" in place) == nested}
        changes = {places[name]: left.pop(name) for name in numbers if name in left and name in places}
        estimator.set_params(**changes)  # type: ignore[attr-defined]
    if left and strict:
        known = ", ".join(sorted(_plain_names(estimator)))
        raise InputError(f"{type(estimator).__name__} has no {', '.join(sorted(left))}; there are {known}")
    return estimator


def _plain_names(estimator: Any) -> dict[str, str]:
    """Map the last part of every parameter's name to the name, such as cycle_weight to recipe__cycle_weight."""
    found: dict[str, str] = {}
    for place in sorted(estimator.get_params(deep=True), key=lambda place: place.count("__")):
        found.setdefault(place.rpartition("__")[2], place)
    return found
