"""Low-shot learning by covariance-preserving adversarial augmentation networks.

>>> from cpaan import CPAAN, FeatureSet, load_glyphs, make_spiral
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpaan.augmenters.cpaan import CPAAN
    from cpaan.classifiers.linear import LinearClassifier
    from cpaan.classifiers.nearest_prototype import NearestPrototype
    from cpaan.data.feature_set import FeatureSet
    from cpaan.data.glyphs import load_glyphs
    from cpaan.data.spiral import make_spiral
    from cpaan.errors import InputError

__version__ = "0.1.0"

_HOMES = {
    "CPAAN": "cpaan.augmenters.cpaan",
    "FeatureSet": "cpaan.data.feature_set",
    "InputError": "cpaan.errors",
    "LinearClassifier": "cpaan.classifiers.linear",
    "NearestPrototype": "cpaan.classifiers.nearest_prototype",
    "load_glyphs": "cpaan.data.glyphs",
    "make_spiral": "cpaan.data.spiral",
}

__all__ = [
    "CPAAN",
    "FeatureSet",
    "InputError",
    "LinearClassifier",
    "NearestPrototype",
    "load_glyphs",
    "make_spiral",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line answers without loading torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
