"""Low-shot learning by covariance-preserving adversarial augmentation networks.

>>> from cpaan import CPAAN, FeatureSet, load_glyphs, make_spiral
"""

from typing import TYPE_CHECKING, Any

from cpaan.methods import PUBLIC, public

if TYPE_CHECKING:
    from cpaan.augmenters.anchored import Anchored
    from cpaan.augmenters.distribution_calibration import DistributionCalibration
    from cpaan.augmenters.feature_hallucination import FeatureHallucination
    from cpaan.augmenters.feature_imagination import FeatureImagination
    from cpaan.augmenters.named import CPAAN, DeviationTransfer, EmpiricalBayes, PooledGaussian
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

# Written out for type checkers, which cannot read the table.
__all__ = [
    "CPAAN",
    "MAML",
    "Anchored",
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
    if name in PUBLIC:
        return public(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
