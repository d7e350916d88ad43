"""The benchmark: protocol, reuse, resume, and the same bits wherever cells are computed."""

import json
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan import methods
from cpaan.augmenters.base import BaseAugmenter
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import ShotSource
from cpaan.errors import InputError
from cpaan.evaluation.benchmark import Plan, normalize, run_benchmark, run_in_processes, run_on_dask
from cpaan.evaluation.cell import run_cell
from cpaan.evaluation.run_folder import RunFolder
from cpaan.training.progress import Progress

SETTINGS: dict[str, Any] = {"episodes": 2, "width": 8, "novel_per_episode": 4, "batch_size": 60, "device": "cpu"}
SETTINGS["rounds"] = 1
TRAINED = ("ccov-gan", "prototypical", "matching", "feature-imagination")
PLAN = Plan(("nearest-prototype", "linear", *TRAINED), shots=(1, 3), trials=2, settings=SETTINGS)


def small_bank(n_base: int = 8, n_novel: int = 6, per_class: int = 12, test: int = 5) -> BenchmarkData:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(n_base + n_novel, 1, 6))

    def draw(classes: range, number: int) -> FeatureSet:
        features = centers[classes] + rng.normal(size=(len(classes), number, 6))
        names = np.repeat([f"c{c}" for c in classes], number)
        return FeatureSet(features.reshape(-1, 6).astype(np.float32), names)

    base, novel = range(n_base), range(n_base, n_base + n_novel)
    shots = draw(novel, per_class)
    members = tuple(np.flatnonzero(shots.labels == label) for label in range(n_novel))
    return BenchmarkData(
        draw(base, per_class), draw(base, test), draw(novel, test), ShotSource(shots.classes, members, shots.take)
    )


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run_benchmark(PLAN, small_bank(), folder)


def test_nearest_prototype_figures_are_those_of_a_plain_loop(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    data = small_bank()
    for row in finished[1]:
        if row["method"] != "nearest-prototype":
            continue
        shots = data.shots(row["trial"], row["shots"])
        means = {name: shots.of_class(name).mean(0) for name in shots.classes}
        test = data.novel_test
        if row["setting"] == "GLSL":
            means |= {name: data.base_train.of_class(name).mean(0) for name in data.base_train.classes}
            test = data.novel_test.concatenate(data.base_test)
        hits = {1: 0, 5: 0}
        for x, name in zip(test.features, test.names, strict=True):
            ranked = sorted(means, key=lambda c: float(np.linalg.norm(x - means[c])))
            for k in hits:
                hits[k] += name in ranked[:k]
        assert row["top1"] == pytest.approx(100 * hits[1] / len(test))
        assert row["top5"] == pytest.approx(100 * hits[5] / len(test))


def test_a_run_writes_tidy_results_its_config_and_a_mark(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = finished
    assert len(rows) == 6 * 2 * 2 * 2
    lines = (folder / "results.csv").read_text().splitlines()
    assert lines[0].startswith("method,representation,setting,shots,trial,top1,top5,")
    assert len(lines) == 1 + len(rows)
    recorded = json.loads((folder / "config.json").read_text())
    assert recorded["config"]["settings"] == SETTINGS
    assert {"torch", "cpaan"} <= set(recorded["versions"])
    assert (folder / "DONE").exists()
    generated = next(row for row in rows if row["method"] == "ccov-gan" and row["setting"] == "GLSL")
    assert generated["diversity"] > 0
    assert generated["real_diversity"] > 0
    assert generated["covariance_distance"] > 0
    assert generated["harmonic_top1"] <= max(generated["base_top1"], generated["novel_top1"]) + 1e-9


def test_base_training_happens_once_and_an_interrupted_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: tuple[Path, list[dict[str, Any]]]
) -> None:
    fits: list[int] = []

    def failing(*arguments: Any) -> Any:
        fits.append(1)
        if len(fits) == 10:
            raise KeyboardInterrupt
        return run_cell(*arguments)

    monkeypatch.setattr("cpaan.evaluation.benchmark.run_cell", failing)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(PLAN, small_bank(), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert len(run.rows()) == 9 * 2
    assert not (tmp_path / "run" / "DONE").exists()
    models = [tmp_path / "run" / "models" / name / "config.json" for name in TRAINED]
    before = [model.stat().st_mtime_ns for model in models]
    with run.results.open("a") as file:
        file.write('{"method": "torn')  # as a crash in the middle of a line would leave it
    rows = run_benchmark(PLAN, small_bank(), tmp_path / "run")
    assert len(fits) == 10 + 15  # some of every method that was trained
    assert [model.stat().st_mtime_ns for model in models] == before
    assert without_time(rows) == without_time(finished[1])


def test_processes_give_the_same_bits(tmp_path: Path, finished: tuple[Path, list[dict[str, Any]]]) -> None:
    rows = run_benchmark(PLAN, small_bank(), tmp_path / "run", jobs=2)
    assert without_time(rows) == without_time(finished[1])


def test_large_linear_classifiers_do_not_depend_on_what_was_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision as in the large: cells one after the other, interrupted, in processes."""
    data = small_bank(per_class=130)
    settings = {"precision": "single", "weight_decay": 0.01, "per_class": 70}
    plan = Plan(("linear", "gaussian"), shots=(1, 3), trials=2, classifier="linear", settings=settings)
    expected = without_time(run_benchmark(plan, data, tmp_path / "here"))
    calls: list[int] = []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run_cell(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("cpaan.evaluation.benchmark.run_cell", failing)
        with pytest.raises(KeyboardInterrupt):
            run_benchmark(plan, data, tmp_path / "resumed")
    assert without_time(run_benchmark(plan, data, tmp_path / "resumed", jobs=2)) == expected


def test_a_dask_cluster_gives_the_same_bits_even_if_a_worker_dies(
    tmp_path: Path, finished: tuple[Path, list[dict[str, Any]]]
) -> None:
    distributed: Any = pytest.importorskip("dask.distributed", reason="needs the extra 'cluster'")
    killed: list[int] = []

    class KillAWorker:
        def __call__(self, title: str) -> Callable[[Progress], None]:
            return lambda progress: None

        def count(self, title: str, unit: str) -> Callable[[int, int], None]:
            return self.kill

        def kill(self, done: int, total: int) -> None:
            if not killed:
                killed.append(cluster.workers[0].process.pid)
                os.kill(killed[0], signal.SIGKILL)

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        rows = run_benchmark(PLAN, small_bank(), tmp_path / "run", scheduler=address, bars=KillAWorker())
    assert killed
    assert without_time(rows) == without_time(finished[1])


class Meeting:
    """What is read only by processes that are reading it at the same time."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "number": self.number}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.folder / str(os.getpid())).touch()
        end = time.monotonic() + 600
        while len(list(self.folder.iterdir())) < self.number:
            if time.monotonic() > end:
                raise TimeoutError("waited in vain for the others to begin")
            time.sleep(0.05)


def size_of(meeting: Meeting, much: bytes, task: int) -> int:
    return len(much) + task


def test_processes_that_are_sent_much_begin_together(tmp_path: Path) -> None:
    much = bytes(2**22)  # more than a pipe holds
    found = run_in_processes(size_of, (Meeting(tmp_path, 2), much), [(1,), (2,)], jobs=2)
    assert sorted(found) == [len(much) + 1, len(much) + 2]


def test_an_error_in_a_process_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        list(run_in_processes(divmod, (1,), [(1,), (0,)], jobs=2))


def test_what_processes_cannot_receive_is_an_error_and_no_endless_wait() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        list(run_in_processes(divmod, (lambda: 1,), [(1,)], jobs=2))


def test_no_scheduler_is_a_clear_error() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        list(run_on_dask(divmod, (1,), [(1,)], "tcp://127.0.0.1:9"))


def test_another_plan_or_other_data_is_refused_and_nothing_overwritten(
    finished: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, rows = finished
    with pytest.raises(InputError, match=r"another configuration \(trials: 2 there, 3 now"):
        run_benchmark(Plan(PLAN.methods, (1, 3), 3, settings=SETTINGS), small_bank(), folder)
    with pytest.raises(InputError, match=r"another configuration \(data"):
        run_benchmark(PLAN, small_bank(n_novel=7), folder)
    assert RunFolder(folder).rows() == rows
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not empty and holds no benchmark run"):
        run_benchmark(PLAN, small_bank(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_too_many_shots_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="12 training examples, too few to draw 13 shots"):
        run_benchmark(Plan(("linear",), shots=(1, 13)), small_bank(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"methods": ("magic",)}, "unknown method 'magic'; choose from nearest-prototype"),
        ({"methods": ()}, "methods must be given"),
        ({"methods": ("linear", "linear")}, "each once"),
        ({"methods": ("linear",), "shots": (0,)}, "at least 1"),
        ({"methods": ("linear",), "trials": 0}, "at least 1"),
        ({"methods": ("linear",), "classifier": "forest"}, "unknown classifier 'forest'"),
    ],
)
def test_wrong_plans_are_refused(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(**plan)


def test_normalizations_do_what_they_say() -> None:
    data = small_bank()
    X = data.base_train.features.astype(np.float64)
    l2 = normalize(data, "l2")
    np.testing.assert_allclose(l2.base_train.features, X / np.linalg.norm(X, axis=1, keepdims=True), rtol=1e-5)
    centred = normalize(data, "center-l2")
    T = data.novel_test.features - X.mean(0)  # the mean of base training examples, also for novel test examples
    np.testing.assert_allclose(
        centred.novel_test.features, T / np.linalg.norm(T, axis=1, keepdims=True), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(np.linalg.norm(centred.shots(0, 2).features, axis=1), 1, rtol=1e-5)
    zero = replace(data, base_test=FeatureSet(0 * data.base_test.features, data.base_test.names))
    np.testing.assert_array_equal(normalize(zero, "l2").base_test.features, 0)
    with pytest.raises(InputError, match="none, l2, center-l2"):
        normalize(data, "l1")


def test_generated_examples_reach_the_classifier(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    """An augmenter that puts novel classes elsewhere must change the prototypes, hence the figures."""
    by_method = {
        name: [row["top1"] for row in finished[1] if row["method"] == name]
        for name in ("nearest-prototype", "ccov-gan")
    }
    assert by_method["nearest-prototype"] != by_method["ccov-gan"]


class SpyAugmenter(BaseAugmenter):
    """Says what it learned from and makes examples that no one else has."""

    told: list[tuple[Any, Any]]

    def __init__(self, *, random_state: Any = None, per_class: int | None = 2) -> None:
        self.random_state = random_state
        self.per_class = per_class

    def fit(self, X_base: Any, y_base: Any) -> "SpyAugmenter":  # type: ignore[override]
        self.told.append((X_base, y_base))
        return super().fit(X_base, y_base)

    def _learn(self, base: FeatureSet) -> None:
        pass

    def _make(self, novel: FeatureSet, wanted: Any) -> Any:
        return 1000.0 + np.arange(wanted.sum() * novel.dimension).reshape(-1, novel.dimension)


class SpyClassifier(MetaClassifier):
    """Says what it was meta-trained on and what it was fitted on."""

    meta_told: list[tuple[Any, Any]]
    told: list[tuple[Any, Any]]

    def __init__(self, *, random_state: Any = None) -> None:
        self.random_state = random_state

    def meta_fit(self, X_base: Any, y_base: Any) -> "SpyClassifier":
        self.meta_told.append((X_base, y_base))
        return super().meta_fit(X_base, y_base)

    def fit(self, X: Any, y: Any) -> "SpyClassifier":
        self.told.append((X, y))
        return super().fit(X, y)

    def _meta_learn(self, base: FeatureSet) -> None:
        pass

    def _adapt(self, features: Any, targets: Any) -> None:
        pass

    def _score(self, X: Any) -> Any:
        return np.zeros((len(X), len(self.classes_)))

    def _tensors(self) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(1)}


def labelled(X: Any, y: Any) -> list[tuple[int, tuple[float, ...]]]:
    """Examples with their labels, in an order of their own."""
    return sorted((int(label), tuple(np.asarray(x, np.float32).tolist())) for x, label in zip(X, y, strict=True))


def test_methods_learn_from_base_examples_alone_and_classifiers_from_these_the_shots_and_the_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spy, name in ((SpyAugmenter, "told"), (SpyClassifier, "told"), (SpyClassifier, "meta_told")):
        monkeypatch.setattr(spy, name, [], raising=False)
    method = methods.Method("spy", "watches", lambda settings: SpyAugmenter(), classifier="spying")
    monkeypatch.setitem(methods.METHODS, "spy", method)
    monkeypatch.setitem(methods.CLASSIFIERS, "spying", lambda settings: SpyClassifier())
    data, plan = small_bank(), Plan(("spy",), shots=(1, 3), trials=2)
    run_benchmark(plan, data, tmp_path / "run")
    base = data.base_train
    [(features, names)] = SpyAugmenter.told
    assert len(set(names)) == base.n_classes
    numbers = dict(zip(names, base.labels, strict=True))
    assert labelled(features, [numbers[name] for name in names]) == labelled(base.features, base.labels)
    [(features, labels)] = SpyClassifier.meta_told
    assert labelled(features, labels) == labelled(base.features, base.labels)
    assert len(SpyClassifier.told) == 4
    for cell, (X, y) in zip(plan.cells(), SpyClassifier.told, strict=True):
        shots, n_made = data.shots(cell.trial, cell.shots), 2 * 6
        made = 1000.0 + np.arange(n_made * 6).reshape(-1, 6)
        expected = [
            *labelled(base.features, base.labels),
            *labelled(shots.features, 8 + shots.labels),
            *labelled(made, 8 + np.repeat(np.arange(6), 2)),
        ]
        assert labelled(X, y) == sorted(expected)
