"""The gain of neighbourhood batch sampling, as the paper's Figure 5a shows it."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from cpaan.reporting.ablation import Gain
from cpaan.reporting.figure import clean_axes, look, new_figure, plain
from cpaan.reporting.results import SETTINGS


def ablation_figure(gains: Sequence[Gain]) -> Figure:
    """Draw the gain of every strategy over none, against shots; a row for each method and representation.

    Parameters
    ----------
    gains : of one measure, see `cpaan.reporting.ablation.neighborhood_gains`
    """
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
