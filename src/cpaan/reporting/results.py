"""What a report reads from runs: accuracies, differences, ranks, diversity, and the gain of neighbourhood sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cpaan.data.folders import CONFIG, read_config
from cpaan.data.untrusted import plain_name
from cpaan.errors import InputError
from cpaan.evaluation.run_folder import (
    MODELS,
    Entry,
    Interval,
    Key,
    Row,
    RunFolder,
    mean_interval,
    paired_differences,
    summarize_rows,
)
from cpaan.evaluation.sample import MadeSample, Sample, read_sample
from cpaan.gan.objective import VARIANTS
from cpaan.reporting.maps import FeatureMap, map_features

STEPS = "episode"  # what the logging steps are called in a history
History = dict[str, list[float]]
_ROW = ("method", "setting", "shots", "trial", "top1", "top5")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """All that a report takes from the folder of a run."""

    path: Path  # the folder
    label: str  # what the run is called; distinct among the runs of a report, and the representation of its rows
    config: dict[str, Any]  # config, versions, origin: what results depend on, and the files that the data came from
    versions: dict[str, str]
    origin: dict[str, Any]
    rows: list[Row]  # results, by the order of the methods
    sample: Sample | None  # features to draw; None where the run kept none
    histories: dict[str, History]  # losses by method and term, with the logging steps as ``"episode"``
    finished: bool  # whether every cell is done

    @cached_property
    def feature_map(self) -> FeatureMap | None:
        """The features of the sample in the plane, laid out once."""
        return None if self.sample is None else map_features(self.sample)

    @cached_property
    def alphas(self) -> dict[str, MadeSample]:
        """Samples with a neighbourhood, by the names of all methods that have the same one."""
        named: list[tuple[list[str], MadeSample]] = []
        for method, part in ({} if self.sample is None else self.sample.made).items():
            same = next((names for names, other in named if np.array_equal(other.alpha, part.alpha)), None)
            if len(part.alpha) and same is None:
                named.append(([method], part))
            elif same is not None:
                same.append(method)
        return {", ".join(names): part for names, part in named}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that have results, in the order of the run."""
        found = {row["method"] for row in self.rows}
        return tuple(name for name in self.config["methods"] if name in found)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the folders of runs, each once."""
    distinct = [*{path.resolve(): path for path in paths}.values()]
    records = [_record(path) for path in distinct]
    labels = run_labels([record["config"] for record in records], [path.resolve().name for path in distinct])
    runs = [_run(*each) for each in zip(distinct, labels, records, strict=True)]
    empty = [str(run.path) for run in runs if not run.rows]
    if empty:
        raise InputError(f"{', '.join(empty)}: no cell is finished yet; run cpaan bench first")
    return runs


def run_labels(configs: Sequence[dict[str, Any]], folders: Sequence[str]) -> list[str]:
    """Name runs by their representation and, where several have the same, by what differs in their settings.

    >>> one, two = {"representation": "birds"}, {"representation": "birds", "settings": {"neighborhood": "hard"}}
    >>> run_labels([one, two], ["a", "b"])
    ['birds', 'birds, neighborhood hard']
    """
    flat = [_flat(config) for config in configs]
    labels = []
    for own in flat:
        rivals = [other for other in flat if other.get("representation") == own.get("representation")]
        differing = [key for key in own if any(other.get(key) != own[key] for other in rivals)]
        labels.append(", ".join([str(own.get("representation")), *(f"{key} {_shown(own[key])}" for key in differing)]))
    return [
        f"{label} ({folder})" if labels.count(label) > 1 else label
        for label, folder in zip(labels, folders, strict=True)
    ]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    # Which methods a run has is seen in the table, and a fingerprint of the data tells a reader nothing.
    known = {key: value for key, value in config.items() if key not in ("settings", "methods", "data")}
    return known | dict(config.get("settings") or {})


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _record(path: Path) -> dict[str, Any]:
    record = RunFolder(path).record()
    if record is None:
        raise InputError(f"{path} holds no benchmark run; give the folder that cpaan bench -o wrote")
    if not isinstance(record["config"].get("methods"), list):
        raise InputError(f"{path / 'config.json'} names no methods, so it is of no benchmark run")
    for name in record["config"]["methods"]:
        plain_name(name, path / "config.json")
    for name in ("versions", "origin"):
        if not isinstance(record.get(name) or {}, dict):
            raise InputError(f"{path / 'config.json'} is damaged: {name} is no object")
    if not isinstance(record["config"].get("settings") or {}, dict):
        raise InputError(f"{path / 'config.json'} is damaged: settings is no object")
    return record


def _run(path: Path, label: str, record: dict[str, Any]) -> RunRecord:
    methods = [str(name) for name in record["config"]["methods"]]
    rows = [row for row in RunFolder(path).rows() if all(name in row for name in _ROW) and row["method"] in methods]
    return RunRecord(
        path=path,
        label=label,
        config=record["config"],
        versions=dict(record.get("versions") or {}),
        origin=dict(record.get("origin") or {}),
        rows=[{**row, "representation": label} for row in sorted(rows, key=lambda row: methods.index(row["method"]))],
        sample=read_sample(path, tuple(methods)),
        histories={name: found for name in methods if (found := _history(path / MODELS / name)) is not None},
        finished=(path / "DONE").exists(),
    )


def _history(folder: Path) -> History | None:
    if not (folder / CONFIG).exists():  # it was not trained, or not to the end
        return None
    found = read_config(folder).get("history")
    if not isinstance(found, dict) or not found.get(STEPS):
        return None
    if not all(isinstance(values, list) and all(map(_is_number, values)) for values in found.values()):
        raise InputError(f"{folder / CONFIG} is damaged: its history holds something else than numbers")
    return {name: values for name, values in found.items() if len(values) == len(found[STEPS])}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SETTINGS = ("LSL", "GLSL")
MEASURES = ("top5", "top1")


@dataclass(frozen=True)
class Diversity:
    """How much the examples that a method made differ, beside real ones, in the unit of the features."""

    made: float
    real: float


@dataclass(frozen=True)
class Results:
    """Figures of runs, by method and run."""

    runs: Sequence[RunRecord]  # read from their folders
    reference: str  # method that differences are taken to, within each run

    @classmethod
    def of(cls, runs: Sequence[RunRecord], reference: str | None = None) -> "Results":
        """Take the first method of the first run as reference, or the one that is asked for."""
        known = list(dict.fromkeys(method for run in runs for method in run.methods))
        if reference is not None and reference not in known:
            raise InputError(f"the reference {reference!r} is not one of the methods {', '.join(known)}")
        return cls(runs, reference or known[0])

    @cached_property
    def entries(self) -> list[Entry]:
        """Methods with the label of their run: the rows of the table."""
        return [(method, run.label) for run in self.runs for method in run.methods]

    @cached_property
    def shots(self) -> list[int]:
        """Numbers of shots, from the fewest."""
        return sorted({row["shots"] for run in self.runs for row in run.rows})

    @cached_property
    def columns(self) -> list[tuple[str, int]]:
        """Settings with numbers of shots: the columns of the table."""
        return [(setting, k) for setting in SETTINGS for k in self.shots]

    def accuracy(self, measure: str) -> dict[Key, Interval]:
        """Give mean accuracies with intervals."""
        return summarize_rows(self._rows, measure)

    def differences(self, measure: str) -> dict[Key, Interval]:
        """Give differences to the reference, paired over trials."""
        return paired_differences(self._rows, self.reference, measure)

    def diversity(self) -> dict[tuple[Entry, int], Diversity]:
        """Give the mean diversity over trials of every method that makes examples."""
        found: dict[tuple[Entry, int], list[tuple[float, float]]] = {}
        for row in self._rows:
            if row["setting"] == SETTINGS[0] and row.get("diversity") is not None:
                key = ((row["method"], row["representation"]), row["shots"])
                found.setdefault(key, []).append((row["diversity"], row["real_diversity"]))
        means = {key: np.mean(values, axis=0) for key, values in found.items()}
        return {key: Diversity(*map(float, mean)) for key, mean in means.items() if np.isfinite(mean).all()}

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row for run in self.runs for row in run.rows]


def ranks(values: Sequence[float | None]) -> list[int]:
    """Give 1 to the best of several values as they are shown, 2 to the second best and 0 to the others.

    >>> ranks([50.04, None, 61.2, 50.01, 3.0])
    [2, 0, 1, 2, 0]
    """
    shown = [None if value is None else round(value, 1) for value in values]
    ranked = sorted({value for value in shown if value is not None}, reverse=True)
    if len(ranked) < 2:  # noqa: PLR2004  # one alone is no contest
        return [0] * len(shown)
    places = {ranked[0]: 1, ranked[1]: 2}
    return [0 if value is None else places.get(value, 0) for value in shown]


NEIGHBORHOOD, NEIGHBORS = "neighborhood", "neighbors"
WITHOUT = "uniform"
_TITLES = {"soft": "NBS-S, soft", "hard": "NBS-H, hard"}
Gain = dict[str, Any]


def neighborhood_gains(runs: Sequence[RunRecord], measure: str) -> list[Gain]:
    """Give the gain of every neighbourhood over the uniform one, paired over trials."""
    gains = []
    for reference in (run for run in runs if _kind(run) == WITHOUT):
        for run in runs:
            if run is not reference and _without_kind(run) == _without_kind(reference):
                gains += _between(run, reference, measure)
    return gains


def strategy(run: RunRecord) -> str:
    """Name the neighbourhood of a run, as the paper does."""
    kind, neighbors = _kind(run), _settings(run).get(NEIGHBORS)
    return _TITLES.get(kind, kind) + (f", k = {neighbors}" if kind == "hard" and neighbors is not None else "")


def _between(run: RunRecord, reference: RunRecord, measure: str) -> list[Gain]:
    there = _by_trial(reference, measure)
    pairs: dict[tuple[str, str, int], list[float]] = {}
    for (method, setting, shots, trial), value in _by_trial(run, measure).items():
        if (method, setting, shots, trial) in there:
            gain = value - there[method, setting, shots, trial]
            pairs.setdefault((method, setting, shots), []).append(gain)
    return [
        {
            "representation": run.config["representation"],
            "method": method,
            "strategy": strategy(run),
            "setting": setting,
            "shots": shots,
            "measure": measure,
            "mean": mean_interval(values).mean,
            "half_width": mean_interval(values).half_width if len(values) > 1 else None,
        }
        for (method, setting, shots), values in sorted(pairs.items(), key=lambda item: _order(item[0]))
        if method in VARIANTS  # others have no neighbourhood
    ]


def _order(key: tuple[str, str, int]) -> tuple[str, int, int]:
    return key[0], SETTINGS.index(key[1]), key[2]


def _by_trial(run: RunRecord, measure: str) -> dict[tuple[str, str, int, int], float]:
    return {
        (row["method"], row["setting"], row["shots"], row["trial"]): row[measure]
        for row in run.rows
        if row[measure] is not None
    }


def _settings(run: RunRecord) -> dict[str, Any]:
    return dict(run.config.get("settings") or {})


def _kind(run: RunRecord) -> str:
    return str(_settings(run).get(NEIGHBORHOOD, "soft"))


def _without_kind(run: RunRecord) -> dict[str, Any]:
    # Runs may have different methods, shots and trials: what both have is compared.
    kept = {key: value for key, value in run.config.items() if key not in ("methods", "shots", "trials", "settings")}
    others = {key: value for key, value in _settings(run).items() if key not in (NEIGHBORHOOD, NEIGHBORS)}
    return {**kept, "settings": others}
