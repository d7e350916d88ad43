"""Colours, looks and writing that all figures share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cpaan.data.folders import replacing
from cpaan.errors import InputError
from cpaan.reporting.tables import readable

# Okabe and Ito's colours: told apart by colour-blind readers and, by their lightness, in grey.
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
GREY, VIOLET = "#666666", "#5B4B8A"
COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, VIOLET, GREY)
# Of lengths without a common divisor with each other, so that looks repeat late.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 2)))
# Text in a PDF stays text, in fonts that printers take; and the same figure gives the same bytes.
_WRITING: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "cpaan"}
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


@dataclass(frozen=True)
class Look:
    """How a series is drawn: told apart by its colour, and without it by its marker and its dashes."""

    color: str
    marker: str
    linestyle: Any


def look(number: int) -> Look:
    """Give the look of a series by its number.

    >>> look(0).marker, look(1).marker
    ('o', 's')
    """
    return Look(COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)])


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of the given size in inches, without a window and without touching pyplot's state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(name: str) -> str:
    r"""Give a name that somebody else chose as it shall be drawn: none of it is a formula.

    >>> plain("cost in $")
    'cost in \\$'
    """
    return readable(name).replace("$", r"\$")


def clean_axes(ax: Axes) -> None:
    """Leave what is needed: two spines and a pale grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#E4E7EA", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)


def write_figure(figure: Figure, path: Path, resolution: int = 150) -> Path:
    """Write a figure as the ending of its name says, .png, .pdf or .svg; the file appears whole or not at all."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise InputError(f"{path} must end in {', '.join(f'.{known}' for known in _METADATA)}")
    with replacing(path) as temporary, mpl.rc_context(_WRITING):
        figure.savefig(temporary, format=kind, dpi=resolution, metadata=_METADATA[kind], bbox_inches="tight")
    return path


def write_both(figure: Figure, folder: Path, name: str) -> Sequence[Path]:
    """Write a figure as PDF, for print, and as PNG."""
    return [write_figure(figure, folder / f"{name}.{kind}", resolution=200) for kind in ("pdf", "png")]
