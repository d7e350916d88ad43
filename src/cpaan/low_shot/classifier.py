"""Low-shot learning as one scikit-learn classifier: fit base classes once, add new classes at any time."""

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
from cpaan.classifiers.base import FloatArray, ScoreClassifier, class_scores, require_scores
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype, weighted_class_means
from cpaan.data.arguments import as_whole_number
from cpaan.data.containers import container_of, tensor_to_numpy
from cpaan.data.feature_set import FeatureSet, show_names
from cpaan.deviations.translated import FEWEST_TO_META_TRAIN
from cpaan.errors import InputError

Labels: TypeAlias = npt.NDArray[Any]
IndexArray: TypeAlias = npt.NDArray[np.int64]

KEPT = 100  # base examples per class, for classifiers that need examples
FEWEST_EXAMPLES = 2  # per base class on average; with fewer, no augmenter can learn how classes vary
_KINDS = {"U": "text", "O": "text", "S": "text", "b": "booleans", "i": "whole numbers", "u": "whole numbers"}


class LowShotClassifier(ScoreClassifier):
    """Classify base classes, and new classes that are added later with a handful of examples each.

    ``fit`` trains the augmenter on base classes and keeps what the classifier needs of them. ``add_classes`` generates
    examples of new classes and retrains the classifier on base and new classes, without the base data, as often as
    needed.

    Parameters
    ----------
    augmenter : augmenter, optional
        Generates examples of new classes. By default ``CPAAN()``, the paper's final network with its default recipe;
        ``CPAAN(center=Calibrated(noise=0))`` for classifiers other than `NearestPrototype` and
        `LinearClassifier`, which noise would harm.
    classifier : scikit-learn classifier, optional
        Final classifier. By default the one that the augmenter was trained with, if any, else `NearestPrototype`: it
        needs only the means of base classes and no training, and does not overlook small classes, as a linear
        classifier does if few examples are generated. A classifier with ``meta_fit`` is meta-trained on base classes.
    keep : int, "all" or "auto"
        Base examples per class to keep for the classifier, in half precision. 0 keeps class means only; "auto" does so
        for `NearestPrototype`, and keeps 100 for others. What augmenters keep is up to their own parameters, such as
        the ``reservoir`` of `CPAAN`.

    Attributes
    ----------
    classes_ : ndarray, labels of base and added classes, sorted
    base_classes_ : ndarray, labels of the base classes
    novel_classes_ : tuple, labels of the added classes
    augmenter_ : the fitted augmenter; None if there were too few base classes to fit it
    classifier_ : the fitted classifier, over all classes
    base_ : ClassMemory, what is kept of base classes
    shots_ : FeatureSet or None, all examples given to `add_classes`
    n_features_in_ : int

    Notes
    -----
    Labels are numbers or text, as in scikit-learn. The classifier is trained on what is kept of base classes from the
    start, so predictions for base classes change only by what added classes take from them.

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

    base_classes_: Labels
    base_: "ClassMemory"
    shots_: FeatureSet | None
    augmenter_: Any
    classifier_: Any

    def __init__(self, *, augmenter: Any = None, classifier: Any = None, keep: int | str = "auto") -> None:
        self.augmenter = augmenter
        self.classifier = classifier
        self.keep = keep

    def fit(self, X: Any, y: Any) -> "LowShotClassifier":
        """Learn base classes, and forget added ones.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples of base classes.
        y : array-like of shape (n,)
            Their labels, numbers or text.

        Warns
        -----
        UserWarning
            If there are too few base classes or examples to fit the augmenter. `predict` then works for base classes,
            and `add_classes` raises an error.
        """
        self._check_settings()
        features, labels = self._read(X, y, reset=True)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        self.base_classes_ = self.classes_
        self.augmenter_, self.obstacle_ = self._fitted_augmenter(features, labels)
        classifier = self._new_classifier(features, labels)
        self.base_ = ClassMemory.of(features, targets, self.base_classes_, self._keep(classifier))
        self._train(classifier, None)
        return self

    def add_classes(self, X_novel: Any, y_novel: Any) -> "LowShotClassifier":
        """Add classes, or more examples of added classes.

        Examples accumulate, and synthetic examples are generated again from all of them: adding classes one by one or
        together gives the same classifier, if the augmenter's `random_state` is an int. An error changes nothing.

        Parameters
        ----------
        X_novel : array-like of shape (n, D)
            A few examples.
        y_novel : array-like of shape (n,)
            Their labels, none of them a base class.
        """
        check_is_fitted(self)
        features, labels = self._read(X_novel, y_novel, reset=False)
        self._require_new(labels)
        if self.augmenter_ is None:
            raise InputError(f"add_classes() is unavailable: the augmenter could not be fitted: {self.obstacle_}")
        shots = FeatureSet(features, labels)
        if self.shots_ is not None:
            shots = self.shots_.concatenate(shots)
        self._train(deepcopy(self.classifier_), _in_order_of_classes(shots))
        return self

    @property
    def novel_classes_(self) -> tuple[Hashable, ...]:
        """Labels of the added classes."""
        check_is_fitted(self)
        return () if self.shots_ is None else self.shots_.classes

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the fitted model to a folder, as safetensors and JSON.

        The folder has the augmenter, as its own ``save`` writes it, and a folder `classifier` with the rest. Only
        classifiers of this library can be saved.
        """
        from cpaan.low_shot.storage import save

        check_is_fitted(self)
        save(self, folder)

    @classmethod
    def load(cls, folder: str | PathLike[str], *, device: str = "auto") -> "LowShotClassifier":
        """Read what `save` wrote; classes can still be added.

        Parameters
        ----------
        folder : str or path
            Written by `save`.
        device : {"auto", "cpu", "cuda", "mps"}
            Device of the parts that use torch.
        """
        from cpaan.low_shot.storage import load

        return load(cls, folder, device)

    def _read(self, X: Any, y: Any, *, reset: bool) -> tuple[npt.NDArray[Any], Labels]:
        """Validate examples and labels; features keep their precision, which avoids a copy of large banks."""
        X, y = (tensor_to_numpy(each) if container_of(each) == "torch" else each for each in (X, y))
        try:
            features, labels = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32, np.float16])
            check_classification_targets(labels)
        except ValueError as error:
            raise InputError(str(error)) from error
        return features, labels

    def _require_new(self, labels: Labels) -> None:
        base, new = (_KINDS.get(each.dtype.kind, "numbers") for each in (self.base_classes_, labels))
        if base != new:
            raise InputError(f"labels of base classes are {base} and the new ones {new}; use the same type")
        known = set(self.base_classes_.tolist())
        common = [name for name in dict.fromkeys(labels.tolist()) if name in known]
        if common:
            raise InputError(
                f"already base classes: {show_names(common)}; leave them out or rename them; to learn from more "
                "examples of base classes, fit again"
            )

    def _fitted_augmenter(self, features: npt.NDArray[Any], labels: Labels) -> tuple[Any, str | None]:
        augmenter = self._default_augmenter() if self.augmenter is None else clone(self.augmenter)
        try:
            return augmenter.fit(features, labels), None
        except InputError as error:
            n_classes = len(self.classes_)
            if n_classes >= FEWEST_TO_META_TRAIN and len(labels) >= FEWEST_EXAMPLES * n_classes:
                raise  # the settings are wrong
            warnings.warn(f"fitted without an augmenter; add_classes() is unavailable: {error}", stacklevel=3)
            return None, str(error)

    def _default_augmenter(self) -> CPAAN:
        made_for_noise = self.classifier is None or isinstance(self.classifier, (NearestPrototype, LinearClassifier))
        return CPAAN() if made_for_noise else CPAAN(center=Calibrated(noise=0))

    def _new_classifier(self, features: npt.NDArray[Any], labels: Labels) -> Any:
        if self.classifier is None:
            own = getattr(self.augmenter_, "classifier_", None)
            return NearestPrototype() if own is None else deepcopy(own)
        classifier = clone(self.classifier)
        if hasattr(classifier, "meta_fit"):
            classifier.meta_fit(features, labels)
        return classifier

    def _check_settings(self) -> None:
        """Check parameters before the augmenter is trained, which may take long."""
        if self.classifier is not None:
            require_scores(self.classifier)
        if isinstance(self.keep, str) and self.keep not in ("all", "auto"):
            raise InputError(f'keep is {self.keep!r}; choose an int of at least 0, "all" or "auto"')
        if not isinstance(self.keep, str):
            as_whole_number(self.keep, "keep", minimum=0)

    def _keep(self, classifier: Any) -> int | None:
        if self.keep == "auto":
            return 0 if isinstance(classifier, NearestPrototype) else KEPT
        return None if self.keep == "all" else int(self.keep)

    def _train(self, classifier: Any, shots: FeatureSet | None) -> None:
        """Train on base classes, shots and synthetic examples; then change the estimator."""
        parts: list[tuple[Any, Any, Any]] = [self.base_.training_set()]
        if shots is not None:
            # Half precision holds shots, but not every example generated from them.
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

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the classifier's own probabilities, or else the softmax of its scores."""
        if not hasattr(self, "classifier_") or not hasattr(self.classifier_, "predict_proba"):
            return super().predict_proba(X)
        probabilities: FloatArray = self.classifier_.predict_proba(self._read_examples(X))
        return probabilities


def _in_order_of_classes(shots: FeatureSet) -> FeatureSet:
    """Sort classes and their examples, so that generated examples do not depend on the order of adding."""
    named = FeatureSet(shots.features, shots.names)
    return named.take(np.argsort(named.labels, kind="stable"))


@dataclass(frozen=True)
class ClassMemory:
    """What is kept of base classes to retrain a classifier: means, and some examples in half precision.

    >>> features, targets = np.array([[0.0], [1.0], [5.0], [8.0]]), np.array([0, 0, 0, 1])
    >>> ClassMemory.of(features, targets, np.array(["low", "high"]), keep=0).training_set()
    (array([[2.],
           [8.]]), array(['low', 'high'], dtype='<U4'), array([3., 1.]))
    """

    classes: Labels  # (C,) sorted
    counts: IndexArray  # (C,) examples that each class had
    means: npt.NDArray[np.float64]  # (C, D)
    deviations: npt.NDArray[np.float16]  # (m, D) of kept examples from the mean, in units of `scales`, class by class
    kept: IndexArray  # (C,) kept examples of each class; 0 for all classes or for none
    scales: npt.NDArray[np.float64]  # (C,) largest entry of the deviations of each class

    @classmethod
    def of(cls, features: FloatArray, targets: npt.NDArray[Any], classes: Labels, keep: int | None) -> "ClassMemory":
        """Keep class means, and up to `keep` examples per class (None: all), evenly spread over the given order."""
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
                # Each class has its own unit: half precision has eleven bits and a narrow range.
                differences = features[chosen] - means[index]
                scales[index] = np.abs(differences).max() or 1.0
                part[:] = differences / scales[index]
        return cls(classes, counts, means, deviations, kept, scales)

    def training_set(self) -> tuple[npt.NDArray[np.float64], Labels, npt.NDArray[np.float64]]:
        """Return examples, labels and weights to train a classifier on.

        Kept examples of a class are shifted to the mean of all examples that it had, and weigh as much as all of them;
        without kept examples, the mean replaces them.
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
