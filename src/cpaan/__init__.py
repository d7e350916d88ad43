"""Low-shot learning by covariance-preserving adversarial augmentation networks.

>>> from cpaan import CPAAN, FeatureSet, load_glyphs, make_spiral
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpaan.augmenters.cpaan import CPAAN
    from cpaan.augmenters.deviation_transfer import DeviationTransfer
    from cpaan.augmenters.distribution_calibration import DistributionCalibration
    from cpaan.augmenters.empirical_bayes import EmpiricalBayes
    from cpaan.augmenters.feature_hallucination import FeatureHallucination
    from cpaan.augmenters.feature_imagination import FeatureImagination
    from cpaan.augmenters.pooled_gaussian import PooledGaussian
    from cpaan.augmenters.smote import Smote
    from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator
    from cpaan.classifiers.cosine import CosineClassifier
    from cpaan.classifiers.linear import LinearClassifier
    from cpaan.classifiers.maml import MAML
    from cpaan.classifiers.matching import MatchingNetwork, PrototypeMatchingNetwork
    from cpaan.classifiers.nearest_prototype import NearestPrototype
    from cpaan.classifiers.prototypical import PrototypicalNetwork
    from cpaan.classifiers.siamese import SiameseNetwork
    from cpaan.data.feature_set import FeatureSet
    from cpaan.data.toys import load_glyphs, make_spiral
    from cpaan.errors import InputError
    from cpaan.low_shot.classifier import LowShotClassifier

__version__ = "0.1.0"

_HOMES = {
    "CPAAN": "cpaan.augmenters.cpaan",
    "MAML": "cpaan.classifiers.maml",
    "AttentiveWeightGenerator": "cpaan.classifiers.attentive_weights",
    "CosineClassifier": "cpaan.classifiers.cosine",
    "DeviationTransfer": "cpaan.augmenters.deviation_transfer",
    "DistributionCalibration": "cpaan.augmenters.distribution_calibration",
    "EmpiricalBayes": "cpaan.augmenters.empirical_bayes",
    "FeatureHallucination": "cpaan.augmenters.feature_hallucination",
    "FeatureImagination": "cpaan.augmenters.feature_imagination",
    "FeatureSet": "cpaan.data.feature_set",
    "InputError": "cpaan.errors",
    "LinearClassifier": "cpaan.classifiers.linear",
    "LowShotClassifier": "cpaan.low_shot.classifier",
    "MatchingNetwork": "cpaan.classifiers.matching",
    "NearestPrototype": "cpaan.classifiers.nearest_prototype",
    "PooledGaussian": "cpaan.augmenters.pooled_gaussian",
    "PrototypeMatchingNetwork": "cpaan.classifiers.matching",
    "PrototypicalNetwork": "cpaan.classifiers.prototypical",
    "SiameseNetwork": "cpaan.classifiers.siamese",
    "Smote": "cpaan.augmenters.smote",
    "load_glyphs": "cpaan.data.toys",
    "make_spiral": "cpaan.data.toys",
}

__all__ = [
    "CPAAN",
    "MAML",
    "AttentiveWeightGenerator",
    "CosineClassifier",
    "DeviationTransfer",
    "DistributionCalibration",
    "EmpiricalBayes",
    "FeatureHallucination",
    "FeatureImagination",
    "FeatureSet",
    "InputError",
    "LinearClassifier",
    "LowShotClassifier",
    "MatchingNetwork",
    "NearestPrototype",
    "PooledGaussian",
    "PrototypeMatchingNetwork",
    "PrototypicalNetwork",
    "SiameseNetwork",
    "Smote",
    "load_glyphs",
    "make_spiral",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line answers without loading torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
