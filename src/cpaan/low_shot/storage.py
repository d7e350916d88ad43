"""A low-shot classifier as a folder: the augmenter at the top, as it saves itself, the rest in `classifier`."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from torch import Tensor

from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import LONGEST_NAME
from cpaan.data.folders import decode_name, encode_name, read_config, read_model, write_model
from cpaan.data.untrusted import reading, require_arrays, require_counts
from cpaan.errors import InputError
from cpaan.low_shot.classifier import ClassMemory
from cpaan.methods import CLASSIFIERS, augmenter_classes, load_augmenter, make_classifier

if TYPE_CHECKING:
    from cpaan.low_shot.classifier import LowShotClassifier

EstimatorT = TypeVar("EstimatorT", bound="LowShotClassifier")

KIND, CLASSIFIER, NETWORK = "LowShotClassifier", "classifier", "network"
_MEMORY = {
    "base.counts": "C int64",
    "base.means": "CD float64",
    "base.deviations": "ND float16",
    "base.kept": "C int64",
    "base.scales": "C float64",
}
_LABEL_KINDS = "biufUO"  # text or numbers; objects if they are mixed


def save(estimator: "LowShotClassifier", folder: str | PathLike[str]) -> None:
    """Write a fitted estimator; a meta-trained classifier gets a folder, others are arrays and numbers."""
    folder, classifier = Path(folder), estimator.classifier_
    _require_known(estimator.augmenter_, augmenter_classes())
    _require_known(classifier, tuple(_classifier_kinds().values()))
    config: dict[str, Any] = {
        "keep": _plain(estimator.keep),
        "obstacle": estimator.obstacle_,
        "defaults": [name for name in ("augmenter", "classifier") if getattr(estimator, name) is None],
        "augmenter": None,
        "dimension": estimator.n_features_in_,
        "feature_names": getattr(estimator, "feature_names_in_", np.array([])).tolist(),
        "classes": [encode_name(label) for label in estimator.base_classes_.tolist()],
        "added": [encode_name(name) for name in estimator.novel_classes_],
        "classifier": {"kind": type(classifier).__name__},
        "label_type": estimator.base_classes_.dtype.str,
        "all_label_type": estimator.classes_.dtype.str,
    }
    arrays = {name: getattr(estimator.base_, name.removeprefix("base.")) for name in _MEMORY}
    if estimator.shots_ is not None:
        arrays |= {"shots.features": estimator.shots_.features, "shots.labels": estimator.shots_.labels}
    if estimator.augmenter_ is not None:
        estimator.augmenter_.save(folder)
        config["augmenter"] = read_config(folder)["sha256"]
    if isinstance(classifier, MetaClassifier):
        classifier.save(folder / CLASSIFIER / NETWORK)
    else:
        parameters = classifier.get_params(deep=False)
        learned = {name: v for name, v in vars(classifier).items() if name.endswith("_") and name != "classes_"}
        arrays |= {f"classifier.{name}": v for name, v in learned.items() if isinstance(v, np.ndarray)}
        config["classifier"] |= {
            "parameters": {name: _plain(value) for name, value in parameters.items()},
            "numbers": {name: _plain(v) for name, v in learned.items() if not isinstance(v, np.ndarray)},
        }
    write_model(folder / CLASSIFIER, KIND, {name: torch.tensor(array) for name, array in arrays.items()}, config)


def load(cls: type[EstimatorT], folder: str | PathLike[str], device: str) -> EstimatorT:
    """Read an estimator, and check that its parts fit together."""
    folder = Path(folder)
    _require_classifier(folder)
    tensors, config = read_model(folder / CLASSIFIER, KIND)
    with reading(folder, "holds a damaged classifier, or one of another version of cpaan"):
        estimator = cls(keep=config["keep"])
        estimator._check_settings()
        _restore_classes(estimator, tensors, config)
        estimator.augmenter_, estimator.obstacle_ = _augmenter(folder, config["augmenter"], device), config["obstacle"]
        if estimator.augmenter_ is not None and estimator.augmenter_.n_features_in_ != estimator.n_features_in_:
            raise InputError(f"{folder}: its augmenter has another number of features")
        _restore_classifier(estimator, folder / CLASSIFIER / NETWORK, tensors, config["classifier"], device)
        for name in ("augmenter", "classifier"):
            fitted = getattr(estimator, f"{name}_")
            if name not in config["defaults"] and fitted is not None:
                setattr(estimator, name, clone(fitted))
    return estimator


def _require_known(fitted: Any, kinds: tuple[type[Any], ...]) -> None:
    if fitted is not None and type(fitted) not in kinds:
        raise InputError(
            f"cannot save a {type(fitted).__name__}; choose one of {', '.join(kind.__name__ for kind in kinds)}, or "
            "store this model by other means"
        )


def _classifier_kinds() -> dict[str, type[Any]]:
    return {kind.__name__: kind for kind in (type(make_classifier(name)) for name in CLASSIFIERS)}


def _require_classifier(folder: Path) -> None:
    if not (folder / CLASSIFIER).is_dir():
        raise InputError(
            f"{folder} holds a {read_config(folder)['kind']} without a classifier, so it cannot predict or add "
            "classes; save a LowShotClassifier, or use cpaan fit without --novel"
        )


def _restore_classes(estimator: "LowShotClassifier", tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    dimension = estimator.n_features_in_ = as_whole_number(config["dimension"], "dimension", minimum=1)
    if config["feature_names"]:
        names = [str(name) for name in config["feature_names"]]
        if len(names) != dimension:
            raise InputError(f"there are {len(names)} names of {dimension} features")
        vars(estimator)["feature_names_in_"] = np.array(names, dtype=object)
    base = estimator.base_classes_ = _decode(config["classes"], config["label_type"])
    everything = _decode(config["classes"] + config["added"], config["all_label_type"])
    estimator.classes_ = np.unique(everything)
    if len(estimator.classes_) != len(everything):
        raise InputError("a class is named twice")
    require_arrays(tensors, _MEMORY, C=len(base), D=dimension)
    memory = {name.removeprefix("base."): tensors[name].numpy() for name in _MEMORY}
    require_counts(memory["kept"], len(memory["deviations"]), "base.kept")
    if memory["counts"].min() < 1 or (len(memory["deviations"]) and memory["kept"].min() < 1):
        raise InputError("a base class has no examples")
    estimator.base_, estimator.shots_ = ClassMemory(base, **memory), None
    if "shots.features" in tensors:
        features, labels = tensors["shots.features"].numpy(), tensors["shots.labels"].numpy()
        estimator.shots_ = FeatureSet(features, labels, everything[len(base) :].tolist())
        if estimator.shots_.dimension != dimension:
            raise InputError("shots.features has another number of features")


def _decode(names: list[Any], label_type: str) -> npt.NDArray[Any]:
    decoded, kind = [decode_name(name) for name in names], np.dtype(label_type)
    # The type sets the memory that every name takes, however short it is.
    if kind.kind not in _LABEL_KINDS or kind.itemsize > np.dtype(f"<U{LONGEST_NAME}").itemsize:
        raise InputError(f"classes cannot be {label_type}; names have at most {LONGEST_NAME} characters")
    return np.array(decoded, dtype=kind)


def _augmenter(folder: Path, checksum: str | None, device: str) -> Any:
    if checksum is None:
        return None
    if read_config(folder)["sha256"] != checksum:
        raise InputError(
            f"the augmenter in {folder} is not the one that its classifier was fitted with; fit again, or copy the "
            "whole folder again"
        )
    return load_augmenter(folder, device=device)


def _restore_classifier(
    estimator: "LowShotClassifier", network: Path, tensors: dict[str, Tensor], config: dict[str, Any], device: str
) -> None:
    kind = _classifier_kinds().get(config["kind"])
    if kind is None:
        raise InputError(f"the model has a classifier {config['kind']!r}, which this version of cpaan does not know")
    if issubclass(kind, MetaClassifier):
        # The network is read; the classifier is fitted again to the examples that were kept.
        estimator._train(kind.load(network, device=device), estimator.shots_)
        return
    learned = {n.removeprefix("classifier."): v.numpy() for n, v in tensors.items() if n.startswith("classifier.")}
    learned |= {**config["numbers"], "classes_": estimator.classes_}
    for name in learned:
        if not name.endswith("_") or name.startswith("_"):
            raise InputError(f"unexpected attribute {name!r} in the saved classifier")
    classifier = kind(**config["parameters"])
    vars(classifier).update(learned)
    # Classifying one example fails at once if the parts do not fit together.
    scores = classifier.scores(np.zeros((1, estimator.n_features_in_)))
    if scores.shape != (1, len(estimator.classes_)) or not np.isfinite(scores).all():
        raise InputError("the classifier returns something else than a score for each class")
    estimator.classifier_ = classifier


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
