"""A low-shot classifier as a folder: the augmenter in it as ever, the rest in its folder `classifier`."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator
from cpaan.classifiers.cosine import CosineClassifier
from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.maml import MAML
from cpaan.classifiers.matching import MatchingNetwork, PrototypeMatchingNetwork
from cpaan.classifiers.meta import MetaClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.classifiers.prototypical import PrototypicalNetwork
from cpaan.classifiers.siamese import SiameseNetwork
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import LONGEST_NAME
from cpaan.data.folders import decode_name, encode_name, read_config, read_model, write_model
from cpaan.data.untrusted import reading, require_arrays, require_counts
from cpaan.errors import InputError
from cpaan.low_shot.classifier import ClassMemory
from cpaan.methods import augmenter_classes, load_augmenter

if TYPE_CHECKING:
    from torch import Tensor

    from cpaan.low_shot.classifier import LowShotClassifier

EstimatorT = TypeVar("EstimatorT", bound="LowShotClassifier")

KIND, CLASSIFIER, NETWORK = "LowShotClassifier", "classifier", "network"
# What these have learned are arrays and numbers; those that are meta-trained have a folder of their own.
PLAIN: tuple[type[Any], ...] = (NearestPrototype, LinearClassifier, CosineClassifier)
META: tuple[type[MetaClassifier], ...] = (
    AttentiveWeightGenerator,
    MAML,
    MatchingNetwork,
    PrototypeMatchingNetwork,
    PrototypicalNetwork,
    SiameseNetwork,
)
_MEMORY = ("counts", "means", "deviations", "kept", "scales")
_MEMORY_FORMS = {
    "base.counts": "C int64",
    "base.means": "CD float64",
    "base.deviations": "ND float16",
    "base.kept": "C int64",
    "base.scales": "C float64",
}
# Names of classes, as text or numbers or, where they are mixed, as objects.
_LABEL_KINDS = "biufUO"


def save(estimator: "LowShotClassifier", folder: str | PathLike[str]) -> None:
    """Write a fitted estimator."""
    _require_known(estimator)
    folder = Path(folder)
    config: dict[str, Any] = {
        "keep": _plain(estimator.keep),
        "obstacle": estimator.obstacle_,
        "defaults": [name for name in ("augmenter", "classifier") if getattr(estimator, name) is None],
        "augmenter": None,
        "dimension": estimator.n_features_in_,
        "feature_names": getattr(estimator, "feature_names_in_", np.array([])).tolist(),
        "classes": _encode(estimator.base_classes_),
        "added": [encode_name(name) for name in estimator.novel_classes_],
        "classifier": _classifier_config(estimator.classifier_),
    }
    names = {"label_type": estimator.base_classes_.dtype.str, "all_label_type": estimator.classes_.dtype.str}
    if estimator.augmenter_ is not None:
        estimator.augmenter_.save(folder)
        config["augmenter"] = read_config(folder)["sha256"]
    if isinstance(estimator.classifier_, META):
        estimator.classifier_.save(folder / CLASSIFIER / NETWORK)
    write_model(folder / CLASSIFIER, KIND, _tensors(estimator), {**config, **names})


def load(cls: type[EstimatorT], folder: str | PathLike[str], device: str) -> EstimatorT:
    """Put an estimator together again."""
    folder = Path(folder)
    require_low_shot_classifier(folder)
    tensors, config = read_model(folder / CLASSIFIER, KIND)
    with reading(folder, "holds a damaged classifier, or one of another version of cpaan"):
        estimator = cls(keep=config["keep"])
        estimator._check_settings()
        _restore_classes(estimator, tensors, config)
        estimator.augmenter_, estimator.obstacle_ = _augmenter(folder, config["augmenter"], device), config["obstacle"]
        if estimator.augmenter_ is not None and estimator.augmenter_.n_features_in_ != estimator.n_features_in_:
            raise InputError(f"{folder}: its augmenter has another number of features")
        _restore_classifier(estimator, folder / CLASSIFIER / NETWORK, tensors, config["classifier"], device)
        given = {"augmenter": estimator.augmenter_, "classifier": estimator.classifier_}
        for name, fitted in given.items():
            if name not in config["defaults"] and fitted is not None:
                setattr(estimator, name, clone(fitted))
    return estimator


def _restore_classes(estimator: "LowShotClassifier", tensors: "dict[str, Tensor]", config: dict[str, Any]) -> None:
    estimator.n_features_in_ = as_whole_number(config["dimension"], "dimension", minimum=1)
    if config["feature_names"]:
        names = [str(name) for name in config["feature_names"]]
        if len(names) != estimator.n_features_in_:
            raise InputError(f"there are {len(names)} names of {estimator.n_features_in_} features")
        vars(estimator)["feature_names_in_"] = np.array(names, dtype=object)
    estimator.base_classes_ = _decode(config["classes"], config["label_type"])
    everything = _decode(config["classes"] + config["added"], config["all_label_type"])
    estimator.classes_ = np.unique(everything)
    if len(estimator.classes_) != len(everything):
        raise InputError("a class is named twice")
    require_arrays(tensors, _MEMORY_FORMS, C=len(estimator.base_classes_), D=estimator.n_features_in_)
    memory = {name: tensors[f"base.{name}"].numpy() for name in _MEMORY}
    require_counts(memory["kept"], len(memory["deviations"]), "base.kept")
    if memory["counts"].min() < 1 or (len(memory["deviations"]) and memory["kept"].min() < 1):
        raise InputError("a base class has no examples")
    estimator.base_ = ClassMemory(estimator.base_classes_, **memory)
    estimator.shots_ = _shots(tensors, everything[len(estimator.base_classes_) :])
    if estimator.shots_ is not None and estimator.shots_.dimension != estimator.n_features_in_:
        raise InputError("shots.features has another number of features")


def require_low_shot_classifier(folder: Path) -> None:
    """Refuse a folder that holds no low-shot classifier, or only the augmenter of one."""
    if (folder / CLASSIFIER).is_dir():
        return
    kind = read_config(folder)["kind"]
    raise InputError(
        f"{folder} holds a {kind} and no classifier beside it, so it can neither answer nor take classes; fit a "
        "LowShotClassifier and save it, or use cpaan fit without --novel"
    )


def _require_known(estimator: "LowShotClassifier") -> None:
    for fitted, kinds in (
        (estimator.augmenter_, augmenter_classes()),
        (estimator.classifier_, PLAIN + META),
    ):
        if fitted is not None and type(fitted) not in kinds:
            raise InputError(
                f"a {type(fitted).__name__} cannot be saved here; choose one of "
                f"{', '.join(kind.__name__ for kind in kinds)}, or keep this model with a means of your own"
            )


def _tensors(estimator: "LowShotClassifier") -> "dict[str, Tensor]":
    import torch

    arrays = {f"base.{name}": getattr(estimator.base_, name) for name in _MEMORY}
    if estimator.shots_ is not None:
        arrays |= {"shots.features": estimator.shots_.features, "shots.labels": estimator.shots_.labels}
    if isinstance(estimator.classifier_, PLAIN):
        learned = _learned(estimator.classifier_)
        arrays |= {f"classifier.{name}": v for name, v in learned.items() if isinstance(v, np.ndarray)}
    return {name: torch.tensor(array) for name, array in arrays.items()}


def _learned(classifier: Any) -> dict[str, Any]:
    return {name: v for name, v in vars(classifier).items() if name.endswith("_") and name != "classes_"}


def _classifier_config(classifier: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"kind": type(classifier).__name__}
    if isinstance(classifier, PLAIN):
        config["parameters"] = {name: _plain(value) for name, value in classifier.get_params(deep=False).items()}
        config["numbers"] = {
            name: _plain(value) for name, value in _learned(classifier).items() if not isinstance(value, np.ndarray)
        }
    return config


def _restore_classifier(
    estimator: "LowShotClassifier", network: Path, tensors: "dict[str, Tensor]", config: dict[str, Any], device: str
) -> None:
    kinds: dict[str, Any] = {kind.__name__: kind for kind in PLAIN + META}
    if config["kind"] not in kinds:
        raise InputError(f"the model has a classifier {config['kind']!r}, which this cpaan does not know")
    kind = kinds[config["kind"]]
    if kind in META:
        # What was learned from base classes is read; the examples at hand are taken again.
        estimator._train(kind.load(network, device=device), estimator.shots_)
        return
    classifier = kind(**config["parameters"])
    prefix = "classifier."
    learned = {name.removeprefix(prefix): v.numpy() for name, v in tensors.items() if name.startswith(prefix)}
    everything = {**learned, **config["numbers"], "classes_": estimator.classes_}
    if any(not name.endswith("_") or name.startswith("_") for name in everything):
        raise InputError("the classifier has learned what no classifier learns")
    vars(classifier).update(everything)
    _require_answers(classifier, estimator)
    estimator.classifier_ = classifier


def _require_answers(classifier: Any, estimator: "LowShotClassifier") -> None:
    """Ask about one example, which fails at once where what was read does not fit together."""
    scores = classifier.scores(np.zeros((1, estimator.n_features_in_)))
    if scores.shape != (1, len(estimator.classes_)) or not np.isfinite(scores).all():
        raise InputError("the classifier answers with something else than a score for each class")


def _augmenter(folder: Path, checksum: str | None, device: str) -> Any:
    if checksum is None:
        return None
    if read_config(folder)["sha256"] != checksum:
        raise InputError(
            f"the augmenter in {folder} is not the one that its classifier was made with; fit again, or copy the "
            "whole folder again"
        )
    return load_augmenter(folder, device=device)


def _shots(tensors: "dict[str, Tensor]", classes: npt.NDArray[Any]) -> FeatureSet | None:
    if "shots.features" not in tensors:
        return None
    return FeatureSet(tensors["shots.features"].numpy(), tensors["shots.labels"].numpy(), classes.tolist())


def _encode(labels: npt.NDArray[Any]) -> list[Any]:
    return [encode_name(label) for label in labels.tolist()]


def _decode(names: list[Any], label_type: str) -> npt.NDArray[Any]:
    decoded, kind = [decode_name(name) for name in names], np.dtype(label_type)
    # Every name takes the room that the type says, which might be any.
    if kind.kind not in _LABEL_KINDS or kind.itemsize > np.dtype(f"<U{LONGEST_NAME}").itemsize:
        raise InputError(f"classes cannot be {label_type}; names have at most {LONGEST_NAME} characters")
    return np.array(decoded, dtype=kind)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
