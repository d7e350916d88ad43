"""How features are normalised, alike for every method of a run."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError

NORMALIZATIONS = ("none", "l2", "center-l2")


@dataclass(frozen=True, eq=False)
class Normalization:
    """``none``; ``l2``, x / ‖x‖; or ``center-l2``, (x − μ) / ‖x − μ‖ with μ the mean of the base examples.

    >>> base = FeatureSet([[3.0, 4.0], [0.0, 2.0]], ["a", "b"])
    >>> Normalization.fitted("l2", base).apply(base).features.tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 1.0]]
    """

    kind: str
    mean: NDArray[Any] | None

    @classmethod
    def fitted(cls, kind: str, base: FeatureSet) -> "Normalization":
        """Choose a normalisation by name and learn what it needs from base examples."""
        if kind not in NORMALIZATIONS:
            raise InputError(f"unknown normalization {kind!r}; choose one of {', '.join(NORMALIZATIONS)}")
        mean = base.features.mean(axis=0, dtype=np.float64) if kind == "center-l2" else None
        return cls(kind, mean)

    def apply(self, feature_set: FeatureSet) -> FeatureSet:
        """Normalise features, in single precision; an example of length zero stays as it is."""
        if self.kind == "none":
            features = feature_set.features.astype(np.float32)
        else:
            centred = feature_set.features.astype(np.float64) - (0.0 if self.mean is None else self.mean)
            lengths = np.linalg.norm(centred, axis=1, keepdims=True)
            features = (centred / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)
        return FeatureSet(features, feature_set.labels, feature_set.classes)
