"""The sample that a run keeps for its figures."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan import CPAAN
from cpaan.centers import ShotMean
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import ShotSource
from cpaan.errors import InputError
from cpaan.evaluation.benchmark import Plan, run_benchmark
from cpaan.evaluation.fitted_methods import fit_methods
from cpaan.evaluation.run_folder import SAMPLE
from cpaan.evaluation.sample import MOST_NUMBERS, REAL, RealSample, part_path, read_sample, real_sample, write_part
from cpaan.training.bank import draw_categories

SETTINGS: dict[str, Any] = {"episodes": 2, "width": 8, "novel_per_episode": 4, "batch_size": 60, "device": "cpu"}
SETTINGS["rounds"] = 1
METHODS = ("nearest-prototype", "prototypical", "ccov-gan", "smote")
PLAN = Plan(METHODS, shots=(2, 3), trials=2, settings=SETTINGS)


def bank(n_base: int = 8, n_novel: int = 12, dimension: int = 6) -> BenchmarkData:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(n_base + n_novel, 1, dimension))

    def draw(classes: range, number: int) -> FeatureSet:
        features = centers[classes] + rng.normal(size=(len(classes), number, dimension))
        return FeatureSet(
            features.reshape(-1, dimension).astype(np.float32), np.repeat([f"c{c:02d}" for c in classes], number)
        )

    base, novel = range(n_base), range(n_base, n_base + n_novel)
    shots = draw(novel, 8)
    members = tuple(np.flatnonzero(shots.labels == label) for label in range(n_novel))
    return BenchmarkData(draw(base, 8), draw(base, 5), draw(novel, 50), ShotSource(shots.classes, members, shots.take))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_benchmark(PLAN, bank(), folder)
    return folder


def test_the_sample_holds_what_the_run_saw(run: Path) -> None:
    data, sample = bank(), read_sample(run, METHODS)
    assert sample is not None
    real, shots = sample.real, data.shots(0, 2)
    assert len(real.classes) == 8
    assert real.shots_per_class == 2
    base = {name: data.base_train.of_class(name).mean(0) for name in data.base_classes}
    for index, name in enumerate(real.classes):
        np.testing.assert_allclose(real.shots[real.shot_labels == index], shots.of_class(name), rtol=2e-3, atol=2e-3)
        own, rows = data.novel_test.of_class(name), real.real_labels == index
        assert rows.sum() == 40
        assert real.real_counts[index] == 50
        np.testing.assert_allclose(real.real[rows], own[real.real_places[rows]], rtol=2e-3, atol=2e-3)
        distances = {key: float(np.linalg.norm(mean - shots.of_class(name).mean(0))) for key, mean in base.items()}
        nearest = [real.base_classes[base] for base in real.nearest[index]]
        assert nearest == sorted(distances, key=lambda key: distances[key])[:3]
        assert real.distances[index][0] == pytest.approx(min(distances.values()), rel=2e-3)


def test_each_method_that_makes_examples_has_its_own(run: Path) -> None:
    sample = read_sample(run, METHODS)
    assert sample is not None
    assert list(sample.made) == ["ccov-gan", "smote"]
    made = sample.made["ccov-gan"]
    assert np.bincount(made.made_labels).tolist() == [40] * 8
    assert made.alpha.shape == (12, len(made.alpha_base))
    assert made.alpha_novel == tuple(f"c{c:02d}" for c in range(8, 20))
    assert set(made.alpha_base) <= {f"c{c:02d}" for c in range(8)}
    assert (made.alpha.sum(1) <= 1.001).all()
    assert not len(sample.made["smote"].alpha)


def test_the_neighbourhood_is_the_one_that_base_classes_are_drawn_by(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, shots, drawn = read_sample(run, METHODS), bank().shots(0, 2), []

    def watched(weights: Any, *others: Any) -> Any:
        drawn.append(weights)
        return draw_categories(weights, *others)

    monkeypatch.setattr("cpaan.deviations.translator.draw_categories", watched)
    model = CPAAN.load(run / "models" / "ccov-gan", device="cpu")
    model.augment(shots.features, shots.names)
    assert not isinstance(model.center_, ShotMean)  # examples are made about an estimated centre
    assert sample is not None
    made = sample.made["ccov-gan"]
    lenders = [int(name[1:]) for name in made.alpha_base]
    np.testing.assert_allclose(made.alpha, drawn[0][:, lenders], rtol=2e-3, atol=1e-4)


def test_a_run_without_a_sample_gets_one_and_learns_nothing_anew(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / SAMPLE)
    assert read_sample(tmp_path / "run", METHODS) is None
    wanted: list[list[str]] = []

    def watched(names: Any, *others: Any) -> Any:
        wanted.append([*names])
        return fit_methods(names, *others)

    monkeypatch.setattr("cpaan.evaluation.benchmark.fit_methods", watched)
    models = sorted((tmp_path / "run" / "models").glob("*/*"))
    before = [path.stat().st_mtime_ns for path in models]
    run_benchmark(PLAN, bank(), tmp_path / "run")
    assert wanted == [["ccov-gan", "smote"]]
    assert [path.stat().st_mtime_ns for path in models] == before
    for name in (REAL, "ccov-gan", "smote"):
        with np.load(part_path(run, name)) as first, np.load(part_path(tmp_path / "run", name)) as second:
            assert all(np.array_equal(first[key], second[key]) for key in first.files)
    run_benchmark(PLAN, bank(), tmp_path / "run")
    assert wanted[1] == []


def test_large_features_are_sampled_in_bounded_size(tmp_path: Path) -> None:
    data = bank(dimension=5000)
    real = real_sample(data, data.shots(0, 2), 2)
    assert real.real.size <= MOST_NUMBERS
    assert real.base.size <= MOST_NUMBERS
    write_part(tmp_path, REAL, real)
    assert part_path(tmp_path, REAL).stat().st_size < 2e6


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_values_beyond_half_precision_are_kept(run: Path, tmp_path: Path, factor: float) -> None:
    sample = read_sample(run, ())
    assert sample is not None
    write_part(tmp_path, REAL, replace(sample.real, real=sample.real.real * np.float32(factor)))
    again = read_sample(tmp_path, ())
    assert again is not None
    np.testing.assert_allclose(again.real.real, sample.real.real * np.float32(factor), rtol=1e-3, atol=1e-3 * factor)


def test_damaged_samples_are_refused(run: Path, tmp_path: Path) -> None:
    def refuse(message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_sample(tmp_path, ("smote",))

    (tmp_path / SAMPLE).mkdir()
    path, whole = part_path(tmp_path, REAL), part_path(run, REAL).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refuse("damaged")
    with np.load(part_path(run, REAL)) as archive:
        arrays = dict(archive)
    np.savez(path, allow_pickle=True, **{**arrays, "classes": np.array([{"a": 1}], dtype=object)})
    refuse("damaged")
    np.savez(path, **{**arrays, "real_labels": arrays["real_labels"] + 100})
    refuse("labels of real")
    np.savez(path, **{**arrays, "real": arrays["real"] * np.nan})
    refuse("not finite")
    path.write_bytes(whole)
    shutil.copy(part_path(run, "smote"), part_path(tmp_path, "smote"))
    assert read_sample(tmp_path, ("smote",)) is not None
    with np.load(part_path(run, "smote")) as archive:
        made = dict(archive)
    np.savez(part_path(tmp_path, "smote"), **{**made, "made_labels": made["made_labels"] + 50})
    refuse("of another run")


def test_a_part_must_fit_together(run: Path) -> None:
    sample = read_sample(run, ())
    assert sample is not None
    with pytest.raises(ValueError, match="nearest"):
        replace(sample.real, nearest=sample.real.nearest + 1000)
    assert isinstance(sample.real, RealSample)
