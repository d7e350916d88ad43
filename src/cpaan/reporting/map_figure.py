"""Real, known and synthetic features in the plane, generators side by side (the paper's Figure 5c to 5e)."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from cpaan.evaluation.sample import Indices, Sample
from cpaan.reporting.embedding import FeatureMap
from cpaan.reporting.figure import COLORS, GREY, new_figure, plain

MOST_COLUMNS, FEWEST_COLUMNS = 4, 3


def map_figure(sample: Sample, places: FeatureMap) -> Figure | None:
    """Draw a panel for each generator: real features translucent, shots as crosses, synthetic ones as stars.

    Parameters
    ----------
    sample : of a run
    places : of its features, from `cpaan.reporting.embedding.map_features`
    """
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
