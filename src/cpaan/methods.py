"""The one table of methods: what a name on the command line stands for.

A method is an augmenter and a final classifier on features that are given. Methods with an augmenter leave the choice
of the classifier to the run, or bring the one that they were trained with; methods without one are a classifier on the
real examples alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.cpaan import CPAAN
from cpaan.classifiers.base import ScoreClassifier
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.data.model_folder import read_config
from cpaan.errors import InputError

OWN = "own"  # the classifier that an augmenter was trained with, its `classifier_`


@dataclass(frozen=True)
class Settings:
    """What a run asks of every method.

    Attributes
    ----------
    recipe : ``"quick"`` or ``"paper"``, for those that are trained
    device : where those that are trained compute
    random_state : decides every random draw
    tell : what training tells its progress to
    numbers : of the GANs' recipe, changed by name
    """

    recipe: str = "quick"
    device: str = "auto"
    random_state: Any = None
    tell: Any = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def of_training(self) -> dict[str, Any]:
        """Give what an estimator that is trained takes."""
        return {
            "recipe": self.recipe,
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
    return CPAAN(variant=variant, **settings.of_training(), **settings.numbers)


def _trained(kind: Callable[..., Any], settings: Settings) -> Any:
    return kind(**settings.of_training())


def _seeded(kind: Callable[..., Any], settings: Settings) -> Any:
    return kind(random_state=settings.random_state)


def _plain(kind: Callable[..., Any], settings: Settings) -> Any:
    return kind()


CLASSIFIERS: dict[str, Callable[[Settings], ScoreClassifier]] = {
    "nearest-prototype": partial(_plain, NearestPrototype),
    "linear": partial(_plain, LinearClassifier),
}

AUGMENTERS: tuple[type[BaseAugmenter], ...] = (CPAAN,)

METHODS = {
    method.name: method
    for method in (
        Method("nearest-prototype", "nearest class mean, no augmentation", classifier="nearest-prototype"),
        Method("linear", "multinomial logistic regression, no augmentation", classifier="linear"),
        Method("c-gan", "conditional GAN from base to novel classes, the paper's start", partial(_cpaan, "c-gan")),
        Method("ccyc-gan", "c-GAN with cycle consistency", partial(_cpaan, "ccyc-gan")),
        Method("cdeli-gan", "cCyc-GAN with trained Gaussian-mixture noise", partial(_cpaan, "cdeli-gan")),
        Method("ccov-gan", "cCyc-GAN that preserves covariance: the paper's method", partial(_cpaan, "ccov-gan")),
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
