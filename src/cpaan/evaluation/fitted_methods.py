"""What the methods of a run learn from base classes, once: augmenters and meta-trained classifiers."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cpaan.augmenters.base import BaseAugmenter
from cpaan.classifiers.base import ScoreClassifier
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.estimator import SavedEstimator
from cpaan.methods import OWN, Settings, find_method, make_classifier
from cpaan.threads import limited_threads
from cpaan.training.progress import Bars

TRAINING_THREADS = 2  # fixed, so that training gives the same bits whatever machine does the cells
EstimatorT = TypeVar("EstimatorT", bound=SavedEstimator)


@dataclass(frozen=True)
class Learned:
    """Augmenters by the name of their method, and classifiers by name, ready for the examples of a trial."""

    augmenters: Mapping[str, BaseAugmenter | None]
    classifiers: Mapping[str, ScoreClassifier]

    def classifier(self, method: str, name: str) -> Any:
        """Give a classifier that can be fitted without changing what was learned."""
        if name == OWN:
            return deepcopy(self.augmenters[method].classifier_)  # type: ignore[union-attr]
        return deepcopy(self.classifiers[name])


def learn(wanted: Mapping[str, str], base: FeatureSet, settings: Settings, folder: Path, bars: Bars | None) -> Learned:
    """Learn what methods need; a run that goes on takes it from its folder.

    Parameters
    ----------
    wanted : names of methods, with the name of the classifier of each
    base : examples of base classes
    settings : what the run asks of every method
    folder : where to keep what was learned
    bars : shows the progress
    """
    made = _Learner(base, settings, folder, bars)
    return Learned(
        {name: made.augmenter(name) for name in wanted},
        {name: made.classifier(name) for name in dict.fromkeys(wanted.values()) if name != OWN},
    )


@dataclass(frozen=True)
class _Learner:
    base: FeatureSet
    settings: Settings
    folder: Path
    bars: Bars | None

    def augmenter(self, name: str) -> BaseAugmenter | None:
        make = find_method(name).augmenter
        if make is None:
            return None
        # Names that no novel class can have.
        labels = [("base", int(label)) for label in self.base.labels]
        return self._kept(name, make(self._settings(name)), lambda it: it.fit(self.base.features, labels))

    def classifier(self, name: str) -> ScoreClassifier:
        classifier = make_classifier(name, self._settings(name))
        if not isinstance(classifier, MetaClassifier):
            return classifier
        return self._kept(name, classifier, lambda it: it.meta_fit(self.base.features, self.base.labels))

    def _settings(self, name: str) -> Settings:
        return replace(self.settings, tell=None if self.bars is None else self.bars(f"training {name}"))

    def _kept(self, name: str, estimator: EstimatorT, train: Callable[[EstimatorT], Any]) -> EstimatorT:
        """Train and save, or load what was saved before."""
        folder = self.folder / name
        if (folder / "config.json").exists():
            return type(estimator).load(folder, device=self.settings.device)
        with limited_threads(TRAINING_THREADS):
            train(estimator)
        estimator.tell = None  # it stays here, and the estimator may go to other processes
        estimator.save(folder)
        return estimator
