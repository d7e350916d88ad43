"""The concept figures, drawn from a run: one novel class and its nearest base classes in the plane.

`translation_figure` (after the paper's Figure 2): (a) one known example of a novel class among base classes; (b)
Feature Hallucination applies to it what leads from one base example to another; (c) CP-AAN translates examples of
related base classes.

`covariance_figure` (after the paper's Figure 4): (a) one example does not show how its class varies: the covariances
of all base classes fit it; (b) related classes vary alike, so theirs are a good guess.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from cpaan.errors import InputError
from cpaan.evaluation.sample import RealSample, Sample
from cpaan.reporting.figure import BLUE, GREEN, GREY, ORANGE, VERMILLION, new_figure, plain

Points = NDArray[np.float64]
DEVIATIONS = 2.0  # of an ellipse: what it encloses of a Gaussian in the plane is 86 %


@dataclass(frozen=True, eq=False)
class ClassView:
    """Projections of a novel class and of base classes on a plane."""

    name: str  # of the novel class
    base_names: tuple[str, ...]  # of the base classes nearest to it
    real: Points  # real, shots: points of the novel class
    shots: Points
    base: tuple[Points, ...]  # points of each of these base classes
    others: tuple[Points, ...]  # points of base classes that are nearest to other novel classes
    made: dict[str, Points]  # points that each method made


def class_view(sample: Sample, name: str | None = None) -> ClassView:
    """Look at one novel class and where its nearest base classes lie: on the plane in which they differ most."""
    index = _index(sample.real, name)
    own, related, _ = _parts(sample.real, index)
    shown = np.concatenate([own, *related])
    origin = shown.mean(0)
    return _projected(sample, index, _plane(shown - origin), origin, centred=False)


def variation_view(sample: Sample, name: str | None = None) -> ClassView:
    """Look at how one novel class and base classes vary: on the plane in which all of them do so most.

    The origin is the centre of the novel class; base classes are moved there.
    """
    index = _index(sample.real, name)
    own, related, others = _parts(sample.real, index)
    deviations = [(part - part.mean(0)) / len(part) ** 0.5 for part in (own, *related, *others)]
    return _projected(sample, index, _plane(np.concatenate(deviations)), own.mean(0), centred=True)


def _parts(real: RealSample, index: int) -> tuple[Points, list[Points], list[Points]]:
    """Give the features of a novel class, of the base classes nearest to it, and of the other base classes."""
    near = real.nearest[index]
    far = [base for base in range(len(real.base_classes)) if base not in near]
    related, others = (
        [real.base[real.base_labels == base].astype(np.float64) for base in part] for part in (near, far)
    )
    return real.real[real.real_labels == index].astype(np.float64), related, others


def _plane(deviations: Points) -> Points:
    _, _, directions = np.linalg.svd(deviations, full_matrices=False)
    plane: Points = directions[:2].T
    return plane


def _projected(sample: Sample, index: int, plane: Points, origin: Points, *, centred: bool) -> ClassView:
    real = sample.real
    own, related, others = _parts(real, index)

    def flat(features: NDArray[np.floating]) -> Points:
        places: Points = (features - origin) @ plane
        return places

    def moved(features: Points) -> Points:
        places = flat(features)
        return places - places.mean(0) if centred else places

    return ClassView(
        name=real.classes[index],
        base_names=tuple(real.base_classes[base] for base in real.nearest[index]),
        real=flat(own),
        shots=flat(real.shots[real.shot_labels == index]),
        base=tuple(map(moved, related)),
        others=tuple(map(moved, others)),
        made={method: flat(part.made[part.made_labels == index]) for method, part in sample.made.items()},
    )


def draw_points(ax: Axes, points: Points, **style: Any) -> None:
    """Draw points in the style of `Axes.scatter`."""
    ax.scatter(points[:, 0], points[:, 1], **style)


def draw_ellipse(ax: Axes, points: Points, *, at: Points | None = None, **style: Any) -> None:
    """Draw the covariance of points as an ellipse about their mean, or about another place."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    width, height = 2 * DEVIATIONS * np.sqrt(np.maximum(values, 0))
    x, y = points.mean(0) if at is None else at
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    ax.add_patch(Ellipse((float(x), float(y)), float(width), float(height), angle=angle, **style))


def _strangeness(real: RealSample, index: int) -> float:
    """Measure how far the mean of the shots of a class is from that of its examples, by how much these differ."""
    own = real.real[real.real_labels == index].astype(np.float64)
    away = real.shots[real.shot_labels == index].mean(0) - own.mean(0)
    return float(np.linalg.norm(away) / (np.linalg.norm(own.std(0)) + 1e-12))


def _index(real: RealSample, name: str | None) -> int:
    if name is None:
        return int(np.argmin([_strangeness(real, index) for index in range(len(real.classes))]))
    if name not in real.classes:
        raise InputError(f"the sample has no class {name!r}; it has {', '.join(real.classes)}")
    return real.classes.index(name)


BASE_STYLES = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "^"))
ARROWS = 6
_PALE, _STRONG = 0.3, 0.85


def translation_figure(view: ClassView, hallucination: str, translation: str) -> Figure:
    """Draw the known, what Feature Hallucination makes of it, and what CP-AAN makes of it."""
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


CANDIDATES = 6


def covariance_figure(view: ClassView, method: str) -> Figure:
    """Draw candidates for the covariance of a class of which one example is known, and those of related classes."""
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
