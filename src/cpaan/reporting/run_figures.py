"""All figures that runs give, written to a folder."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from cpaan.errors import InputError
from cpaan.evaluation.sample import Sample
from cpaan.reporting.class_figures import class_view, covariance_figure, translation_figure, variation_view
from cpaan.reporting.figure import write_both
from cpaan.reporting.figures import (
    ablation_figure,
    accuracy_figure,
    diversity_figure,
    loss_figure,
    map_figure,
    similarity_figure,
)
from cpaan.reporting.results import Results, RunRecord, neighborhood_gains

HALLUCINATIONS = ("feature-hallucination", "feature-imagination")
TRANSLATIONS = ("ccov-gan", "cdeli-gan", "ccyc-gan", "c-gan")
Named = Iterator[tuple[str, Figure | None]]


def write_run_figures(results: Results, folder: Path, measure: str = "top5") -> list[Path]:
    """Write every figure that the runs have the data for, as PDF and PNG."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error
    written: list[Path] = []
    for name, figure in _figures(results, measure):
        if figure is not None:
            written += write_both(figure, folder, name)
    return written


def _figures(results: Results, measure: str) -> Named:
    yield "accuracy", accuracy_figure(results, measure)
    gains = neighborhood_gains(results.runs, measure)
    if gains:
        yield "neighborhood-ablation", ablation_figure(gains)
    for run in results.runs:
        prefix = "" if len(results.runs) == 1 else f"{run.path.resolve().name}-"
        for name, figure in _figures_of(results, run, measure):
            yield prefix + name, figure


def _figures_of(results: Results, run: RunRecord, measure: str) -> Named:
    fewest = min(row["shots"] for row in run.rows)
    yield "diversity", diversity_figure(results, run, fewest, measure)
    yield "losses", loss_figure(run)
    if run.sample is None or run.feature_map is None:
        return
    yield "maps", map_figure(run.sample, run.feature_map)
    for number, part in enumerate(run.alphas.values()):
        name = "neighborhood" + (f"-{number + 1}" if len(run.alphas) > 1 else "")
        yield name, similarity_figure(part.alpha, part.alpha_novel, part.alpha_base)
    yield from _concepts(run.sample)


def _concepts(sample: Sample) -> Named:
    hallucination = next((name for name in HALLUCINATIONS if name in sample.made), None)
    translation = next((name for name in TRANSLATIONS if name in sample.made), None)
    if translation is None:
        return
    yield "concept-covariance", covariance_figure(variation_view(sample), translation)
    if hallucination is not None:
        yield "concept-translation", translation_figure(class_view(sample), hallucination, translation)
