"""How two methods fill a novel class, drawn from a run (after the paper's Figure 2).

(a) one known example of a novel class among base classes; (b) Feature Hallucination applies to it what leads from one
base example to another; (c) CP-AAN translates examples of related base classes.
"""

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpaan.reporting.class_view import ClassView, Points, draw_ellipse, draw_points
from cpaan.reporting.figure import BLUE, GREEN, GREY, ORANGE, VERMILLION, new_figure, plain

BASE_STYLES = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "^"))
ARROWS = 6
_PALE, _STRONG = 0.3, 0.85


def translation_figure(view: ClassView, hallucination: str, translation: str) -> Figure:
    """Draw the known, what Feature Hallucination makes of it, and what CP-AAN makes of it.

    Parameters
    ----------
    view : of a novel class
    hallucination, translation : the two methods, by their names in the run
    """
    figure = new_figure(9.6, 3.7)
    known, left, right = figure.subplots(1, 3, sharex=True, sharey=True)
    for ax in (known, left, right):
        _draw_base(ax, view, _STRONG if ax is known else _PALE)
        _draw_shots(ax, view)
    draw_points(
        known, view.real, s=18, facecolors="none", edgecolors=VERMILLION, linewidths=0.8, label="unseen examples"
    )
    known.set_title(f"(a) of {plain(view.name)},\n{len(view.shots)} known", fontsize=9)
    _draw_made(left, view, hallucination)
    shot = view.shots[0]
    for point in view.made[hallucination][:: max(1, len(view.made[hallucination]) // ARROWS)][:ARROWS]:
        _arrow(left, shot, point, VERMILLION)
    left.set_title(f"(b) {plain(hallucination)}:\nchanges within base classes, applied", fontsize=9)
    _draw_made(right, view, translation)
    for (color, _), points in zip(BASE_STYLES, view.base, strict=False):
        draw_ellipse(right, points, fill=False, edgecolor=color, linewidth=1.1, linestyle=(0, (4, 2)))
        _arrow(right, points.mean(0), view.made[translation].mean(0), color)
    draw_ellipse(right, view.made[translation], fill=False, edgecolor=VERMILLION, linewidth=1.3)
    right.set_title(f"(c) {plain(translation)}:\nexamples of related classes, translated", fontsize=9)
    for ax in (known, left, right):
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal")
    signs: dict[str, Artist] = {}
    for ax in (right, known):  # base classes as the first panel has them, where they are not pale
        handles, names = ax.get_legend_handles_labels()
        signs |= dict(zip(names, handles, strict=True))
    figure.legend(signs.values(), list(signs), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _draw_base(ax: Axes, view: ClassView, strength: float) -> None:
    for (color, marker), points, name in zip(BASE_STYLES, view.base, view.base_names, strict=False):
        label = f"base class {plain(name)}"
        draw_points(ax, points, s=14, color=color, marker=marker, alpha=strength, linewidths=0, label=label)
        draw_points(
            ax,
            points.mean(0, keepdims=True),
            s=70,
            color=color,
            marker=marker,
            edgecolors="black",
            linewidths=0.9,
            zorder=4,
        )


def _draw_shots(ax: Axes, view: ClassView) -> None:
    label = f"known of {plain(view.name)}"
    draw_points(ax, view.shots, s=90, c="black", marker="x", linewidths=2.4, zorder=6, label=label)


def _draw_made(ax: Axes, view: ClassView, method: str) -> None:
    draw_points(ax, view.real, s=18, facecolors="none", edgecolors=GREY, linewidths=0.5, alpha=0.6)
    style = {"s": 34, "c": VERMILLION, "marker": "*", "linewidths": 0.3, "edgecolors": "white", "zorder": 5}
    draw_points(ax, view.made[method], label="synthetic", **style)


def _arrow(ax: Axes, start: Points, end: Points, color: str) -> None:
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.0, "shrinkA": 4, "shrinkB": 4, "alpha": 0.85}
    ax.annotate("", xy=tuple(end), xytext=tuple(start), arrowprops=style, zorder=3)
