"""The benchmark's data: parts that hold what the setup says, nested shots, the official trials, and what is unfit."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cpaan.data import FeatureSet, draw_shots, read_bank, write_features
from cpaan.data.benchmark import BenchmarkData, load_benchmark
from cpaan.data.class_split import Setup, read_setup
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.data.low_shot import ShotSource
from cpaan.errors import InputError

# The folder of development data lies beside the repository; another place can be named in the environment.
SHARED = Path(os.environ.get("CPAAN_DATA", Path(__file__).parents[3] / "shared" / "data"))
TREES = ("ash", "elm", "oak", "yew")
NAMED = Setup(("oak", "ash"), ("yew", "elm"))
NUMBERED = Setup((2, 0), (3, 1))
N_CLASSES, N_TRAIN, N_TEST = 4, 8, 3

# Every row is its own number, so that a row can be followed; classes take turns.
TRAIN_LABELS = np.arange(N_CLASSES * N_TRAIN) % N_CLASSES
TEST_LABELS = np.arange(N_CLASSES * N_TEST) % N_CLASSES
TRAIN = np.arange(len(TRAIN_LABELS), dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)
TEST = 100 + np.arange(len(TEST_LABELS), dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)


def write_bank(folder: Path) -> Path:
    bank = FeatureSet(np.concatenate([TRAIN, TEST]), np.concatenate([TRAIN_LABELS, TEST_LABELS]), TREES)
    is_test = np.arange(len(bank)) >= len(TRAIN)
    write_features(folder / "bank.npz", bank, is_test)
    return folder / "bank.npz"


def write_pair(folder: Path) -> tuple[Path, Path]:
    write_hdf5(folder / "train.hdf5", TRAIN, TRAIN_LABELS)
    write_hdf5(folder / "test.hdf5", TEST, TEST_LABELS)
    return folder / "train.hdf5", folder / "test.hdf5"


def write_splits(folder: Path, number: int = 2) -> list[Path]:
    paths = [folder / f"splitfile_{trial + 1}.json" for trial in range(number)]
    for trial, path in enumerate(paths):
        generator = np.random.default_rng(50 + trial)
        lines = [generator.permutation(np.flatnonzero(np.equal(TRAIN_LABELS, name)))[:5] for name in range(N_CLASSES)]
        path.write_text(json.dumps(np.stack(lines).tolist()))
    return paths


def numbers(part: FeatureSet) -> list[int]:
    return [int(number) for number in part.features[:, 0]]


def load_npz(folder: Path) -> BenchmarkData:
    return load_benchmark(write_bank(folder), NAMED)


def load_hdf5(folder: Path) -> BenchmarkData:
    train, test = write_pair(folder)
    return load_benchmark(train, NUMBERED, test=test)


def load_with_splits(folder: Path) -> BenchmarkData:
    train, test = write_pair(folder)
    return load_benchmark(train, NUMBERED, test=test, splits=write_splits(folder))


every_source = pytest.mark.parametrize("load", [load_npz, load_hdf5, load_with_splits])


@every_source
def test_the_parts(tmp_path: Path, load: Callable[[Path], BenchmarkData]) -> None:
    data = load(tmp_path)
    assert [TREES.index(name) if isinstance(name, str) else name for name in data.base_classes] == [2, 0]
    assert data.base_test.classes == data.base_classes
    assert data.shots(0, 1).classes == data.novel_classes
    assert sorted(numbers(data.base_train)) == [row for row in range(32) if row % 4 in (0, 2)]
    assert sorted(numbers(data.base_test)) == [100 + row for row in range(12) if row % 4 in (0, 2)]
    assert sorted(numbers(data.novel_test)) == [100 + row for row in range(12) if row % 4 in (1, 3)]


@every_source
def test_shots_are_nested_training_examples_class_by_class(
    tmp_path: Path, load: Callable[[Path], BenchmarkData]
) -> None:
    data = load(tmp_path)
    most = data.shots(1, 5)
    assert [row % 4 for row in numbers(most)] == [3] * 5 + [1] * 5
    assert len(set(numbers(most))) == 10
    assert most.labels.tolist() == [0] * 5 + [1] * 5
    for k in (1, 2, 5):
        for name in data.novel_classes:
            np.testing.assert_array_equal(data.shots(1, k).of_class(name), most.of_class(name)[:k])
    assert data.shots(1, 5) == most
    assert data.shots(0, 5) != most


@pytest.mark.parametrize("k", [1, 2, 5, N_TRAIN - 1])
@pytest.mark.parametrize("trial", [0, 1, 4, 2**40])
def test_draws_are_those_of_draw_shots(tmp_path: Path, k: int, trial: int) -> None:
    data = load_npz(tmp_path)
    novel = read_bank(tmp_path / "bank.npz").train.select(NAMED.novel)
    assert data.shots(trial, k) == draw_shots(novel, k, trial)[0]
    assert numbers(load_hdf5(tmp_path).shots(trial, k)) == numbers(data.shots(trial, k))


@pytest.mark.parametrize("load", [load_npz, load_hdf5])
def test_as_many_shots_as_there_are_examples(tmp_path: Path, load: Callable[[Path], BenchmarkData]) -> None:
    data = load(tmp_path)
    assert sorted(numbers(data.shots(0, N_TRAIN))) == [row for row in range(32) if row % 4 in (1, 3)]
    with pytest.raises(InputError, match=r"class ('yew'|3) has 8 training examples, too few to draw 9 shots"):
        data.shots(0, N_TRAIN + 1)


@every_source
@pytest.mark.parametrize(("trial", "k", "name"), [(0, 0, "k"), (0, 1.0, "k"), (-1, 1, "trial"), ("0", 1, "trial")])
def test_wrong_trials_and_shots(
    tmp_path: Path, load: Callable[[Path], BenchmarkData], trial: Any, k: Any, name: str
) -> None:
    with pytest.raises(InputError, match=f"{name} is .*; give a whole number of at least"):
        load(tmp_path).shots(trial, k)


def test_split_files_number_the_rows_of_the_training_file(tmp_path: Path) -> None:
    data = load_with_splits(tmp_path)
    assert data.n_trials == 2
    for trial, path in enumerate(write_splits(tmp_path)):
        table = json.loads(path.read_text())
        assert numbers(data.shots(trial, 3)) == table[3][:3] + table[1][:3]
    with pytest.raises(InputError, match=r"trial 2 is beyond the 2 split file\(s\), which are for trials from 0 to 1"):
        data.shots(2, 1)
    with pytest.raises(InputError, match="the split file of trial 0 has 5 shots of each class, not 6"):
        data.shots(0, 6)
    assert load_hdf5(tmp_path).n_trials is None


def test_one_split_file_and_an_iterator_of_them(tmp_path: Path) -> None:
    splits = write_splits(tmp_path)
    train, test = write_pair(tmp_path)
    assert load_benchmark(train, NUMBERED, test=test, splits=str(splits[0])).n_trials == 1
    assert load_benchmark(train, NUMBERED, test=test, splits=iter(splits)).n_trials == 2
    with pytest.raises(InputError, match="the bank is none; leave splits out"):
        load_benchmark(write_bank(tmp_path), NAMED, splits=splits)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0], [32], [2], [3]], r"has row 32 for class 1, but .*train\.hdf5 has 32 rows"),
        ([[0], [1], [2], [-1]], "has row -1 for class 3"),
        (
            [[0], [2], [2], [3]],
            r"has row 2 for class 1, but in .*train\.hdf5 it is of class 2; take the features",
        ),
        ([[0], [1], [2]], "has 3 lines, and so none for class 3"),
        ([[0], [1, 5], [2], [3]], "lines of different lengths"),
        ([0, 1, 2, 3], "is not a split file; give a list with one list of row numbers"),
        ([[0.5]] * 4, "is not a split file"),
        ([[]] * 4, "is not a split file"),
        ({"0": [1]}, "is not a split file"),
    ],
)
def test_wrong_split_files(tmp_path: Path, content: Any, message: str) -> None:
    train, test = write_pair(tmp_path)
    (tmp_path / "split.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_benchmark(train, NUMBERED, test=test, splits=[tmp_path / "split.json"])


def test_lines_of_base_classes_are_not_looked_at(tmp_path: Path) -> None:
    train, test = write_pair(tmp_path)
    (tmp_path / "split.json").write_text(json.dumps([[99], [5], [99], [7]]))
    data = load_benchmark(train, NUMBERED, test=test, splits=[tmp_path / "split.json"])
    assert numbers(data.shots(0, 1)) == [7, 5]


def test_split_files_that_cannot_be_read(tmp_path: Path) -> None:
    train, test = write_pair(tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        load_benchmark(train, NUMBERED, test=test, splits=[tmp_path / "missing.json"])
    with pytest.raises(InputError, match="is not JSON"):
        load_benchmark(train, NUMBERED, test=test, splits=[train])


def test_setups_from_files(tmp_path: Path) -> None:
    train, test = write_pair(tmp_path)
    (tmp_path / "setup.json").write_text(json.dumps({"base": TREES[:2], "novel": TREES[2:]}))
    official = {"base_classes_1": [2, 0], "novel_classes_1": [3, 1], "base_classes_2": [1], "novel_classes_2": [2]}
    (tmp_path / "label_idx.json").write_text(json.dumps(official))
    assert load_benchmark(write_bank(tmp_path), tmp_path / "setup.json").novel_classes == ("oak", "yew")
    data = load_benchmark(train, str(tmp_path / "label_idx.json"), test=test, part=1)
    assert data.fingerprint == load_hdf5(tmp_path).fingerprint
    with pytest.raises(InputError, match="two parts"):
        load_benchmark(train, tmp_path / "label_idx.json", test=test)
    with pytest.raises(InputError, match="part is 1, but setup is not a label_idx"):
        load_benchmark(train, NUMBERED, test=test, part=1)


def test_a_second_archive_for_testing(tmp_path: Path) -> None:
    train, test = tmp_path / "train.npz", tmp_path / "test.npz"
    write_features(train, FeatureSet(TRAIN, TRAIN_LABELS, TREES))
    expected = load_npz(tmp_path)
    tests = FeatureSet(TEST, TEST_LABELS, TREES)
    write_features(test, tests)
    assert load_benchmark(train, NAMED, test=test).fingerprint == expected.fingerprint
    write_features(test, tests, is_test=np.ones(len(TEST), dtype=bool))
    assert load_benchmark(train, NAMED, test=test).fingerprint == expected.fingerprint
    # Of a bank with both, training rows are not tested with, here and where it is named twice.
    bank = write_bank(tmp_path)
    assert load_benchmark(train, NAMED, test=bank).fingerprint == expected.fingerprint
    assert load_benchmark(bank, NAMED, test=bank).fingerprint == expected.fingerprint
    assert load_benchmark(bank, NAMED, test=test).fingerprint == expected.fingerprint


def test_banks_without_test_examples(tmp_path: Path) -> None:
    write_features(tmp_path / "train.npz", FeatureSet(TRAIN, TRAIN_LABELS, TREES))
    for test in (None, tmp_path / "train.npz"):
        with pytest.raises(InputError, match="no test examples; add an array is_test to it, or give a second file"):
            load_benchmark(tmp_path / "train.npz", NAMED, test=test)
    train, _ = write_pair(tmp_path)
    for test in (None, train):
        with pytest.raises(InputError, match="no test examples: an HDF5 file is one part; give a second file as test"):
            load_benchmark(train, NUMBERED, test=test)


def test_classes_that_there_are_not(tmp_path: Path) -> None:
    bank = write_bank(tmp_path)
    with pytest.raises(InputError, match="unknown class 'oka'; did you mean 'oak'"):
        load_benchmark(bank, Setup(("oka",), ("yew",)))
    train, test = write_pair(tmp_path)
    with pytest.raises(InputError, match="unknown class 7, 8; known: 0, 1, 2, 3"):
        load_benchmark(train, Setup((0, 7), (1, 8)), test=test)
    with pytest.raises(InputError, match="unknown class 'oak'"):
        load_benchmark(train, NAMED, test=test)
    with pytest.raises(InputError, match="both base and novel: 'oak'"):
        load_benchmark(bank, Setup(("oak",), ("oak",)))


@pytest.mark.parametrize(
    ("drop", "part", "message"),
    [
        (2, "test", "no test examples of 2; add some or leave them out of the setup"),
        (1, "test", "no test examples of 1"),
        (0, "train", "no training examples of 0"),
        (3, "train", "no training examples of 3"),
    ],
)
def test_classes_without_examples_in_a_part(tmp_path: Path, drop: int, part: str, message: str) -> None:
    train, test = write_pair(tmp_path)
    features, labels = (TEST, TEST_LABELS) if part == "test" else (TRAIN, TRAIN_LABELS)
    write_hdf5(tmp_path / f"{part}.hdf5", features[labels != drop], labels[labels != drop])
    with pytest.raises(InputError, match=message):
        load_benchmark(train, NUMBERED, test=test)


def test_features_of_two_networks(tmp_path: Path) -> None:
    train, test = write_pair(tmp_path)
    write_hdf5(test, TEST[:, :1], TEST_LABELS)
    with pytest.raises(InputError, match="have 2, 1, 1 features; they must agree"):
        load_benchmark(train, NUMBERED, test=test)


def test_parts_with_other_classes() -> None:
    ash, elm = FeatureSet([[0.0]], ["ash"]), FeatureSet([[1.0]], ["elm"])
    source = ShotSource(("elm",), (np.arange(1),), elm.take)
    with pytest.raises(InputError, match="base classes for training and for testing must be the same"):
        BenchmarkData(ash, elm, elm, source)
    with pytest.raises(InputError, match="novel classes"):
        BenchmarkData(ash, ash, ash, source)


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = write_pair(tmp_path)
    splits = write_splits(tmp_path)
    rows: list[tuple[str, int]] = []
    read = Hdf5Features.read

    def counted(self: Hdf5Features, wanted: npt.NDArray[np.int64]) -> Any:
        rows.extend((self.path.stem, int(row)) for row in wanted)
        return read(self, wanted)

    monkeypatch.setattr(Hdf5Features, "read", counted)
    data = load_benchmark(train, Setup((2,), (3,)), test=test, splits=splits)
    assert {TRAIN_LABELS[row] for part, row in rows if part == "train"} == {2}
    assert {TEST_LABELS[row] for part, row in rows if part == "test"} == {2, 3}
    rows.clear()
    assert numbers(data.shots(0, 2)) == [row for _, row in rows]


@every_source
def test_data_can_be_sent_to_another_process(tmp_path: Path, load: Callable[[Path], BenchmarkData]) -> None:
    data = load(tmp_path)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.base_train == data.base_train
    assert copy.shots(1, 3) == data.shots(1, 3)
    assert copy.fingerprint == data.fingerprint


def test_the_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    train, test = write_pair(tmp_path)
    first = load_benchmark(train, NUMBERED, test=test)
    assert len(first.fingerprint) == 16
    seen = {first.fingerprint, load_npz(tmp_path).fingerprint, load_with_splits(tmp_path).fingerprint}
    seen.add(load_benchmark(train, Setup((0, 2), (3, 1)), test=test).fingerprint)
    seen.add(load_benchmark(train, Setup((2, 0), (3,)), test=test).fingerprint)
    for features, labels, path in ((TRAIN, TRAIN_LABELS, train), (TEST, TEST_LABELS, test)):
        for row in (2, 3):
            changed = features.copy()
            changed[row, 1] += 1
            write_hdf5(path, changed, labels)
            seen.add(load_benchmark(train, NUMBERED, test=test).fingerprint)
        write_hdf5(path, features.astype(np.float16), labels)
        seen.add(load_benchmark(train, NUMBERED, test=test).fingerprint)
        write_hdf5(path, features, labels)
    assert len(seen) == 11
    assert load_benchmark(train, NUMBERED, test=test).fingerprint == first.fingerprint


@pytest.mark.parametrize(("name", "dimension"), [("clinc150-minilm", 384), ("tiny-imagenet-resnet10", 512)])
def test_development_files(name: str, dimension: int) -> None:
    bank = SHARED / "features" / f"{name}.npz"
    if not bank.is_file():
        pytest.skip(f"no file {bank}; set CPAAN_DATA to the folder with the development data")
    setup = read_setup(bank.parent / f"{name.rpartition('-')[0]}-setup.json")
    data = load_benchmark(bank, setup)
    assert (data.base_classes, data.novel_classes) == (setup.base, setup.novel)
    assert data.shots(4, 20).features.shape == (20 * len(setup.novel), dimension)


@pytest.mark.parametrize(("part", "sizes"), [(1, (193, 300)), (2, (196, 311))])
def test_the_official_trials(tmp_path: Path, part: int, sizes: tuple[int, int]) -> None:
    official = SHARED / "imagenet-lowshot"
    if not (official / "label_idx.json").is_file():
        pytest.skip(f"no file in {official}; set CPAAN_DATA to the folder with the development data")
    splits = [official / f"splitfile_{trial}.json" for trial in range(1, 6)]
    tables = np.array([json.loads(path.read_text()) for path in splits])
    # Rows of the benchmark come class by class: a class ends after the last row that a trial draws from it, or later.
    ends = tables.max(axis=(0, 2)) + 1
    labels = np.repeat(np.arange(1000), np.diff(ends, prepend=0))
    write_hdf5(tmp_path / "train.hdf5", np.arange(len(labels), dtype=np.float32).reshape(-1, 1), labels)
    write_hdf5(tmp_path / "test.hdf5", np.zeros((1000, 1)), np.arange(1000))
    data = load_benchmark(
        tmp_path / "train.hdf5", official / "label_idx.json", test=tmp_path / "test.hdf5", splits=splits, part=part
    )
    assert (data.base_train.n_classes, data.novel_test.n_classes) == sizes
    assert data.n_trials == 5
    novel = np.array(data.novel_classes)
    for trial in (0, 4):
        for k in (1, 2, 5, 10, 20):
            shots = data.shots(trial, k)
            np.testing.assert_array_equal(shots.names, np.repeat(novel, k))
            np.testing.assert_array_equal(shots.features[:, 0], tables[trial][novel, :k].ravel())
