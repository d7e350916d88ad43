"""What the page of a report shows, as plain data for its scripts: tables, maps, a headline, and how to repeat a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.evaluation.run_folder import PUBLISHED, SHOTS, Entry, Interval, Key
from cpaan.evaluation.sample import Indices, RealSample
from cpaan.methods import METHODS
from cpaan.reporting.results import MEASURES, SETTINGS, STEPS, Results, RunRecord, neighborhood_gains, ranks
from cpaan.reporting.thumbnails import Album, ClassImages, pixel_pictures

_STATED = ("recipe", "device")


def bench_command(run: RunRecord) -> str:
    """Give the command that makes a run again; where the files of the data are not known, a word stands for them."""
    config, origin = run.config, run.origin
    words = ["cpaan", "bench", origin.get("bank") or "BANK", "--setup", origin.get("setup") or "SETUP"]
    words += [part for name in ("test", "part") if origin.get(name) is not None for part in _option(name, origin[name])]
    words += [part for path in origin.get("splits") or () for part in _option("splits", path)]
    words += _option("methods", ",".join(config["methods"])) + _option("shots", ",".join(map(str, config["shots"])))
    words += [part for name in ("trials", "classifier", "normalize", "seed") for part in _option(name, config[name])]
    settings = dict(config.get("settings") or {})
    words += [part for name in _STATED if name in settings for part in _option(name, settings.pop(name))]
    words += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    words += _option("representation", config["representation"])
    return shlex.join([*map(str, words), "-o", "runs/again"])


def install_command(run: RunRecord) -> str:
    """Give the command that installs the libraries in the versions that a run was made with."""
    # Without what a build adds to its version, such as +cpu: package indexes have none of it.
    wanted = [f"{name}=={version.partition('+')[0]}" for name, version in run.versions.items()]
    return shlex.join(["pip", "install", *wanted])


def _option(name: str, value: Any) -> list[str]:
    return [f"--{name}", str(value)]


Data = dict[str, Any]
Pictures = Sequence[int | None] | None


def map_data(run: RunRecord, album: Album, images: Path | None, pixels: tuple[int, int] | None) -> Data:
    """Give the points of a run's map; `run` has a sample."""
    found = run.feature_map
    assert run.sample is not None
    assert found is not None
    real = run.sample.real
    class_images = None if images is None else ClassImages(images, real, album)

    def drawn(features: NDArray[np.floating]) -> Pictures:
        return None if pixels is None else pixel_pictures(features, pixels, album)

    own = drawn(real.real[found.kept]) if class_images is None else class_images.of_real(found.kept.tolist())
    return {
        "run": run.label,
        "shots_per_class": real.shots_per_class,
        # A bank keeps no names of images, so that which image is whose follows from their order alone.
        "picture_note": "" if class_images is None else "its image, by the order of the test images",
        "classes": [_class(real, index, class_images) for index in range(len(real.classes))],
        "real": _points(*found.real, own),
        "shots": _points(*found.shots, drawn(real.shots)),
        "made": [
            {"method": name, **_points(*points, drawn(run.sample.made[name].made[found.kept_made[name]]))}
            for name, points in found.made.items()
        ],
    }


def _class(real: RealSample, index: int, images: ClassImages | None) -> Data:
    pairs = zip(real.nearest[index], real.distances[index], strict=True)
    return {
        "name": real.classes[index],
        "nearest": [[real.base_classes[base], float(f"{distance:.3g}")] for base, distance in pairs],
        "pictures": [] if images is None else images.of_class[index],
    }


def _points(places: NDArray[np.float64], labels: Indices, pictures: Pictures) -> Data:
    return {
        "x": np.round(places[:, 0], 4).tolist(),
        "y": np.round(places[:, 1], 4).tolist(),
        "class": labels.tolist(),
        "pictures": None if pictures is None else list(pictures),
    }


_SPACES = {"LSL": "among novel classes", "GLSL": "among all classes"}


def headline(results: Results, measure: str = "top5") -> list[str]:
    """Give a sentence or two: the best method with the fewest shots and what it gains, or the best of several runs."""
    if len(results.runs) == 1:
        return [_of_run(results, results.runs[0], measure)]
    return [_of_several(results, measure)]


def _of_several(results: Results, measure: str) -> str:
    """Name the best of all runs, for readers who will look into the table for the rest."""
    accuracy, shots = results.accuracy(measure), results.shots[0]
    parts = []
    for setting in SETTINGS:
        found = {entry: accuracy[key] for entry in results.entries if (key := (entry, setting, shots)) in accuracy}
        if found:
            method, label = max(found, key=lambda entry: found[entry].mean)
            parts.append(f"{_SPACES[setting]} it is {method} on {label} with {found[method, label]} %")
    waiting = sum(not run.finished for run in results.runs)
    unfinished = f" {waiting} of the runs not finished yet." if waiting else ""
    return (
        f"{len(results.runs)} runs are compared. The highest top-{measure.removeprefix('top')} accuracy with {shots} "
        f"example{'s' if shots > 1 else ''} of each novel class: {'; '.join(parts)}.{unfinished}"
    )


def _of_run(results: Results, run: RunRecord, measure: str) -> str:
    shots = min(row["shots"] for row in run.rows)
    accuracy, differences = results.accuracy(measure), results.differences(measure)
    parts = []
    for setting in SETTINGS:
        keys = {method: ((method, run.label), setting, shots) for method in run.methods}
        found = {method: accuracy[key] for method, key in keys.items() if key in accuracy}
        if not found:
            continue
        best = max(found, key=lambda method: found[method].mean)
        gain = differences.get(((best, run.label), setting, shots))
        parts.append(f"{_SPACES[setting]} {best} reaches {found[best]} %{_gain(gain, results.reference)}")
    unfinished = "" if run.finished else " The run is not finished: some cells are missing."
    known = f"With {shots} example{'s' if shots > 1 else ''} of each novel class on {run.label}"
    return f"{known}, {'; '.join(parts)} (top-{measure.removeprefix('top')}, {_trials(run)}).{unfinished}"


def _gain(gain: Interval | None, reference: str) -> str:
    if gain is None:
        return ""
    if not abs(gain.mean) > gain.half_width:  # also for a single trial, whose interval is not known
        return f", not told apart from {reference} ({gain.mean:+.1f} points)"
    return f", {abs(gain.mean):.1f} points {'above' if gain.mean > 0 else 'below'} {reference}"


def _trials(run: RunRecord) -> str:
    trials = run.config["trials"]
    return f"mean of {trials} trials with 95 % intervals" if trials > 1 else "one trial"


def page_data(
    results: Results,
    measure: str = "top5",
    images: Path | None = None,
    pixels: tuple[int, int] | None = None,
) -> Data:
    """Gather all that a page shows."""
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
