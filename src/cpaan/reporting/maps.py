"""Maps of real, known and synthetic features in the plane, generators side by side (the paper's Figure 5c to 5e).

L. van der Maaten and G. Hinton, *Visualizing Data using t-SNE*, JMLR 9, 2008.
"""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from cpaan.evaluation.sample import Indices, Sample
from cpaan.reporting.figure import COLORS, GREY, new_figure, plain
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


MOST_COLUMNS, FEWEST_COLUMNS = 4, 3


def map_figure(sample: Sample, places: FeatureMap) -> Figure | None:
    """Draw a panel for each generator: real features translucent, shots as crosses, synthetic ones as stars."""
    if not places.made:
        return None
    columns = _columns(len(places.made))
    rows = math.ceil(len(places.made) / columns)
    figure = new_figure(2.4 * columns, 2.5 * rows + 0.7)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, (name, made) in zip(panels, places.made.items(), strict=False):
        _scatter(ax, *places.real, marker="o", size=16, strength=0.25)
        _scatter(ax, *made, marker="*", size=26, strength=0.95)
        _crosses(ax, *places.shots)
        ax.set_title(plain(name), fontsize=9)
    for ax in panels:
        ax.set_xlim(-0.06, 1.06)  # the same for all panels, with room for what lies on the edge
        ax.set_ylim(-0.06, 1.06)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_visible(bool(ax.get_title()))
    figure.legend(handles=_legend(sample), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _columns(panels: int) -> int:
    """Choose the number of columns that leaves the fewest places empty."""
    if panels <= MOST_COLUMNS:
        return panels
    return min((MOST_COLUMNS, FEWEST_COLUMNS), key=lambda columns: -panels % columns)


def _scatter(
    ax: Axes, places: NDArray[np.float64], labels: Indices, *, marker: str, size: float, strength: float
) -> None:
    colors = [COLORS[label % len(COLORS)] for label in labels]
    edge = {"linewidths": 0} if marker == "o" else {"linewidths": 0.3, "edgecolors": "white"}
    ax.scatter(places[:, 0], places[:, 1], s=size, c=colors, marker=marker, alpha=strength, **edge)


def _crosses(ax: Axes, places: NDArray[np.float64], labels: Indices) -> None:
    """Draw crosses twice, so that they stand out from what they lie on, in grey too."""
    ax.scatter(places[:, 0], places[:, 1], s=52, c="black", marker="x", linewidths=3.2)
    colors = [COLORS[label % len(COLORS)] for label in labels]
    ax.scatter(places[:, 0], places[:, 1], s=40, c=colors, marker="x", linewidths=1.5)
    for label in np.unique(labels):  # the number of the class, for readers without colours
        place = places[labels == label][0]
        ax.annotate(str(label + 1), tuple(place), (5, 3), textcoords="offset points", fontsize=8, fontweight="bold")


def _legend(sample: Sample) -> list[Line2D]:
    kinds = (("o", "real", 0.35), ("x", "shots", 1.0), ("*", "synthetic", 1.0))
    signs = [
        Line2D([], [], color=GREY, marker=marker, linestyle="none", alpha=strength, label=name)
        for marker, name, strength in kinds
    ]
    return signs + [
        Line2D([], [], color=COLORS[i % len(COLORS)], marker="s", linestyle="none", label=f"{i + 1}  {plain(name)}")
        for i, name in enumerate(sample.real.classes)
    ]
