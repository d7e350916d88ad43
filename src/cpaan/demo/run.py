"""The whole demonstration: two pictures and a table."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cpaan.augmenters.named import CPAAN
from cpaan.data.folders import csv_text, write_atomically
from cpaan.data.toys import make_spiral
from cpaan.demo.glyphs import (
    CHANGES,
    IMAGINED,
    SHOTS,
    SHOWN,
    TRIALS,
    Figures,
    as_in_the_paper,
    fit_glyphs,
    glyph_task,
    imagined,
    measure,
)
from cpaan.demo.processes import PROCESSES, Submit, side_by_side
from cpaan.demo.spiral import spiral_points
from cpaan.errors import InputError
from cpaan.evaluation.run_folder import mean_interval
from cpaan.gan.objective import VARIANTS
from cpaan.reporting.figure import write_both
from cpaan.reporting.figures import SpiralPanel, glyph_figure, spiral_figure
from cpaan.reporting.tables import markdown_table
from cpaan.training.progress import Bars

Shown = TypeVar("Shown")
Say = Callable[[str], None]
BEST = "ccov-gan"
WRITTEN = ("spiral.png", "spiral.pdf", "glyphs.png", "glyphs.pdf", "table.md", "table.csv")


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration made."""

    table: str
    written: Sequence[Path]


def run_demo(folder: Path, seed: int, bars: Bars, say: Say, processes: int = PROCESSES) -> DemoResult:
    """Run the demonstration and write `spiral` and `glyphs` as PNG and PDF, `table.md` and `table.csv`."""
    _make_folder(folder)
    with side_by_side(bars, processes) as submit:
        # What takes longest is begun first, so that in the end no process waits long for another.
        points = {variant: submit(spiral_points, variant, seed) for variant in reversed(VARIANTS)}
        trained = {variant: submit(fit_glyphs, variant, seed) for variant in reversed(CHANGES)}
        show_spiral(folder, seed, {variant: SpiralPanel(*points[variant]()) for variant in VARIANTS})
        say(f"Written: {folder / 'spiral.png'}")
        table = show_glyphs(folder, seed, submit, {variant: trained[variant] for variant in CHANGES}, say)
    return DemoResult(table, [folder / name for name in WRITTEN])


def show_spiral(folder: Path, seed: int, panels: dict[str, SpiralPanel]) -> None:
    """Write the picture of what every variant makes of the spiral."""
    write_both(spiral_figure(make_spiral(random_state=seed), titled(panels)), folder, "spiral")


def show_glyphs(folder: Path, seed: int, submit: Submit, trained: dict[str, Callable[[], bytes]], say: Say) -> str:
    """Write the picture of imagined letters and the table of what they are worth."""
    found = {"no augmentation": submit(measure, "no augmentation", None, seed)}
    augmenters: dict[str, CPAAN] = {}
    of_paper: dict[str, CPAAN] = {}

    def begin(title: str, augmenter: CPAAN) -> None:
        found[title] = submit(measure, title, pickle.dumps(augmenter), seed)

    for variant, wait in trained.items():
        augmenters[variant] = pickle.loads(wait())
        of_paper[variant] = as_in_the_paper(augmenters[variant])
        begin(VARIANTS[variant].title, of_paper[variant])
    begin(f"{VARIANTS[BEST].title}, centre estimated", augmenters[BEST])
    shots, made = imagined(glyph_task(seed), of_paper, seed)
    write_both(glyph_figure(shots, titled(made), SHOWN, IMAGINED), folder, "glyphs")
    say(f"Written: {folder / 'glyphs.png'}")
    header, rows = table_rows({title: wait() for title, wait in found.items()})
    table = _table_text(header, rows)
    write_atomically(folder / "table.md", f"{table}\n".encode())
    write_atomically(folder / "table.csv", csv_text(header, rows).encode())
    return table


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
