"""The benchmark: every method, number of shots and trial on one bank, in both settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cpaan import __version__
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import ShotSource
from cpaan.errors import InputError
from cpaan.evaluation.cell import Cell, Normalization, Row, run_cell
from cpaan.evaluation.executors import run_here, run_in_processes, run_on_dask
from cpaan.evaluation.figure_data import Drawer
from cpaan.evaluation.fitted_methods import Learned, learn
from cpaan.evaluation.run_folder import MODELS, RunFolder
from cpaan.methods import OWN, Settings, find_method, make_classifier, require_known_numbers
from cpaan.training.progress import Bars

SHOTS = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Plan:
    """What a run evaluates; written to its folder, and compared when it goes on.

    Attributes
    ----------
    methods : names, see `cpaan.methods`
    shots : numbers of shots K
    trials : draws of the shots
    classifier : final classifier of methods that leave the choice
    normalize : ``none``, ``l2`` or ``center-l2``, alike for all methods
    settings : of the augmenters: the recipe, and numbers changed by name
    seed : decides every random draw but that of the shots, which is the trial's number
    representation : what the features are, as the table shall call it
    """

    methods: tuple[str, ...]
    shots: tuple[int, ...] = SHOTS
    trials: int = 5
    classifier: str = "nearest-prototype"
    normalize: str = "none"
    settings: Mapping[str, Any] | None = None
    seed: int = 0
    representation: str = "features"

    def __post_init__(self) -> None:
        for name in self.methods:
            find_method(name)
        make_classifier(self.classifier)
        for name, values in (("methods", self.methods), ("shots", self.shots)):
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} must be given, each once; got {', '.join(map(str, values)) or 'none'}")
        own = [method.classifier for method in map(find_method, self.methods) if method.classifier not in (None, OWN)]
        require_known_numbers(self.methods, [*dict.fromkeys([*map(str, own), self.classifier])], self.method_settings())
        if min(self.shots) < 1 or self.trials < 1:
            raise InputError(f"shots and trials must be at least 1; got {min(self.shots)} and {self.trials}")

    def method_settings(self) -> Settings:
        """Give what the run asks of every method."""
        numbers = dict(self.settings or {})
        recipe, device = numbers.pop("recipe", "quick"), numbers.pop("device", "auto")
        return Settings(recipe, device, self.seed, numbers=numbers)

    def cells(self) -> list[Cell]:
        """List the cells of the grid."""
        return [
            Cell(name, find_method(name).classifier or self.classifier, shots, trial, self.seed)
            for name in self.methods
            for shots in self.shots
            for trial in range(self.trials)
        ]


def run_benchmark(
    plan: Plan,
    data: BenchmarkData,
    folder: Path,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    bars: Bars | None = None,
    origin: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Run what is still missing of a plan, and give all rows.

    Parameters
    ----------
    plan : what to evaluate
    data : on what
    folder : the run; one that was interrupted goes on, one of another plan or that another process writes is refused
    jobs : processes on this machine
    scheduler : address of a Dask scheduler that does the cells instead
    bars : shows the progress of training and of the cells
    origin : the files that the data came from, for the record
    """
    data.shots(plan.trials - 1, max(plan.shots))  # fails early where there are too few examples or split files
    run = RunFolder(folder)
    with run.locked():
        return _run_missing(run, plan, data, jobs, scheduler, bars, origin)


def _run_missing(
    run: RunFolder,
    plan: Plan,
    data: BenchmarkData,
    jobs: int,
    scheduler: str | None,
    bars: Bars | None,
    origin: Mapping[str, Any] | None,
) -> list[Row]:
    folder, normalized = run.path, normalize(data, plan.normalize)
    is_new = run.begin({**asdict(plan), "data": data.fingerprint}, versions(), origin)
    cells = plan.cells()
    done = {(row["method"], row["shots"], row["trial"]) for row in run.rows() if row["setting"] == "GLSL"}
    missing = [cell for cell in cells if (cell.method, cell.shots, cell.trial) not in done]
    drawer = Drawer(folder, normalized, min(plan.shots), plan.seed)
    wanted = _wanted(cells, missing, drawer, folder / MODELS)
    try:
        learned = learn(wanted, normalized.base_train, plan.method_settings(), folder / MODELS, bars)
    except InputError:
        if is_new:  # wrong settings are noticed by the estimators themselves, and a run of such cannot go on
            run.discard()
        raise
    drawer.draw(learned.augmenters)
    finished = len(cells) - len(missing)
    tell = (lambda done, total: None) if bars is None else bars.count("evaluating", "cells")
    try:
        for rows in _executed(normalized, learned, missing, jobs, scheduler):
            run.append([{**row, "representation": plan.representation} for row in rows])
            finished += 1
            tell(finished, len(cells))
    finally:
        run.write_csv()
    run.finish()
    return run.rows()


def _wanted(cells: Sequence[Cell], missing: Sequence[Cell], drawer: Drawer, models: Path) -> dict[str, str]:
    """Give the methods that must be at hand, with their classifiers: for missing cells, or for a missing sample.

    A method whose cells are all done is sampled only where what it learned was kept.
    """
    wanted = {cell.method: cell.classifier for cell in missing}
    kept = {
        cell.method: cell.classifier
        for cell in cells
        if find_method(cell.method).augmenter is not None and (models / cell.method / "config.json").exists()
    }
    return wanted | {name: kept[name] for name in drawer.missing(kept)}


def normalize(data: BenchmarkData, kind: str) -> BenchmarkData:
    """Normalise every example of a benchmark alike."""
    normalization = Normalization.fitted(kind, data.base_train)
    source = data.shot_source
    return BenchmarkData(
        base_train=normalization.apply(data.base_train),
        base_test=normalization.apply(data.base_test),
        novel_test=normalization.apply(data.novel_test),
        shot_source=replace(source, take=partial(_take_normalized, source, normalization)),
    )


def _take_normalized(source: ShotSource, normalization: Normalization, rows: Any) -> FeatureSet:
    return normalization.apply(source.take(rows))


def versions() -> dict[str, str]:
    """Give the versions that results may depend on."""
    return {"cpaan": __version__} | {name: version(name) for name in ("torch", "numpy", "scikit-learn")}


def _executed(
    data: BenchmarkData, learned: Learned, cells: Sequence[Cell], jobs: int, scheduler: str | None
) -> Iterator[list[Row]]:
    shared, tasks = (data, learned), [(cell,) for cell in cells]
    if scheduler is not None:
        return run_on_dask(run_cell, shared, tasks, scheduler)
    if jobs > 1:
        return run_in_processes(run_cell, shared, tasks, jobs)
    return run_here(run_cell, shared, tasks)
