"""The command that writes a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing
from cpaan.errors import InputError
from cpaan.extras import missing_extra


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of benchmark runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the page.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as PDF and PNG as well; needs cpaan[report].")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Method to take differences to; the first by default.")] = None,
    measure: Annotated[str, typer.Option(help="top5 or top1, the one that is shown first.")] = "top5",
    images: Annotated[
        Path | None, typer.Option(help="Images of the bank (folders or tars): shows them when a point is pointed at.")
    ] = None,
    pixels: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH, where features are grey pixels: shows them as pictures.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about one or more runs that opens without a network: table, figures, how it was made.

    Example: cpaan report runs/bank -o report.html --figures figures
    """
    if measure not in ("top1", "top5"):
        raise InputError(f"--measure must be top1 or top5, not {measure!r}")
    if images is not None and pixels is not None:
        raise InputError("give --images or --pixels, not both: a point shows one picture")

    from cpaan.data.folders import require_writable_file
    from cpaan.reporting.page import write_page
    from cpaan.reporting.results import Results, read_runs
    from cpaan.reporting.thumbnails import parse_pixels

    require_writable_file(output)
    write_figures = None if figures is None else _figure_writer()
    shape = None if pixels is None else parse_pixels(pixels)
    doing("reading the runs")
    results = Results.of(read_runs(runs), reference)
    doing(f"writing {output}")
    size = write_page(results, output, measure=measure, images=images, pixels=shape)
    text, written = f"{output}: {size / 1e6:.1f} MB", []
    if write_figures is not None and figures is not None:
        doing("drawing the figures")
        written = write_figures(results, figures, measure)
        text += f"\n{figures}: {len(written) // 2} figures, each as PDF and PNG"
    answer(text, {"output": output, "bytes": size, "figures": written}, as_json)


def _figure_writer() -> Callable[[Any, Path, str], list[Path]]:
    try:
        from cpaan.reporting.run_figures import write_run_figures
    except ImportError as error:
        raise missing_extra("matplotlib", "--figures") from error
    return write_run_figures
