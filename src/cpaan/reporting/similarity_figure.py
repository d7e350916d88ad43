"""The neighbourhood α as a heat map: which base class lends how much to which novel class."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cpaan.reporting.figure import new_figure, plain

_LONGEST = 26


def similarity_figure(alpha: NDArray[np.floating], novel: Sequence[str], base: Sequence[str]) -> Figure:
    """Draw α with the names of its classes.

    Parameters
    ----------
    alpha : of shape (novel classes, base classes)
    novel, base : names of rows and columns
    """
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
