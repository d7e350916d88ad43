"""Train the methods of a run on base classes, once: augmenters and meta-trained classifiers."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpaan.augmenters.base import BaseAugmenter
from cpaan.classifiers.base import ScoreClassifier
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.estimator import SavedEstimator
from cpaan.methods import OWN, Settings, find_method, make_classifier
from cpaan.threads import limited_threads
from cpaan.training.progress import Bars

TRAINING_THREADS = 2  # fixed: training gives the same bits on any machine
EstimatorT = TypeVar("EstimatorT", bound=SavedEstimator)


@dataclass(frozen=True)
class FittedMethods:
    """Augmenters by method and classifiers by name, ready for the shots of a trial."""

    augmenters: Mapping[str, BaseAugmenter | None]
    classifiers: Mapping[str, ScoreClassifier]

    def classifier(self, method: str, name: str) -> Any:
        """Copy a classifier, so that fitting it does not change the original."""
        if name == OWN:
            return deepcopy(self.augmenters[method].classifier_)  # type: ignore[union-attr]
        return deepcopy(self.classifiers[name])


def fit_methods(
    wanted: Mapping[str, str], base: FeatureSet, settings: Settings, folder: Path, bars: Bars | None
) -> FittedMethods:
    """Train methods, given with the name of their classifier, or load what an earlier run saved in the folder."""

    def told(name: str) -> Settings:
        return replace(settings, tell=None if bars is None else bars(f"training {name}"))

    def augmenter(name: str) -> BaseAugmenter | None:
        make = find_method(name).augmenter
        if make is None:
            return None
        return _kept(folder / name, settings.device, make(told(name)), lambda it: fit_augmenter(it, base))

    def classifier(name: str) -> ScoreClassifier:
        made = make_classifier(name, told(name))
        if not isinstance(made, MetaClassifier):
            return made
        return _kept(folder / name, settings.device, made, lambda it: it.meta_fit(base.features, base.labels))

    return FittedMethods(
        {name: augmenter(name) for name in wanted},
        {name: classifier(name) for name in dict.fromkeys(wanted.values()) if name != OWN},
    )


def fit_augmenter(augmenter: BaseAugmenter, base: FeatureSet) -> None:
    """Fit an augmenter to numbered base classes, under names that no novel class has."""
    augmenter.fit(base.features, [("base", int(label)) for label in base.labels])


def augment(
    augmenter: BaseAugmenter, shots: FeatureSet, seed: int, per_class: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Make examples of the classes of some shots, with their labels."""
    augmenter.random_state = seed
    names = [("novel", int(label)) for label in shots.labels]
    made, made_names = augmenter.augment(shots.features, names, per_class=per_class)
    return np.asarray(made), np.array([name[1] for name in made_names], dtype=np.int64)


def _kept(folder: Path, device: str, estimator: EstimatorT, train: Callable[[EstimatorT], Any]) -> EstimatorT:
    """Train and save an estimator, or load it if it was saved before."""
    if (folder / "config.json").exists():
        return type(estimator).load(folder, device=device)
    with limited_threads(TRAINING_THREADS):
        train(estimator)
    estimator.tell = None  # the callback stays here; the estimator may go to other processes
    estimator.save(folder)
    return estimator
