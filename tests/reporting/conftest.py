"""Small finished runs to report on, with class names that a stranger might have chosen."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import ShotSource
from cpaan.evaluation.benchmark import Plan, run_benchmark
from cpaan.reporting.results import Results, read_runs

HOSTILE = (
    "<script>document.title = 'taken'</script>",
    "</script><img src=x onerror=\"document.title='taken'\">",
    "quoted \"double\" and 'single' & ampersand",
    "\u202eright to left",
    "مرحبا\u200f",
    "{{data}} $x^2$ \\u003c",
)
SETTINGS: dict[str, Any] = {"episodes": 3, "width": 8, "novel_per_episode": 4, "batch_size": 60, "device": "cpu"}
SETTINGS["rounds"] = 1
METHODS = ("nearest-prototype", "c-gan", "ccov-gan", "feature-hallucination", "smote")

MakeRun = Callable[..., Path]


def bank(names: tuple[str, ...] = HOSTILE, n_base: int = 8, dimension: int = 6, test: int = 9) -> BenchmarkData:
    rng = np.random.default_rng(0)
    everything = tuple(f"base <b>{i}</b>" for i in range(n_base)) + names
    centers = 3 * rng.normal(size=(len(everything), 1, dimension))

    def draw(first: int, last: int, number: int) -> FeatureSet:
        features = centers[first:last] + rng.normal(size=(last - first, number, dimension))
        labels = np.repeat(np.arange(last - first), number)
        return FeatureSet(features.reshape(-1, dimension).astype(np.float32), labels, everything[first:last])

    shots = draw(n_base, len(everything), 12)
    members = tuple(np.flatnonzero(shots.labels == label) for label in range(len(names)))
    source = ShotSource(shots.classes, members, shots.take)
    return BenchmarkData(draw(0, n_base, 12), draw(0, n_base, test), draw(n_base, len(everything), test), source)


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Make a run in a folder of its own: once for all processes that test, where others wait for the first."""
    shared = tmp_path_factory.getbasetemp()
    runs = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "runs"
    runs.mkdir(exist_ok=True)

    def make(name: str, methods: tuple[str, ...] = METHODS, **changes: Any) -> Path:
        settings = {**SETTINGS, **changes.pop("settings", {})}
        if "feature-hallucination" in methods:
            settings["iterations"] = 3
        folder = runs / name
        plan = Plan(methods, **{"shots": (1, 3), "trials": 3, "settings": settings, "representation": "toy", **changes})
        with (runs / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "DONE").exists():
                run_benchmark(plan, bank(), folder, origin={"bank": "my bank.npz", "setup": "setup.json"})
        return folder

    return make


@pytest.fixture(scope="session")
def run(make_run: MakeRun) -> Path:
    return make_run("run")


@pytest.fixture(scope="session")
def ablation(make_run: MakeRun) -> list[Path]:
    methods = ("nearest-prototype", "ccov-gan")
    return [
        make_run(kind, methods, settings={"neighborhood": kind, "neighbors": 2}) for kind in ("uniform", "soft", "hard")
    ]


@pytest.fixture(scope="session")
def results(run: Path) -> Results:
    return Results.of(read_runs([run]))


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run as an older version left it: results and a configuration, and nothing else."""
    folder = tmp_path / "old"
    folder.mkdir()
    config = {"methods": ["linear", "smote"], "shots": [1], "trials": 1, "classifier": "linear", "normalize": "none"}
    config |= {"seed": 0, "representation": "old bank", "data": "00"}
    (folder / "config.json").write_text(json.dumps({"config": config, "versions": {"cpaan": "0.0.1"}}))
    rows = [
        {"method": method, "representation": "old bank", "setting": setting, "shots": 1, "trial": 0, **accuracy}
        for method, accuracy in (("linear", {"top1": 40.0, "top5": 70.0}), ("smote", {"top1": 45.0, "top5": 60.0}))
        for setting in ("LSL", "GLSL")
    ]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
