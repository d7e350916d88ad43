"""Runs as a report reads them: results, what they depend on, the sample of features, and how training went."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cpaan.data.limits import plain_name
from cpaan.data.model_folder import CONFIG, read_config
from cpaan.errors import InputError
from cpaan.evaluation.sample import MadeSample, Sample, read_sample
from cpaan.evaluation.store import MODELS, Row, RunFolder
from cpaan.reporting.embedding import FeatureMap, map_features

STEPS = "episode"  # what the logging steps are called in a history
History = dict[str, list[float]]
_ROW = ("method", "setting", "shots", "trial", "top1", "top5")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """All that a report takes from the folder of a run.

    Attributes
    ----------
    path : the folder
    label : what the run is called; distinct among the runs of a report, and the representation of its rows
    config, versions, origin : what results depend on, and the files that the data came from
    rows : results, by the order of the methods
    sample : features to draw; None where the run kept none
    histories : losses by method and term, with the logging steps as ``"episode"``
    finished : whether every cell is done
    """

    path: Path
    label: str
    config: dict[str, Any]
    versions: dict[str, str]
    origin: dict[str, Any]
    rows: list[Row]
    sample: Sample | None
    histories: dict[str, History]
    finished: bool

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
