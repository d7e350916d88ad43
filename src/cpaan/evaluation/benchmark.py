"""The benchmark: every method, number of shots and trial on one bank of features, in both settings."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpaan import __version__
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.evaluation.cell import Cell, run_cell
from cpaan.evaluation.fitted_methods import FittedMethods, fit_methods
from cpaan.evaluation.run_folder import MODELS, SHOTS, Row, RunFolder
from cpaan.evaluation.sample import draw_sample, without_sample
from cpaan.extras import missing_extra
from cpaan.methods import OWN, Settings, find_method, make_classifier, require_known_numbers
from cpaan.training.progress import Bars

NORMALIZATIONS = ("none", "l2", "center-l2")
RETRIES = 3  # of a cell whose Dask worker dies
Task = tuple[Any, ...]
Inbox: TypeAlias = "Queue[bytes]"


@dataclass(frozen=True)
class Plan:
    """What a run evaluates; saved in its folder, and compared when the run resumes."""

    methods: tuple[str, ...]  # names, see `cpaan.methods`
    shots: tuple[int, ...] = SHOTS
    trials: int = 5
    classifier: str = "nearest-prototype"  # of methods that leave the choice
    normalize: str = "none"  # one of NORMALIZATIONS, for all methods
    settings: Mapping[str, Any] | None = None  # of augmenters: the recipe, and numbers changed by name
    seed: int = 0  # of every random draw except the shots, whose seed is the trial
    representation: str = "features"  # name of the features in tables

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
        """Split the settings into the recipe, the device and numbers."""
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
    """Run the missing cells of a plan, and return all rows.

    Parameters
    ----------
    plan : what to evaluate
    data : base, novel and test examples
    folder : of the run. An interrupted run resumes; a run of another plan, or locked by another process, is refused
    jobs : processes on this machine
    scheduler : address of a Dask scheduler that runs the cells instead
    bars : show the progress of training and of the cells
    origin : files of the data, for the record
    """
    data.shots(plan.trials - 1, max(plan.shots))  # fails early if there are too few examples or split files
    run = RunFolder(folder)
    with run.locked():
        normalized = normalize(data, plan.normalize)
        is_new = run.begin({**asdict(plan), "data": data.fingerprint}, versions(), origin)
        cells = plan.cells()
        done = {(row["method"], row["shots"], row["trial"]) for row in run.rows() if row["setting"] == "GLSL"}
        missing = [cell for cell in cells if (cell.method, cell.shots, cell.trial) not in done]
        try:
            wanted = _wanted(cells, missing, folder)
            fitted = fit_methods(wanted, normalized.base_train, plan.method_settings(), folder / MODELS, bars)
        except InputError:
            if is_new:  # estimators check their settings when fitted, and a run with wrong ones cannot resume
                run.discard()
            raise
        draw_sample(folder, normalized, fitted.augmenters, min(plan.shots), plan.seed)
        tell = (lambda done, total: None) if bars is None else bars.count("evaluating", "cells")
        try:
            for number, rows in enumerate(_executed(normalized, fitted, missing, jobs, scheduler), 1):
                run.append([{**row, "representation": plan.representation} for row in rows])
                tell(len(cells) - len(missing) + number, len(cells))
        finally:
            run.write_csv()
        run.finish()
        return run.rows()


def _wanted(cells: Sequence[Cell], missing: Sequence[Cell], folder: Path) -> dict[str, str]:
    """Map methods to their classifiers: those of missing cells, and saved ones that have no sample yet."""
    wanted = {cell.method: cell.classifier for cell in missing}
    saved = {
        cell.method: cell.classifier
        for cell in cells
        if find_method(cell.method).augmenter is not None and (folder / MODELS / cell.method / "config.json").exists()
    }
    return wanted | {name: saved[name] for name in without_sample(folder, saved)}


def versions() -> dict[str, str]:
    """List the versions of libraries that results may depend on."""
    return {"cpaan": __version__} | {name: version(name) for name in ("torch", "numpy", "scikit-learn")}


def normalize(data: BenchmarkData, kind: str) -> BenchmarkData:
    """Normalise all examples: ``none``, ``l2`` x / ‖x‖, or ``center-l2`` (x − μ) / ‖x − μ‖, μ the base mean."""
    if kind not in NORMALIZATIONS:
        raise InputError(f"unknown normalization {kind!r}; choose one of {', '.join(NORMALIZATIONS)}")
    mean = data.base_train.features.mean(axis=0, dtype=np.float64) if kind == "center-l2" else None
    normalized = partial(_normalized, kind, mean)
    take = partial(_take_normalized, normalized, data.shot_source.take)
    return BenchmarkData(
        base_train=normalized(data.base_train),
        base_test=normalized(data.base_test),
        novel_test=normalized(data.novel_test),
        shot_source=replace(data.shot_source, take=take),
    )


def _normalized(kind: str, mean: NDArray[np.float64] | None, examples: FeatureSet) -> FeatureSet:
    """Normalise features, in single precision; an example of length zero stays as it is."""
    features = examples.features
    if kind != "none":
        centred = features.astype(np.float64) - (0.0 if mean is None else mean)
        lengths = np.linalg.norm(centred, axis=1, keepdims=True)
        features = centred / np.where(lengths == 0, 1.0, lengths)
    return FeatureSet(features.astype(np.float32), examples.labels, examples.classes)


def _take_normalized(
    normalized: Callable[[FeatureSet], FeatureSet], take: Callable[[Any], FeatureSet], rows: Any
) -> FeatureSet:
    return normalized(take(rows))


def _executed(
    data: BenchmarkData, fitted: FittedMethods, cells: Sequence[Cell], jobs: int, scheduler: str | None
) -> Iterator[list[Row]]:
    """Run cells here, in processes or on Dask; each runs on one thread, and all three give the same bits."""
    shared, tasks = (data, fitted), [(cell,) for cell in cells]
    if scheduler is not None:
        return run_on_dask(run_cell, shared, tasks, scheduler)
    if jobs > 1:
        return run_in_processes(run_cell, shared, tasks, jobs)
    return (run_cell(*shared, *task) for task in tasks)


def run_in_processes(function: Callable[..., Any], shared: Task, tasks: Sequence[Task], jobs: int) -> Iterator[Any]:
    """Yield `function(*shared, *task)` of every task, run in processes that receive what is shared once."""
    # Spawned, not forked: threads of the parent's libraries do not survive a fork.
    context = get_context("spawn")
    # Initial arguments would make processes start one after the other: each start waits until the process has imported
    # the libraries and read everything. A thread feeds the queue instead.
    queue: Inbox = context.Queue()
    # Pickled here: that thread would drop what cannot be pickled, and processes would wait for it for ever.
    content = pickle.dumps((function, shared))
    for _ in range(jobs):
        queue.put(content)
    with ProcessPoolExecutor(jobs, context, _receive, (queue,)) as pool:
        futures = [pool.submit(_call_received, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            queue.cancel_join_thread()  # with fewer tasks than processes, nobody reads the rest
            queue.close()


_received: tuple[Callable[..., Any], Task] | None = None


def _receive(queue: Inbox) -> None:
    global _received  # noqa: PLW0603  # a worker process serves one run
    _received = pickle.loads(queue.get())


def _call_received(task: Task) -> Any:
    assert _received is not None
    return _call(*_received, task)


def _call(function: Callable[..., Any], shared: Sequence[Any], task: Task) -> Any:
    return function(*shared, *task)


def run_on_dask(function: Callable[..., Any], shared: Task, tasks: Sequence[Task], address: str) -> Iterator[Any]:
    """Yield `function(*shared, *task)` of every task, run by Dask workers; another takes over if one dies."""
    try:
        from dask.distributed import Client
        from dask.distributed import as_completed as as_dask_completed
    except ImportError as error:
        raise missing_extra("dask", "--scheduler") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        sent = client.scatter(shared, broadcast=True, hash=False)
        futures = [client.submit(_call, function, sent, task, pure=False, retries=RETRIES) for task in tasks]
        for future in as_dask_completed(futures):
            yield future.result()
