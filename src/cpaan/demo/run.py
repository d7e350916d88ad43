"""The whole demonstration: two pictures and a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cpaan.augmenters.cpaan import CPAAN
from cpaan.data.atomic import write_atomically
from cpaan.data.csv_text import csv_text
from cpaan.data.spiral import make_spiral
from cpaan.demo.glyphs import (
    IMAGINED,
    SHOTS,
    SHOWN,
    TRIALS,
    Figures,
    GlyphTask,
    as_in_the_paper,
    fit_glyphs,
    glyph_task,
    imagined,
    measure,
)
from cpaan.demo.spiral import spiral_panels
from cpaan.errors import InputError
from cpaan.evaluation.intervals import mean_interval
from cpaan.reporting.figure import write_both
from cpaan.reporting.glyphs import glyph_figure
from cpaan.reporting.spiral import spiral_figure
from cpaan.reporting.table import markdown_table
from cpaan.threads import limited_threads
from cpaan.training.trainer import Bars
from cpaan.training.variant import VARIANTS

Shown = TypeVar("Shown")
BEST = "ccov-gan"
WRITTEN = ("spiral.png", "spiral.pdf", "glyphs.png", "glyphs.pdf", "table.md", "table.csv")


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration made."""

    table: str
    written: Sequence[Path]


def run_demo(folder: Path, seed: int, bars: Bars) -> DemoResult:
    """Run the demonstration and write `spiral` and `glyphs` as PNG and PDF, `table.md` and `table.csv`.

    Parameters
    ----------
    folder : made if it is missing
    seed : decides every random draw
    bars : shows the progress
    """
    _make_folder(folder)
    # Layers are so small that a second thread gains little, and on a busy machine it makes the first one wait.
    with limited_threads(1):
        table = show_glyphs(folder, seed, bars)
        show_spiral(folder, seed, bars)
    return DemoResult(table, [folder / name for name in WRITTEN])


def show_glyphs(folder: Path, seed: int, bars: Bars) -> str:
    """Write the picture of imagined letters and the table of what they are worth."""
    task = glyph_task(seed)
    augmenters = fit_glyphs(task, seed, bars)
    of_paper = {variant: as_in_the_paper(augmenter) for variant, augmenter in augmenters.items()}
    shots, made = imagined(task, of_paper, seed)
    write_both(glyph_figure(shots, titled(made), SHOWN, IMAGINED), folder, "glyphs")
    methods = {**titled(of_paper), f"{VARIANTS[BEST].title}, centre estimated": augmenters[BEST]}
    header, rows = table_rows(measure_all(task, methods, seed, bars.count("glyphs, classifying", "methods")))
    table = _table_text(header, rows)
    write_atomically(folder / "table.md", f"{table}\n".encode())
    write_atomically(folder / "table.csv", csv_text(header, rows).encode())
    return table


def show_spiral(folder: Path, seed: int, bars: Bars) -> None:
    """Write the picture of what every variant makes of the spiral."""
    split = make_spiral(random_state=seed)
    write_both(spiral_figure(split, titled(spiral_panels(split, seed, bars))), folder, "spiral")


def measure_all(
    task: GlyphTask, augmenters: dict[str, CPAAN], seed: int, tell: Callable[[int, int], None]
) -> dict[str, Figures]:
    """Measure a classifier without augmentation and with every augmenter, which have names to show."""
    methods: list[tuple[str, CPAAN | None]] = [("no augmentation", None), *augmenters.items()]
    figures = {}
    for done, (name, augmenter) in enumerate(methods):
        tell(done, len(methods))
        figures[name] = measure(task, augmenter, seed)
    tell(len(methods), len(methods))
    return figures


def titled(by_variant: dict[str, Shown]) -> dict[str, Shown]:
    """Name what belongs to variants as the paper writes them."""
    return {VARIANTS[variant].title: shown for variant, shown in by_variant.items()}


def table_rows(figures: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """Lay out accuracies (mean over trials ± half of the 95 % interval), diversity and covariance distance."""
    header = ["method", *(f"{setting}, K={k}" for setting in ("LSL", "GLSL") for k in SHOTS)]
    header += ["diversity", "covariance distance"]
    rows = []
    for name, found in figures.items():
        cells = [str(mean_interval(found.accuracy[setting, k])) for setting in ("LSL", "GLSL") for k in SHOTS]
        if found.covariance_distance:
            spread = [f"{found.diversity:.2f}", f"{found.covariance_distance:.2f}"]
        else:
            spread = [f"{found.diversity:.2f} (real)", "–"]
        rows.append([name, *cells, *spread])
    return header, rows


def _table_text(header: list[str], rows: list[list[str]]) -> str:
    return (
        "Characters from pixels, top-1 accuracy in percent of a linear classifier: novel characters alone (LSL) and\n"
        f"all characters (GLSL) with K real examples of each novel one; mean of {TRIALS} trials and 95 % interval.\n\n"
        + markdown_table(header, rows)
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error
