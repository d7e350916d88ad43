"""Accuracy against shots, for every method, with intervals."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpaan.evaluation.intervals import Interval
from cpaan.evaluation.summary import Entry
from cpaan.reporting.figure import clean_axes, look, new_figure, plain
from cpaan.reporting.results import SETTINGS, Results

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
