"""The one table of methods: what a name on the command line stands for.

A method is an augmenter and a final classifier on features that are given. Methods with an augmenter leave the choice
of the classifier to the run, or bring the one that they were trained with; methods without one are a classifier on the
real examples alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from sklearn.base import BaseEstimator

from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.cpaan import CPAAN
from cpaan.augmenters.deviation_transfer import DeviationTransfer
from cpaan.augmenters.distribution_calibration import DistributionCalibration
from cpaan.augmenters.empirical_bayes import EmpiricalBayes
from cpaan.augmenters.feature_hallucination import FeatureHallucination
from cpaan.augmenters.feature_imagination import FeatureImagination
from cpaan.augmenters.pooled_gaussian import PooledGaussian
from cpaan.augmenters.smote import Smote
from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator
from cpaan.classifiers.base import ScoreClassifier
from cpaan.classifiers.cosine import CosineClassifier
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.maml import MAML
from cpaan.classifiers.matching import MatchingNetwork, PrototypeMatchingNetwork
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.classifiers.prototypical import PrototypicalNetwork
from cpaan.classifiers.siamese import SiameseNetwork
from cpaan.data.folders import read_config
from cpaan.errors import InputError

EstimatorT = TypeVar("EstimatorT", bound=BaseEstimator)
OWN = "own"  # the classifier that an augmenter was trained with, its `classifier_`


@dataclass(frozen=True)
class Settings:
    """What a run asks of every method.

    Attributes
    ----------
    recipe : ``"default"``, ``"quick"`` or ``"paper"``, for those that are trained; what has no recipe of
        its own named default takes the quick one
    device : where those that are trained compute
    random_state : decides every random draw
    tell : what training tells its progress to
    numbers : constructor arguments, changed by name in those that have them
    """

    recipe: str = "quick"
    device: str = "auto"
    random_state: Any = None
    tell: Any = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def of_training(self) -> dict[str, Any]:
        """Give what an estimator that is trained takes."""
        return {
            "recipe": "quick" if self.recipe == "default" else self.recipe,
            "device": self.device,
            "random_state": self.random_state,
            "tell": self.tell,
        }


@dataclass(frozen=True)
class Method:
    """One row of a results table.

    Attributes
    ----------
    name : as on the command line
    summary : a line for people
    augmenter : makes one, or None for a method without
    classifier : name of its classifier, ``"own"`` for the one that its augmenter brings, None where the run chooses
    """

    name: str
    summary: str
    augmenter: Callable[[Settings], BaseAugmenter] | None = None
    classifier: str | None = None


def _cpaan(variant: str, settings: Settings) -> BaseAugmenter:
    training = {**settings.of_training(), "recipe": settings.recipe}
    return _changed(CPAAN(variant=variant, **training), settings)


def _trained(kind: Callable[..., Any], settings: Settings) -> Any:
    return _changed(kind(**settings.of_training()), settings)


def _seeded(kind: Callable[..., Any], settings: Settings) -> Any:
    return _changed(kind(random_state=settings.random_state), settings)


def _plain(kind: Callable[..., Any], settings: Settings) -> Any:
    return _changed(kind(), settings)


def _changed(estimator: EstimatorT, settings: Settings) -> EstimatorT:
    known = estimator.get_params(deep=False)  # type: ignore[no-untyped-call]
    estimator.set_params(**{name: value for name, value in settings.numbers.items() if name in known})  # type: ignore[no-untyped-call]
    return estimator


CLASSIFIERS: dict[str, Callable[[Settings], ScoreClassifier]] = {
    "nearest-prototype": partial(_plain, NearestPrototype),
    "linear": partial(_plain, LinearClassifier),
    "cosine": partial(_plain, CosineClassifier),
    "siamese": partial(_trained, SiameseNetwork),
    "maml": partial(_trained, MAML),
    "attentive-weights": partial(_trained, AttentiveWeightGenerator),
    "prototypical": partial(_trained, PrototypicalNetwork),
    "matching": partial(_trained, MatchingNetwork),
    "prototype-matching": partial(_trained, PrototypeMatchingNetwork),
}

AUGMENTERS: tuple[type[BaseAugmenter], ...] = (
    CPAAN,
    DeviationTransfer,
    DistributionCalibration,
    EmpiricalBayes,
    FeatureHallucination,
    FeatureImagination,
    PooledGaussian,
    Smote,
)

METHODS = {
    method.name: method
    for method in (
        Method("nearest-prototype", "nearest class mean, no augmentation", classifier="nearest-prototype"),
        Method("linear", "multinomial logistic regression, no augmentation", classifier="linear"),
        Method("cosine", "trained weights compared by angle, no augmentation", classifier="cosine"),
        Method("siamese", "a twin network that tells whether two examples are of one class", classifier="siamese"),
        Method("maml", "a network that a few steps of gradient descent adapt to the shots", classifier="maml"),
        Method(
            "attentive-weights",
            "cosine classifier whose novel weights come from attention over base classes",
            classifier="attentive-weights",
        ),
        Method("prototypical", "class means in an embedding learned on base classes", classifier="prototypical"),
        Method("matching", "cosine attention to the shots, which know each other", classifier="matching"),
        Method(
            "prototype-matching",
            "matching with class means, which know each other",
            classifier="prototype-matching",
        ),
        Method("c-gan", "conditional GAN from base to novel classes, the paper's start", partial(_cpaan, "c-gan")),
        Method("ccyc-gan", "c-GAN with cycle consistency", partial(_cpaan, "ccyc-gan")),
        Method("cdeli-gan", "cCyc-GAN with trained Gaussian-mixture noise", partial(_cpaan, "cdeli-gan")),
        Method("ccov-gan", "cCyc-GAN that preserves covariance: the paper's method", partial(_cpaan, "ccov-gan")),
        Method(
            "feature-hallucination",
            "analogies with what varies within base classes; classes are filled up to 20 examples, as published",
            partial(_trained, partial(FeatureHallucination, fill_to=20)),
        ),
        Method(
            "feature-imagination",
            "five examples of each class, by a hallucinator trained through the loss of a prototypical network",
            partial(_trained, partial(FeatureImagination, per_class=5)),
            classifier=OWN,
        ),
        Method(
            "feature-imagination-pmn",
            "feature imagination trained through a prototype matching network",
            partial(_trained, partial(FeatureImagination, classifier="prototype-matching", per_class=5)),
            classifier=OWN,
        ),
        Method(
            "distribution-calibration",
            "Gaussians from the statistics of the base classes nearest to each shot",
            partial(_seeded, DistributionCalibration),
        ),
        Method("smote", "interpolation between the shots of a class", partial(_seeded, Smote)),
        Method(
            "deviation-transfer",
            "deviations of base examples from their class mean, moved to the shots",
            partial(_seeded, DeviationTransfer),
        ),
        Method("gaussian", "Gaussian with the pooled covariance of base classes", partial(_seeded, PooledGaussian)),
        Method(
            "empirical-bayes",
            "Gaussian about the posterior mean of the class centre, given shots and base classes",
            partial(_seeded, EmpiricalBayes),
        ),
    )
}


def find_method(name: str) -> Method:
    """Look a method up by name.

    >>> find_method("linear").classifier
    'linear'
    """
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]


def make_augmenter(name: str, settings: Settings) -> BaseAugmenter:
    """Make an unfitted augmenter by the name of its method, with numbers of its own changed by name.

    >>> make_augmenter("smote", Settings(random_state=3))
    Smote(random_state=3)
    """
    make = find_method(name).augmenter
    if make is None:
        makers = ", ".join(method.name for method in METHODS.values() if method.augmenter is not None)
        raise InputError(f"{name} makes no examples; choose one of {makers}")
    require_known_numbers([name], [], settings)
    return make(settings)


def require_known_numbers(methods: Sequence[str], classifiers: Sequence[str], settings: Settings) -> None:
    """Refuse numbers that none of the methods and classifiers has."""
    makers = [maker for maker in (find_method(name).augmenter for name in methods) if maker is not None]
    estimators = [*(make(settings) for make in makers), *(make_classifier(name) for name in classifiers)]
    known = {name for estimator in estimators for name in estimator.get_params(deep=False)}
    unknown = sorted(set(settings.numbers) - known)
    if unknown:
        who = methods[0] if len(methods) == 1 else "none of the methods"
        raise InputError(
            f"{who} has {'no ' if len(methods) == 1 else ''}{', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )


def make_classifier(name: str, settings: Settings | None = None) -> ScoreClassifier:
    """Make an unfitted final classifier by name.

    >>> make_classifier("linear")
    LinearClassifier()
    """
    if name not in CLASSIFIERS:
        raise InputError(f"unknown classifier {name!r}; choose one of {', '.join(CLASSIFIERS)}")
    return CLASSIFIERS[name](settings or Settings())


def load_augmenter(folder: str | PathLike[str], *, device: str = "auto") -> BaseAugmenter:
    """Read an augmenter of any method that was saved."""
    kind = read_config(Path(folder))["kind"]
    for augmenter in AUGMENTERS:
        if augmenter.__name__ == kind:
            return augmenter.load(folder, device=device)
    raise InputError(f"{folder} holds a {kind}, which makes no examples; give a model of cpaan fit")
