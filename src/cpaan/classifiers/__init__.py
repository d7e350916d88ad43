"""Final classifiers, one file each."""

from cpaan.classifiers.linear import LinearClassifier
from cpaan.classifiers.nearest_prototype import NearestPrototype

__all__ = ["LinearClassifier", "NearestPrototype"]
