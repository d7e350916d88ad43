"""Places of real, known and synthetic features in the plane, the same for all generators, by t-SNE.

L. van der Maaten and G. Hinton, *Visualizing Data using t-SNE*, JMLR 9, 2008.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpaan.evaluation.sample import Indices, Sample
from cpaan.threads import limited_threads

MOST_POINTS = 3000  # a dozen seconds on one core
PERPLEXITY = 30.0
_DIMENSIONS = 50  # that principal components keep; further ones change a map by nothing that is seen
_FEWEST = 8  # points for which a map by neighbours means anything


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Places of points in the unit square, with the index of the class of each."""

    real: tuple[NDArray[np.float64], Indices]  # real, shots: places and classes of real points
    shots: tuple[NDArray[np.float64], Indices]
    made: dict[str, tuple[NDArray[np.float64], Indices]]  # the same for what each method made
    # kept, kept_made: rows of the sample that are on the map, of its real examples and of what each method made
    kept: Indices
    kept_made: dict[str, Indices]


def map_features(sample: Sample, most: int = MOST_POINTS) -> FeatureMap:
    """Lay out real examples, shots and what every method made together, so that panels can be compared."""
    real = sample.real
    total = len(real.real) + sum(len(made.made) for made in sample.made.values())
    step = -(-total // max(1, most - len(real.shots)))
    kept = _every(real.real_labels, step)
    kept_made = {name: _every(made.made_labels, step) for name, made in sample.made.items()}
    parts = [real.real[kept], real.shots, *(made.made[kept_made[name]] for name, made in sample.made.items())]
    edges = np.cumsum([len(part) for part in parts])[:-1]
    first, second, *others = np.split(in_the_plane(np.concatenate(parts)), edges)
    return FeatureMap(
        real=(first, real.real_labels[kept]),
        shots=(second, real.shot_labels),
        made={
            name: (places, made.made_labels[kept_made[name]])
            for (name, made), places in zip(sample.made.items(), others, strict=True)
        },
        kept=kept,
        kept_made=kept_made,
    )


def in_the_plane(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Place examples in the unit square, neighbours close to one another; the same features give the same places."""
    # Copies of one example, as some generators make, would drive each other and the example apart.
    distinct, copies = np.unique(features.astype(np.float32), axis=0, return_inverse=True)
    reduced = principal_components(distinct, _DIMENSIONS)
    if len(reduced) >= _FEWEST and np.ptp(reduced) > 0:
        from sklearn.manifold import TSNE

        perplexity = min(PERPLEXITY, (len(reduced) - 1) / 3)
        with limited_threads(1):
            # Scaled, as the start of the descent must not depend on the unit of the features.
            reduced = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(reduced / reduced.std())
    places = np.zeros((len(reduced), 2))
    places[:, : min(2, reduced.shape[1])] = reduced[:, :2]
    low, high = places.min(0), places.max(0)
    unit: NDArray[np.float64] = (places - low) / np.where(high > low, high - low, 1.0)
    return unit[copies.ravel()]


def principal_components(features: NDArray[np.floating], number: int) -> NDArray[np.float64]:
    """Project examples on the directions in which they vary most."""
    centred = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    # The sign of a direction is arbitrary: take the one whose largest entry is positive, on every machine.
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], axis=1))
    projected: NDArray[np.float64] = centred @ (directions * signs)[:number].T
    return projected


def _every(labels: Indices, step: int) -> Indices:
    """Take every so many examples of each class, at least one."""
    kept = [np.flatnonzero(labels == label)[::step] for label in np.unique(labels)]
    return np.concatenate([np.empty(0, np.int64), *kept])
