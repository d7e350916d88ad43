"""Figures of runs (accuracy, diversity, losses, neighbourhood, ablation, maps), and of the spiral and the glyphs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import LowShotSplit
from cpaan.evaluation.run_folder import Entry, Interval
from cpaan.evaluation.sample import Indices, Sample
from cpaan.reporting.figure import BLUE, COLORS, GREEN, GREY, ORANGE, VERMILLION, clean_axes, look, new_figure, plain
from cpaan.reporting.maps import FeatureMap
from cpaan.reporting.results import SETTINGS, STEPS, Gain, Results, RunRecord

_TITLES = {"LSL": "LSL: novel classes alone", "GLSL": "GLSL: all classes"}
_SPREAD = 0.03  # between methods, as a share of the distance between two numbers of shots


def accuracy_figure(results: Results, measure: str = "top5") -> Figure:
    """Draw a panel for each setting, a line for each method and an interval for each of its points."""
    figure = new_figure(7.2, 3.1)
    panels = figure.subplots(1, len(SETTINGS), squeeze=False)[0]
    found = results.accuracy(measure)
    for ax, setting in zip(panels, SETTINGS, strict=True):
        for number, entry in enumerate(results.entries):
            points = {k: found[entry, setting, k] for k in results.shots if (entry, setting, k) in found}
            shift = _SPREAD * (number - (len(results.entries) - 1) / 2)
            _draw(
                ax, [results.shots.index(k) + shift for k in points], [*points.values()], number, label(results, entry)
            )
        clean_axes(ax)
        ax.set_ylim(max(ax.get_ylim()[0], 0), min(ax.get_ylim()[1], 101))
        ax.set_title(_TITLES[setting], fontsize=10)
        ax.set_xticks(range(len(results.shots)), [str(k) for k in results.shots])
        ax.set_xlabel("shots K", fontsize=9)
    panels[0].set_ylabel(f"top-{measure.removeprefix('top')} accuracy, %", fontsize=9)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False, handlelength=3.5)
    return figure


def label(results: Results, entry: Entry) -> str:
    """Name a method, with its run where there are several."""
    method, run = entry
    return plain(f"{method}, {run}" if len(results.runs) > 1 else method)


def _draw(ax: Axes, x: list[float], points: list[Interval], number: int, name: str) -> None:
    style = look(number)
    means, halves = [point.mean for point in points], [point.half_width for point in points]
    ax.errorbar(
        x,
        means,
        yerr=halves if np.isfinite(halves).all() else None,  # NaN for a single trial
        color=style.color,
        marker=style.marker,
        linestyle=style.linestyle,
        markersize=4.5,
        linewidth=1.3,
        elinewidth=0.9,
        label=name,
    )


def diversity_figure(results: Results, run: RunRecord, shots: int, measure: str = "top5") -> Figure | None:
    """Draw a panel for each setting and a point for each method of a run that makes examples; None without any."""
    accuracy, diversity = results.accuracy(measure), results.diversity()
    entries = [(method, run.label) for method in run.methods if ((method, run.label), shots) in diversity]
    if not entries:
        return None
    figure = new_figure(7.2, 3.0)
    for ax, setting in zip(figure.subplots(1, len(SETTINGS)), SETTINGS, strict=True):
        for entry in entries:
            style, found = look(results.entries.index(entry)), accuracy.get((entry, setting, shots))
            if found is None:
                continue
            half = found.half_width if found.half_width >= 0 else 0.0  # NaN, of a single trial
            made = diversity[entry, shots].made
            ax.errorbar(
                [made], [found.mean], yerr=[half], color=style.color, marker=style.marker, markersize=7,
                linestyle="none", label=plain(entry[0]),
            )  # fmt: skip
        real = diversity[entries[0], shots].real
        ax.axvline(real, color="black", linestyle=(0, (4, 3)), linewidth=1.1, label="real examples")
        clean_axes(ax)
        ax.set_ylim(max(ax.get_ylim()[0], 0), min(ax.get_ylim()[1], 101))
        most = max(real, *(diversity[entry, shots].made for entry in entries))
        ax.set_xlim(
            left=-0.04 * most, right=1.1 * most
        )  # a generator that repeats itself is at zero, and shall be seen
        ax.set_title(f"{setting}, K = {shots}", fontsize=10)
        ax.set_xlabel("diversity", fontsize=9)
        ax.set_ylabel(f"top-{measure.removeprefix('top')} accuracy, %", fontsize=9)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


COLUMNS = 3


def loss_figure(run: RunRecord) -> Figure | None:
    """Draw a panel for each term of the losses and a line for each method that has it; None without any."""
    terms = list(dict.fromkeys(term for history in run.histories.values() for term in history if term != STEPS))
    if not terms:
        return None
    rows = math.ceil(len(terms) / COLUMNS)
    figure = new_figure(7.2, 1.7 * rows + 0.5)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    signs = {}
    for ax, term in zip(panels, terms, strict=False):
        for method, history in run.histories.items():
            if term in history:
                style = look(list(run.histories).index(method))
                (signs[method],) = ax.plot(
                    history[STEPS], history[term], color=style.color, linestyle=style.linestyle, linewidth=1.1
                )
        clean_axes(ax)
        ax.set_title(term.replace("_", " "), fontsize=9)
    for ax in panels[len(terms) :]:
        ax.set_visible(False)
    figure.supxlabel("training step", fontsize=9)
    names = [plain(name) for name in signs]
    figure.legend(signs.values(), names, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


_LONGEST = 26


def similarity_figure(alpha: NDArray[np.floating], novel: Sequence[str], base: Sequence[str]) -> Figure:
    """Draw α with the names of its classes."""
    # Base classes in the order of the novel class to which they lend most: what belongs together lies together.
    order = np.argsort(alpha.argmax(axis=0), kind="stable")
    figure = new_figure(2.4 + 0.16 * len(base), 1.4 + 0.145 * len(novel))
    ax = figure.subplots()
    # One hue from light to dark, which prints in grey as it is.
    image = ax.imshow(np.sqrt(alpha[:, order]), cmap="Blues", aspect="equal", vmin=0)
    ax.set_yticks(range(len(novel)), [plain(_clipped(name)) for name in novel], fontsize=7)
    names = [plain(_clipped(base[column])) for column in order]
    ax.set_xticks(range(len(base)), names, fontsize=7, rotation=60, ha="left", rotation_mode="anchor")
    ax.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.set_ylabel("novel class", fontsize=8)
    bar = figure.colorbar(image, ax=ax, shrink=0.6)
    top = float(np.sqrt(alpha.max()))
    bar.set_ticks([0, top / 2, top], labels=[f"{value**2:.2g}" for value in (0, top / 2, top)], fontsize=7)
    bar.set_label("α", fontsize=8)
    return figure


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def ablation_figure(gains: Sequence[Gain]) -> Figure:
    """Draw the gain of every strategy over none, against shots; a row for each method and representation."""
    rows = list(dict.fromkeys((gain["method"], gain["representation"]) for gain in gains))
    strategies = list(dict.fromkeys(gain["strategy"] for gain in gains))
    shots = sorted({gain["shots"] for gain in gains})
    figure = new_figure(7.2, 0.6 + 2.4 * len(rows))
    panels = figure.subplots(len(rows), len(SETTINGS), squeeze=False)
    for line, (method, representation) in zip(panels, rows, strict=True):
        for ax, setting in zip(line, SETTINGS, strict=True):
            ax.axhline(0, color="black", linewidth=0.8)
            for number, strategy in enumerate(strategies):
                wanted = (method, representation, setting, strategy)
                own = [g for g in gains if (g["method"], g["representation"], g["setting"], g["strategy"]) == wanted]
                style, shift = look(number), 0.06 * (number - (len(strategies) - 1) / 2)
                ax.errorbar(
                    [shots.index(g["shots"]) + shift for g in own],
                    [g["mean"] for g in own],
                    yerr=[g["half_width"] or 0.0 for g in own],
                    color=style.color,
                    marker=style.marker,
                    linestyle=style.linestyle,
                    markersize=4.5,
                    linewidth=1.3,
                    label=plain(strategy),
                )
            clean_axes(ax)
            ax.set_title(f"{setting}, {plain(method)}, {plain(representation)}", fontsize=9)
            ax.set_xticks(range(len(shots)), [str(k) for k in shots])
            ax.set_xlabel("shots K", fontsize=9)
        line[0].set_ylabel("gain, points", fontsize=9)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False, handlelength=3.5)
    return figure


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


def glyph_figure(shots: FeatureSet, made: Mapping[str, FeatureSet], characters: Sequence[str], number: int) -> Figure:
    """Draw a row for each character: its only example, then `number` synthetic ones of each generator."""
    figure = new_figure(0.62 * (2 + number * len(made)), 0.62 * len(characters) + 0.6)
    panels = figure.subplots(1, 1 + len(made), width_ratios=[1, *([number] * len(made))], squeeze=False)[0]
    real = [_row(shots.of_class(name), 1) for name in characters]
    panels[0].imshow(np.concatenate(real), cmap="gray_r", vmin=0, vmax=1)
    panels[0].set_title("real", fontsize=9)
    for ax, (name, images) in zip(panels[1:], made.items(), strict=True):
        rows = [_row(images.of_class(character), number) for character in characters]
        ax.imshow(np.concatenate(rows), cmap="gray_r", vmin=0, vmax=1)
        ax.set_title(f"imagined by {name}", fontsize=9)
    for ax in panels:
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def _row(images: NDArray[np.floating], number: int) -> NDArray[np.floating]:
    side = round(images.shape[1] ** 0.5)
    return np.concatenate([image.reshape(side, side) for image in images[:number]], axis=1)


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
