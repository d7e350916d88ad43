"""Accuracy against diversity, with the diversity of real examples marked (the paper's Figure 5b)."""

from matplotlib.figure import Figure

from cpaan.reporting.figure import clean_axes, look, new_figure, plain
from cpaan.reporting.results import SETTINGS, Results
from cpaan.reporting.runs import RunRecord


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
