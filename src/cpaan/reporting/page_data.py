"""What the page of a report shows, as plain data: the page's scripts draw it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpaan.evaluation.intervals import Interval
from cpaan.evaluation.published import PUBLISHED, SHOTS
from cpaan.evaluation.summary import Entry, Key
from cpaan.methods import METHODS
from cpaan.reporting.ablation import neighborhood_gains
from cpaan.reporting.headline import headline
from cpaan.reporting.page_maps import map_data
from cpaan.reporting.reproduction import bench_command, install_command
from cpaan.reporting.results import MEASURES, Results, ranks
from cpaan.reporting.runs import STEPS, RunRecord
from cpaan.reporting.thumbnails import Album

Data = dict[str, Any]


def page_data(
    results: Results,
    measure: str = "top5",
    images: Path | None = None,
    pixels: tuple[int, int] | None = None,
) -> Data:
    """Gather all that a page shows.

    Parameters
    ----------
    results : of one or more runs
    measure : the one that is shown first
    images : where the images of the bank are, for pictures on the map
    pixels : height and width of features that are pixels, for the same
    """
    album = Album()
    maps = [map_data(run, album, images, pixels) for run in results.runs if run.sample is not None]
    return {
        "summary": headline(results, measure),
        "measure": measure,
        "reference": results.reference,
        "methods": {name: METHODS[name].summary for name, _ in results.entries if name in METHODS},
        "table": _table(results),
        "diversity": _diversity(results),
        "maps": maps,
        "pictures": album.pictures,
        "losses": [_losses(run) for run in results.runs if run.histories],
        "alphas": [each for run in results.runs for each in _alphas(run)],
        "ablation": [gain for measure in MEASURES for gain in neighborhood_gains(results.runs, measure)],
        "published": {"shots": SHOTS, "rows": PUBLISHED},
        "runs": [_provenance(run) for run in results.runs],
    }


def _table(results: Results) -> Data:
    return {
        "columns": [{"setting": setting, "shots": shots} for setting, shots in results.columns],
        "entries": [{"method": method, "run": label} for method, label in results.entries],
        "measures": {measure: _measure(results, measure) for measure in MEASURES},
    }


def _measure(results: Results, measure: str) -> Data:
    accuracy, differences = results.accuracy(measure), results.differences(measure)
    columns = []
    for setting, shots in results.columns:
        keys: list[Key] = [(entry, setting, shots) for entry in results.entries]
        found = [accuracy.get(key) for key in keys]
        columns.append(
            {
                "accuracy": [_pair(interval) for interval in found],
                "difference": [_pair(differences.get(key)) for key in keys],
                "rank": ranks([None if interval is None else interval.mean for interval in found]),
            }
        )
    return {"columns": columns}


def _pair(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    # NaN, the interval of a single trial, is nothing that JSON has.
    return [round(interval.mean, 3), round(interval.half_width, 3) if interval.half_width >= 0 else None]


def _diversity(results: Results) -> list[Data]:
    def place(entry: Entry) -> int:
        return results.entries.index(entry)

    return [
        {"entry": place(entry), "run": entry[1], "shots": shots, "made": found.made, "real": found.real}
        for (entry, shots), found in results.diversity().items()
    ]


def _losses(run: RunRecord) -> Data:
    terms: dict[str, list[Data]] = {}
    for method, history in run.histories.items():
        for term, values in history.items():
            if term != STEPS:
                line = {"method": method, "steps": history[STEPS], "values": _short(values)}
                terms.setdefault(term, []).append(line)
    return {"run": run.label, "terms": terms}


def _short(values: Sequence[float]) -> list[float | None]:
    """Give four digits, and nothing for what is not finite."""
    return [float(f"{value:.4g}") if abs(value) < float("inf") else None for value in values]


def _alphas(run: RunRecord) -> list[Data]:
    return [
        {
            "run": run.label,
            "method": method,
            "novel": part.alpha_novel,
            "base": part.alpha_base,
            "values": [_short(row) for row in part.alpha.tolist()],
        }
        for method, part in run.alphas.items()
    ]


def _provenance(run: RunRecord) -> Data:
    return {
        "label": run.label,
        "folder": run.path.resolve().name,
        "finished": run.finished,
        "config": run.config,
        "versions": run.versions,
        "origin": run.origin,
        "command": bench_command(run),
        "install": install_command(run),
        "has_sample": run.sample is not None,
    }
