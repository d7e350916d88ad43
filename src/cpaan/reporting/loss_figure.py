"""Losses during training."""

import math

from matplotlib.figure import Figure

from cpaan.reporting.figure import clean_axes, look, new_figure, plain
from cpaan.reporting.runs import STEPS, RunRecord

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
