"""The one table of methods: what a name on the command line stands for.

A method is an augmenter and a final classifier on features that are given. Methods with an augmenter leave the choice
of the classifier to the run; methods without one are that classifier on the real examples alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cpaan.augmenters.cpaan import CPAAN
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.errors import InputError


class Augmenter(Protocol):
    """What makes examples for novel classes, after `fit` on base classes alone."""

    random_state: Any
    tell: Any

    def fit(self, X_base: Any, y_base: Any) -> Any:
        """Learn from base classes."""

    def augment(self, X_novel: Any, y_novel: Any) -> tuple[Any, Any]:
        """Make synthetic examples of novel classes."""

    def save(self, folder: Path) -> None:
        """Write what was learned to a folder."""


@dataclass(frozen=True)
class Method:
    """One row of a results table.

    Attributes
    ----------
    name : as on the command line
    summary : a line for people
    augmenter : makes one from the settings of a run, or None for a method without
    load : reads one that was saved
    classifier : name of its classifier, or None where the run chooses
    """

    name: str
    summary: str
    augmenter: Callable[[Mapping[str, Any]], Augmenter] | None = None
    load: Callable[[Path], Augmenter] | None = None
    classifier: str | None = None


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "nearest-prototype": NearestPrototype,
    "linear": LinearClassifier,
}


def _cpaan(variant: str) -> Callable[[Mapping[str, Any]], Augmenter]:
    def make(settings: Mapping[str, Any]) -> Augmenter:
        return CPAAN(variant=variant, **settings)

    return make


METHODS = {
    method.name: method
    for method in (
        Method("nearest-prototype", "nearest class mean, no augmentation", classifier="nearest-prototype"),
        Method("linear", "multinomial logistic regression, no augmentation", classifier="linear"),
        Method(
            "c-gan",
            "conditional GAN from base to novel classes, the paper's start",
            _cpaan("c-gan"),
            CPAAN.load,
        ),
        Method("ccyc-gan", "c-GAN with cycle consistency", _cpaan("ccyc-gan"), CPAAN.load),
        Method("cdeli-gan", "cCyc-GAN with trained Gaussian-mixture noise", _cpaan("cdeli-gan"), CPAAN.load),
        Method("ccov-gan", "cCyc-GAN that preserves covariance: the paper's method", _cpaan("ccov-gan"), CPAAN.load),
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


def make_classifier(name: str) -> Any:
    """Make an unfitted final classifier by name.

    >>> make_classifier("linear")
    LinearClassifier()
    """
    if name not in CLASSIFIERS:
        raise InputError(f"unknown classifier {name!r}; choose one of {', '.join(CLASSIFIERS)}")
    return CLASSIFIERS[name]()
