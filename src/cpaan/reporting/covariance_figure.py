"""Why covariance matters with one example, drawn from a run (after the paper's Figure 4).

(a) one example says nothing of how its class varies: all these covariances, of base classes of the same bank, fit it;
(b) related classes vary alike, so that theirs are a good guess.
"""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cpaan.reporting.class_view import ClassView, draw_ellipse, draw_points
from cpaan.reporting.figure import GREY, VERMILLION, new_figure, plain
from cpaan.reporting.translation_figure import BASE_STYLES

CANDIDATES = 6


def covariance_figure(view: ClassView, method: str) -> Figure:
    """Draw candidates for the covariance of a class of which one example is known, and those of related classes.

    Parameters
    ----------
    view : of how a novel class and base classes vary
    method : that preserves covariance, by its name in the run
    """
    figure = new_figure(7.6, 4.2)
    many, few = figure.subplots(1, 2, sharex=True, sharey=True)
    shot = view.shots.mean(0)
    dashes = (0, (4, 2))
    for points in view.others[:CANDIDATES]:
        draw_ellipse(many, points, at=shot, fill=False, edgecolor=GREY, linewidth=1.1, linestyle=dashes)
    many.set_title("(a) one example fits them all", fontsize=10)
    handles = [Line2D([], [], color=GREY, linestyle=dashes, label="as unrelated base classes vary")]
    for (color, _), points, name in zip(BASE_STYLES, view.base, view.base_names, strict=False):
        draw_ellipse(few, points, at=shot, fill=False, edgecolor=color, linewidth=1.2, linestyle=dashes)
        handles.append(Line2D([], [], color=color, linestyle=dashes, label=f"as {plain(name)}, related, varies"))
    draw_points(few, view.made[method], s=26, c=VERMILLION, marker="*", linewidths=0.3, edgecolors="white", zorder=3)
    draw_ellipse(few, view.made[method], fill=False, edgecolor=VERMILLION, linewidth=1.6)
    few.set_title(f"(b) related classes give a guess: {plain(method)}", fontsize=10)
    for ax in (many, few):
        draw_points(ax, view.real, s=16, facecolors="none", edgecolors="black", linewidths=0.5, alpha=0.5)
        draw_ellipse(ax, view.real, fill=False, edgecolor="black", linewidth=1.2, linestyle=(0, (1, 1.5)))
        draw_points(ax, view.shots, s=90, c="black", marker="x", linewidths=2.4, zorder=6)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal")
        ax.autoscale_view()
    handles += [
        Line2D([], [], color=VERMILLION, marker="*", label="synthetic"),
        Line2D([], [], color="black", marker="o", fillstyle="none", linestyle=(0, (1, 1.5)), label="unseen examples"),
        Line2D([], [], color="black", marker="x", linestyle="none", label=f"known of {plain(view.name)}"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure
