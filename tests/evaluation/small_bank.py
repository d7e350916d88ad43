"""A small bank with trials, for the tests of the benchmark."""

import numpy as np

from cpaan.data.benchmark import BenchmarkData, ShotSource
from cpaan.data.feature_set import FeatureSet


def small_bank(n_base: int = 8, n_novel: int = 6, per_class: int = 12, test: int = 5) -> BenchmarkData:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(n_base + n_novel, 1, 6))

    def draw(classes: range, number: int) -> FeatureSet:
        features = centers[classes] + rng.normal(size=(len(classes), number, 6))
        names = np.repeat([f"c{c}" for c in classes], number)
        return FeatureSet(features.reshape(-1, 6).astype(np.float32), names)

    base, novel = range(n_base), range(n_base, n_base + n_novel)
    shots = draw(novel, per_class)
    members = tuple(np.flatnonzero(shots.labels == label) for label in range(n_novel))
    return BenchmarkData(
        draw(base, per_class), draw(base, test), draw(novel, test), ShotSource(shots.classes, members, shots.take)
    )
