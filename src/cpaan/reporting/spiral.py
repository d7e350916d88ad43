"""The spiral figure: raw data and what each variant makes of it, as the paper's Figure 3 shows it."""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpaan.data.feature_set import FeatureSet
from cpaan.data.split import LowShotSplit
from cpaan.reporting.figure import BLUE, GREEN, ORANGE, VERMILLION, new_figure

ARM_COLORS = {"top": BLUE, "bottom": GREEN, "left": VERMILLION, "right": ORANGE}


@dataclass(frozen=True)
class SpiralPanel:
    """What one variant made: points of the novel arms, and the same translated back to base arms."""

    made: FeatureSet
    returned: FeatureSet


def spiral_figure(split: LowShotSplit, panels: Mapping[str, SpiralPanel]) -> Figure:
    """Draw the raw data, then one panel for each variant.

    Real points are pale, synthetic ones saturated; novel real points, which no variant has seen, are paler
    still. The shots are black crosses.
    """
    figure = new_figure(3 * (1 + len(panels)), 3.2)
    axes = figure.subplots(1, 1 + len(panels), sharex=True, sharey=True)
    _draw_real(axes[0], split, strength=0.9)
    axes[0].set_title("real data")
    for ax, (name, panel) in zip(axes[1:], panels.items(), strict=True):
        _draw_real(ax, split, strength=0.25)
        _draw_points(ax, panel.returned, size=4, strength=0.9, marker="o")
        _draw_points(ax, panel.made, size=4, strength=1.0, marker="o")
        ax.set_title(name)
    for ax in axes:
        crosses = split.shots.features
        ax.scatter(crosses[:, 0], crosses[:, 1], s=70, c="black", marker="x", linewidths=2, zorder=5)
        ax.set_aspect("equal")
        ax.set_xticks([])
        ax.set_yticks([])
    figure.supxlabel(
        "crosses: all that is known of the novel arms (left, right)   ·   saturated points: synthetic novel points, "
        "and the same translated back to the base arms (top, bottom)",
        fontsize=9,
    )
    return figure


def _draw_real(ax: Axes, split: LowShotSplit, strength: float) -> None:
    _draw_points(ax, split.base, size=5, strength=strength, marker="o")
    _draw_points(ax, split.unseen, size=5, strength=strength / 2, marker="o")


def _draw_points(ax: Axes, points: FeatureSet, *, size: float, strength: float, marker: str) -> None:
    for name in points.classes:
        x = points.of_class(name)
        paint = colors.to_rgba(ARM_COLORS[str(name)], strength)
        ax.scatter(x[:, 0], x[:, 1], s=size, color=paint, marker=marker, linewidths=0, rasterized=True)
