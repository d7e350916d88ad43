"""The whole job as one scikit-learn classifier: learn base classes once, add new ones as they come, answer with all.

What is kept of base classes, so that a classifier can be trained again without the base data.

One score for each class, from any scikit-learn classifier.
"""

import warnings
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from cpaan.augmenters.named import CPAAN
from cpaan.centers import Calibrated
from cpaan.classifiers.base import FloatArray, ScoreClassifier
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype, weighted_class_means
from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import container_of, tensor_to_numpy
from cpaan.data.feature_set import FeatureSet, show_names
from cpaan.deviations.translated import FEWEST_TO_META_TRAIN
from cpaan.errors import InputError

IndexArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassMemory:
    """Means of classes, and some of their examples in half precision.

    Attributes
    ----------
    classes : (C,) labels, sorted
    counts : (C,) how many examples each class had
    means : (C, D) in double precision
    deviations : (m, D) of the examples that are kept from the mean of their class, in half precision and in units of
        `scales`; class after class
    kept : (C,) how many of them each class has: the same for all or all that there were, or none of any class
    scales : (C,) largest entry of the deviations of each class

    Examples
    --------
    >>> features, targets = np.array([[0.0], [1.0], [5.0], [8.0]]), np.array([0, 0, 0, 1])
    >>> memory = ClassMemory.of(features, targets, np.array(["low", "high"]), keep=0)
    >>> memory.training_set()
    (array([[2.],
           [8.]]), array(['low', 'high'], dtype='<U4'), array([3., 1.]))
    """

    classes: npt.NDArray[Any]
    counts: IndexArray
    means: npt.NDArray[np.float64]
    deviations: npt.NDArray[np.float16]
    kept: IndexArray
    scales: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, features: FloatArray, targets: npt.NDArray[Any], classes: npt.NDArray[Any], keep: int | None
    ) -> "ClassMemory":
        """Take the means of classes, and up to `keep` examples of each or, for None, all.

        Examples are taken evenly spread over the order in which they were given, so that nothing is drawn at random.
        """
        counts = np.bincount(targets, minlength=len(classes)).astype(np.int64)
        means = weighted_class_means(features, targets, np.ones(len(features)), len(classes))
        kept = counts if keep is None else np.minimum(counts, keep)
        deviations = np.empty((int(kept.sum()), features.shape[1]), dtype=np.float16)
        scales = np.ones(len(classes))
        of_class = np.split(np.argsort(targets, kind="stable"), counts.cumsum()[:-1])
        parts = np.split(deviations, kept.cumsum()[:-1])
        for index, (rows, part) in enumerate(zip(of_class, parts, strict=True)):
            if len(part):
                chosen = rows[np.linspace(0, len(rows) - 1, len(part)).round().astype(np.int64)]
                # Deviations in their own unit, because half precision has eleven bits and a narrow range.
                differences = features[chosen] - means[index]
                scales[index] = np.abs(differences).max() or 1.0
                part[:] = differences / scales[index]
        return cls(classes, counts, means, deviations, kept, scales)

    def training_set(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Give examples, labels and weights to train a classifier with.

        The examples of a class are moved together so that their mean is that of all the examples that it had, and
        weigh together as much as these did. Where none were kept, the mean stands for them.
        """
        if not len(self.deviations):
            return self.means, self.classes, self.counts.astype(np.float64)
        owners = np.repeat(np.arange(len(self.classes)), self.kept)
        deviations = self.deviations.astype(np.float64)
        starts = np.concatenate([[0], self.kept.cumsum()[:-1]])
        offsets = np.add.reduceat(deviations, starts, axis=0) / self.kept[:, np.newaxis]
        deviations -= offsets[owners]
        deviations *= self.scales[owners, np.newaxis]
        deviations += self.means[owners]
        return deviations, self.classes[owners], (self.counts / self.kept)[owners]


_SOURCES = ("scores", "predict_proba", "decision_function")


def require_scores(classifier: Any) -> None:
    """Refuse a classifier that does nothing but choose."""
    if not any(hasattr(classifier, source) for source in _SOURCES):
        raise InputError(
            f"{type(classifier).__name__} gives no probabilities or scores; choose a classifier with predict_proba or "
            "decision_function"
        )


def class_scores(classifier: Any, X: FloatArray) -> FloatArray:
    """Score every class, n × classes: by the classifier's own scores, the logarithm of its probabilities or decisions.

    >>> from sklearn.linear_model import LogisticRegression
    >>> classifier = LogisticRegression().fit([[-1.0], [1.0]], [0, 1])
    >>> class_scores(classifier, np.zeros((1, 1))).round(2)
    array([[-0.69, -0.69]])
    """
    if hasattr(classifier, "scores"):
        scores: FloatArray = classifier.scores(X)
    elif hasattr(classifier, "predict_proba"):
        with np.errstate(divide="ignore"):  # a probability of zero is a score of minus infinity
            scores = np.log(classifier.predict_proba(X))
    else:
        scores = classifier.decision_function(X)
        if scores.ndim == 1:  # of two classes, how far the second is ahead
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
    return scores


KEPT = 100  # base examples of each class, for classifiers that need examples
FEWEST_EXAMPLES = 2  # of a base class on average, below which nobody can tell how classes vary
_KINDS = {"U": "text", "O": "text", "S": "text", "b": "booleans", "i": "whole numbers", "u": "whole numbers"}


class LowShotClassifier(ScoreClassifier):
    """Classify base classes, and new classes that are added later with a handful of examples.

    ``fit`` trains the augmenter on base classes and keeps what the classifier needs of them. ``add_classes`` makes
    synthetic examples of new classes and trains the classifier again, on base and new classes; the base data are not
    needed for it. It can be called again and again.

    Parameters
    ----------
    augmenter : augmenter, optional
        Makes examples of new classes; by default ``CPAAN()``, the paper's final network with its default recipe, and
        ``CPAAN(center=Calibrated(noise=0))`` for classifiers other than `NearestPrototype` and `LinearClassifier`, to
        which noise would do harm.
    classifier : scikit-learn classifier, optional
        Answers in the end. By default `NearestPrototype`: of base classes it needs the means alone, it takes no
        training, and it does not overlook small classes, as a linear classifier does where little is generated. (An
        augmenter that was trained together with a classifier brings that one.) One with ``meta_fit`` is meta-trained
        on base classes.
    keep : int, "all" or "auto"
        Base examples of each class that are kept for the classifier, in half precision. 0 keeps class means alone;
        "auto" does so for `NearestPrototype`, and keeps 100 for others. Augmenters have settings of their own for what
        they keep, such as the ``reservoir`` of `CPAAN`.

    Attributes
    ----------
    classes_ : ndarray, labels of all classes, base and added, sorted
    base_classes_ : ndarray, labels of the base classes
    novel_classes_ : tuple, labels of the classes that were added
    augmenter_ : the fitted augmenter; None where base classes are too few for it to learn from
    classifier_ : the fitted classifier, over all classes
    base_ : ClassMemory, what is kept of base classes
    shots_ : FeatureSet or None, all examples that were given to `add_classes`
    n_features_in_ : int

    Notes
    -----
    Labels are numbers or text, as scikit-learn has them. The classifier is trained on what is kept of base classes
    from the start, so that base classes are answered in the same way before and after classes are added, but for what
    the new classes take from them.

    Examples
    --------
    >>> from cpaan import EmpiricalBayes
    >>> rng = np.random.default_rng(0)
    >>> centers = 5 * rng.normal(size=(8, 4))
    >>> X_base, y_base = np.repeat(centers[:6], 20, axis=0), np.repeat(list("abcdef"), 20)
    >>> X_base = X_base + rng.normal(size=X_base.shape)
    >>> model = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0)).fit(X_base, y_base)
    >>> model.add_classes(centers[6:7] + 0.3, ["g"]).add_classes(centers[7:] + 0.3, ["h"]).predict(centers)
    array(['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'], dtype='<U1')
    """

    base_classes_: npt.NDArray[Any]
    base_: ClassMemory
    shots_: FeatureSet | None
    augmenter_: Any
    classifier_: Any

    def __init__(self, *, augmenter: Any = None, classifier: Any = None, keep: int | str = "auto") -> None:
        self.augmenter = augmenter
        self.classifier = classifier
        self.keep = keep

    def fit(self, X: Any, y: Any) -> "LowShotClassifier":
        """Learn base classes; classes that were added before are forgotten.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples of base classes.
        y : array-like of shape (n,)
            Their labels, numbers or text.

        Returns
        -------
        LowShotClassifier
            Itself, ready to classify base classes.

        Warns
        -----
        UserWarning
            Where there are too few base classes or examples for the augmenter. Base classes can then be told apart,
            and `add_classes` refuses.
        """
        self._check_settings()
        features, labels = self._read(X, y, reset=True)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        self.base_classes_ = self.classes_
        self.augmenter_, self.obstacle_ = self._fitted_augmenter(features, labels)
        classifier = self._new_classifier(features, labels)
        self.base_ = ClassMemory.of(features, targets, self.base_classes_, self._number_to_keep(classifier))
        self._train(classifier, None)
        return self

    def add_classes(self, X_novel: Any, y_novel: Any) -> "LowShotClassifier":
        """Add classes, or further examples of classes that were added before.

        Examples add up: further ones of a class go beside those that were given before. Synthetic examples are then
        made anew of all that were ever added, so classes added one by one give the same classifier as classes added
        together, where the augmenter's `random_state` is a whole number. Where this raises, nothing has changed.

        Parameters
        ----------
        X_novel : array-like of shape (n, D)
            The few examples.
        y_novel : array-like of shape (n,)
            Their labels, none of them a base class.

        Returns
        -------
        LowShotClassifier
            Itself, ready to classify base and added classes.
        """
        check_is_fitted(self)
        features, labels = self._read(X_novel, y_novel, reset=False)
        self._require_new(labels)
        if self.augmenter_ is None:
            raise InputError(f"no class can be added, since the augmenter could not be fitted: {self.obstacle_}")
        shots = FeatureSet(features, labels)
        if self.shots_ is not None:
            shots = self.shots_.concatenate(shots)
        self._train(deepcopy(self.classifier_), _in_order_of_classes(shots))
        return self

    @property
    def novel_classes_(self) -> tuple[Hashable, ...]:
        """Labels of the classes that were added."""
        check_is_fitted(self)
        return () if self.shots_ is None else self.shots_.classes

    def save(self, folder: str | PathLike[str]) -> None:
        """Write all that was learned to a folder, as safetensors and JSON.

        The folder itself holds the augmenter, as its own ``save`` writes it; its folder `classifier` holds the rest. A
        classifier that is not of this library cannot be saved.

        Parameters
        ----------
        folder : str or path
            Made where it is missing.
        """
        from cpaan.low_shot.storage import save

        check_is_fitted(self)
        save(self, folder)

    @classmethod
    def load(cls, folder: str | PathLike[str], *, device: str = "auto") -> "LowShotClassifier":
        """Read what `save` wrote; it answers, and more classes can be added.

        Parameters
        ----------
        folder : str or path
            What `save` was given.
        device : {"auto", "cpu", "cuda", "mps"}
            Where it shall compute, for what uses torch.
        """
        from cpaan.low_shot.storage import load

        return load(cls, folder, device)

    def _read(self, X: Any, y: Any, *, reset: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Check examples and labels; features keep their precision, so that large banks are not copied."""
        X, y = (tensor_to_numpy(each) if container_of(each) == "torch" else each for each in (X, y))
        try:
            features, labels = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32, np.float16])
            check_classification_targets(labels)
        except ValueError as error:
            raise InputError(str(error)) from error
        return features, labels

    def _require_new(self, labels: npt.NDArray[Any]) -> None:
        base = self.base_classes_
        kinds = [_KINDS.get(each.dtype.kind, "numbers") for each in (base, labels)]
        if kinds[0] != kinds[1]:
            raise InputError(f"labels of base classes are {kinds[0]} and the new ones {kinds[1]}; give the same kind")
        known = set(base.tolist())
        common = [name for name in dict.fromkeys(labels.tolist()) if name in known]
        if common:
            raise InputError(
                f"base classes already: {show_names(common)}; leave them out, or give new classes names of their own; "
                "to learn from further examples of base classes, fit again"
            )

    def _fitted_augmenter(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[Any, str | None]:
        augmenter = self._default_augmenter() if self.augmenter is None else clone(self.augmenter)
        try:
            return augmenter.fit(features, labels), None
        except InputError as error:
            n_classes = len(self.classes_)
            if n_classes >= FEWEST_TO_META_TRAIN and len(labels) >= FEWEST_EXAMPLES * n_classes:
                raise  # the settings are to blame
            warnings.warn(f"base classes can be told apart, but none can be added: {error}", stacklevel=3)
            return None, str(error)

    def _default_augmenter(self) -> CPAAN:
        made_for_noise = self.classifier is None or isinstance(self.classifier, (NearestPrototype, LinearClassifier))
        return CPAAN() if made_for_noise else CPAAN(center=Calibrated(noise=0))

    def _new_classifier(self, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
        if self.classifier is None:
            own = getattr(self.augmenter_, "classifier_", None)
            return NearestPrototype() if own is None else deepcopy(own)
        classifier = clone(self.classifier)
        if hasattr(classifier, "meta_fit"):
            classifier.meta_fit(features, labels)
        return classifier

    def _check_settings(self) -> None:
        """Refuse wrong settings before the augmenter is trained, which may take long."""
        if self.classifier is not None:
            require_scores(self.classifier)
        if isinstance(self.keep, str) and self.keep not in ("all", "auto"):
            raise InputError(f'keep is {self.keep!r}; give a whole number of at least 0, "all" or "auto"')
        if not isinstance(self.keep, str):
            as_whole_number(self.keep, "keep", minimum=0)

    def _number_to_keep(self, classifier: Any) -> int | None:
        if isinstance(self.keep, str):
            by_default = 0 if isinstance(classifier, NearestPrototype) else KEPT
            return None if self.keep == "all" else by_default
        return int(self.keep)

    def _train(self, classifier: Any, shots: FeatureSet | None) -> None:
        """Train on base classes and on shots with the synthetic examples of them, and take both over."""
        parts: list[tuple[Any, Any, Any]] = [self.base_.training_set()]
        if shots is not None:
            # Half precision is wide enough to keep shots, but not for every example that is made of them.
            features = shots.features.astype(np.promote_types(shots.features.dtype, np.float32), copy=False)
            made, made_labels = self.augmenter_.augment(features, shots.names)
            parts += [
                (X, y, np.ones(len(X))) for X, y in ((shots.features, shots.names), (made, made_labels)) if len(X)
            ]
        X, y, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
        weighted = {"sample_weight": weights} if has_fit_parameter(classifier, "sample_weight") else {}
        classifier.fit(X, y, **weighted)
        self.classifier_, self.shots_, self.classes_ = classifier, shots, classifier.classes_

    def _score(self, X: FloatArray) -> FloatArray:
        return class_scores(self.classifier_, X)


def _in_order_of_classes(shots: FeatureSet) -> FeatureSet:
    """Sort classes and their examples, so that what is made of them does not depend on which came first."""
    named = FeatureSet(shots.features, shots.names)
    return named.take(np.argsort(named.labels, kind="stable"))
