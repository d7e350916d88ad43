"""What every figure has in common: colours that colour-blind readers can tell apart, and how it is written."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cpaan.data.atomic import replacing

# Okabe and Ito's colours: told apart by colour-blind readers and, by their lightness, in grey.
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of the given size in inches, without a window and without touching pyplot's state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path, resolution: int = 150) -> Path:
    """Write a figure as PNG; the file appears whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=resolution)
    return path
