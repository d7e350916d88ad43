"""Feature files in HDF5: the rows that are asked for and no others, padding, damage, and little memory."""

import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpaan.data import FeatureSet, hdf5
from cpaan.data.feature_table import format_of
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.errors import InputError

# It has no types, and so is no typed module here.
h5py: Any = import_module("h5py")
LABELS = np.array([5, 2, 5, 9, 2, 5])
# Every row is its own number, so that a row can be followed.
FEATURES = np.arange(6, dtype=np.float32)[:, None] * np.ones((1, 3), dtype=np.float32)


def write_raw(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file.create_dataset(name, data=data)
    return path


def write_padded(path: Path, rows: int = 4) -> Path:
    features = np.concatenate([FEATURES, np.full((rows, 3), np.nan, dtype=np.float32)])
    labels = np.concatenate([LABELS, np.full(rows, -1)])
    return write_raw(path, all_feats=features, all_labels=labels, count=np.array([6], dtype=np.int32))


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "train.hdf5"
    write_hdf5(path, FEATURES, LABELS)
    write_hdf5(str(path), FEATURES, LABELS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.hdf5"]
    train = Hdf5Features(path)
    assert (train.n, train.dimension, train.classes) == (6, 3, (2, 5, 9))
    np.testing.assert_array_equal(train.labels, LABELS)
    np.testing.assert_array_equal(train.read(np.arange(6)), FEATURES)
    assert not train.labels.flags.writeable


def test_the_datasets_in_a_file(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "train.hdf5", FEATURES, LABELS)
    with h5py.File(tmp_path / "train.hdf5", "r") as file:
        assert sorted(file) == ["all_feats", "all_labels", "count"]
        assert file["count"][0] == 6
        assert file["all_feats"].dtype == np.float32
        assert file["all_labels"].dtype == np.int32


@pytest.mark.parametrize(
    ("kind", "read"), [("f2", "f2"), ("f4", "f4"), ("f8", "f4"), (">f4", "f4"), (">f2", "f2"), ("i8", None)]
)
def test_types_of_features(tmp_path: Path, kind: str, read: str | None) -> None:
    path = write_raw(tmp_path / "t.h5", all_feats=FEATURES.astype(kind), all_labels=LABELS, count=6)
    if read is None:
        with pytest.raises(InputError, match="all_feats is int64 of shape"):
            Hdf5Features(path).read([0])
        return
    features = Hdf5Features(path).select([5, 2, 9]).features
    assert features.dtype == np.dtype(read)
    np.testing.assert_array_equal(features, FEATURES)


def test_padding_is_not_read(tmp_path: Path) -> None:
    padded = Hdf5Features(write_padded(tmp_path / "padded.hdf5"))
    assert padded.n == 6
    assert padded.classes == (2, 5, 9)
    assert len(padded.select(padded.classes)) == 6
    with pytest.raises(InputError, match="rows must be row numbers from 0 to 5"):
        padded.read([6])


def test_select_has_the_rows_of_its_classes_in_order(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "train.hdf5", FEATURES, LABELS)
    train = Hdf5Features(tmp_path / "train.hdf5")
    chosen = train.select([9, 5])
    assert chosen == FeatureSet(FEATURES, LABELS).select([9, 5])
    assert chosen.classes == (9, 5)
    assert chosen.features[:, 0].tolist() == [0, 2, 3, 5]
    assert not chosen.features.flags.writeable
    assert train.select(np.array([2])).classes == (2,)


def test_take_has_the_rows_in_the_order_wanted(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "train.hdf5", FEATURES, LABELS)
    train = Hdf5Features(tmp_path / "train.hdf5")
    taken = train.take([5, 1, 0], classes=[5, 2])
    assert taken.features[:, 0].tolist() == [5, 1, 0]
    assert taken.names.tolist() == [5, 2, 5]
    with pytest.raises(InputError, match=r"row 3 of .* other classes"):
        train.take([5, 1, 3], classes=[5, 2])
    with pytest.raises(InputError, match="no examples of 9"):
        train.take([5, 1], classes=[5, 2, 9])


@given(
    rows=st.lists(st.integers(0, 99), min_size=1, max_size=60),
    gap=st.integers(1, 20),
    block=st.integers(1, 40),
    layout=st.sampled_from(["contiguous", "chunked", "compressed"]),
)
def test_any_rows_in_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], gap: int, block: int, layout: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{layout}.hdf5"
    features = np.arange(200, dtype=np.float32).reshape(100, 2)
    if not path.exists():
        with h5py.File(path, "w") as file:
            options: dict[str, Any] = {} if layout == "contiguous" else {"chunks": (7, 1)}
            options |= {"compression": "gzip"} if layout == "compressed" else {}
            file.create_dataset("all_feats", data=features, **options)
            file["all_labels"], file["count"] = np.zeros(100, dtype=int), [100]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "_GAP_BYTES", gap * 8)
        patch.setattr(hdf5, "_BLOCK_BYTES", block * 8)
        np.testing.assert_array_equal(Hdf5Features(path).read(rows), features[rows])


@given(rows=st.sets(st.integers(0, 500), min_size=1), gap=st.integers(1, 50), block=st.integers(1, 90))
def test_blocks_part_the_rows(rows: set[int], gap: int, block: int) -> None:
    ascending = np.array(sorted(rows))
    spans = [ascending[start:stop] for start, stop in hdf5._blocks(ascending, gap, block)]
    np.testing.assert_array_equal(np.concatenate(spans), ascending)
    assert all(span[-1] - span[0] < block for span in spans)
    assert all((np.diff(span) <= gap).all() for span in spans)


def test_the_file_is_opened_late_and_not_kept_open(tmp_path: Path) -> None:
    path = tmp_path / "train.hdf5"
    train = Hdf5Features(path)
    assert repr(train) == f"Hdf5Features({str(path)!r})"
    write_hdf5(path, FEATURES, LABELS)
    assert train.n == 6
    copy = pickle.loads(pickle.dumps(train))
    assert copy.select([9]) == train.select([9])
    path.unlink()
    with pytest.raises(InputError, match="there is no file"):
        train.read([0])


@pytest.mark.parametrize(("classes", "unknown"), [([3], "3"), ([5, "2"], "'2'"), ([True], "True"), ([5.0], r"5\.0")])
def test_unknown_classes(tmp_path: Path, classes: list[Any], unknown: str) -> None:
    write_hdf5(tmp_path / "train.hdf5", FEATURES, LABELS)
    with pytest.raises(InputError, match=f"unknown class {unknown}"):
        Hdf5Features(tmp_path / "train.hdf5").select(classes)


@pytest.mark.parametrize("rows", [[-1], [6], [[0]], [0.5], [True], []])
def test_wrong_rows(tmp_path: Path, rows: Any) -> None:
    write_hdf5(tmp_path / "train.hdf5", FEATURES, LABELS)
    with pytest.raises(InputError, match=r"rows must be row numbers from 0 to 5|no rows are taken"):
        Hdf5Features(tmp_path / "train.hdf5").read(rows)


def test_features_that_are_not_finite_are_named_by_their_rows(tmp_path: Path) -> None:
    features = FEATURES.astype(np.float64)
    features[3, 1], features[5, 0] = np.nan, 1e300
    path = write_raw(tmp_path / "odd.hdf5", all_feats=features, all_labels=LABELS, count=[6])
    assert len(Hdf5Features(path).select([2])) == 2
    with pytest.raises(InputError, match=r"odd\.hdf5: all_feats is NaN or infinite in row 3;"):
        Hdf5Features(path).select([9])
    with pytest.raises(InputError, match=r"odd\.hdf5: all_feats is NaN or infinite in rows 3, 5;"):
        Hdf5Features(path).select([5, 9])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"all_feats": None}, "no dataset called all_feats; found: all_labels, count"),
        ({"all_labels": None}, "no dataset called all_labels"),
        ({"count": None}, "no dataset called count"),
        ({"all_feats": np.zeros(6)}, r"all_feats is float64 of shape \(6,\); it must be float of n × D"),
        ({"all_feats": np.zeros((6, 0))}, r"of shape \(6, 0\)"),
        ({"all_labels": np.zeros(5, dtype=int)}, r"all_labels has shape \(5,\) for 6 rows"),
        ({"all_labels": np.zeros((6, 1), dtype=int)}, r"all_labels has shape \(6, 1\)"),
        ({"all_labels": np.full(6, 0.5)}, "all_labels is float64 and not all class indices"),
        ({"all_labels": np.full(6, np.nan)}, "not all class indices"),
        ({"all_labels": np.full(6, -1)}, "not all class indices; give whole numbers from 0"),
        ({"all_labels": [b"oak"] * 6}, "all_labels is object; it must be numbers"),
        ({"count": [7]}, "count is 7; it must be one whole number from 1 to 6, the rows of all_feats"),
        ({"count": [0]}, "count is 0"),
        ({"count": [-3]}, "count is -3"),
        ({"count": 2.5}, r"count is 2\.5"),
        ({"count": np.nan}, "count is nan"),
        ({"count": [3, 3]}, "count is 2 numbers"),
        ({"count": b"six"}, "count is"),
    ],
)
def test_wrong_datasets_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    datasets = {"all_feats": FEATURES, "all_labels": LABELS, "count": [6]} | change
    path = write_raw(tmp_path / "odd.hdf5", **{name: data for name, data in datasets.items() if data is not None})
    with pytest.raises(InputError, match=message):
        _ = Hdf5Features(path).labels


def test_labels_and_count_of_other_number_types(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "t.h5", all_feats=FEATURES, all_labels=LABELS.astype("f4"), count=np.float64(5))
    assert Hdf5Features(path).labels.tolist() == LABELS[:5].tolist()
    assert Hdf5Features(path).labels.dtype == np.int64


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*missing\.hdf5"):
        _ = Hdf5Features(tmp_path / "missing.hdf5").n
    with pytest.raises(InputError, match="is a folder"):
        _ = Hdf5Features(tmp_path).n
    (tmp_path / "text.hdf5").write_text("oak")
    with pytest.raises(InputError, match=r"text\.hdf5 is not an HDF5 file"):
        _ = Hdf5Features(tmp_path / "text.hdf5").n
    whole = write_padded(tmp_path / "whole.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.hdf5 is not an HDF5 file, is damaged"):
        _ = Hdf5Features(tmp_path / "cut.hdf5").n
    with h5py.File(tmp_path / "group.hdf5", "w") as file:
        file.create_group("all_feats")
    with pytest.raises(InputError, match="no dataset called all_feats"):
        _ = Hdf5Features(tmp_path / "group.hdf5").n


def test_kinds_of_files(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "features", FEATURES, LABELS)
    np.savez(tmp_path / "archive.npz", X=FEATURES)
    (tmp_path / "archive.npz").rename(tmp_path / "archive.hdf5")
    (tmp_path / "text.H5").write_text("oak")
    assert format_of(tmp_path / "features") == "hdf5"
    assert format_of(tmp_path / "archive.hdf5") != "hdf5"
    assert format_of(tmp_path / "text.H5") == "hdf5"
    assert format_of(tmp_path) != "hdf5"
    assert format_of("a\0b") != "hdf5"


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[np.nan]], [0], "features are NaN"),
        ([[1e300]], [0], "features as float32 values are NaN or infinite in row 0"),
        ([[1.0]], [0, 1], r"labels has shape \(2,\) for 1 examples"),
        ([[1.0]], ["oak"], "not all class indices"),
        ([[1.0]], [0.0], "labels are float64 and not all class indices"),
        ([[1.0]], [-1], "give whole numbers from 0"),
        ([[1.0]], [2**40], "not all class indices"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, features: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_hdf5(tmp_path / "train.hdf5", features, labels)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*missing; make it first"):
        write_hdf5(tmp_path / "missing" / "train.hdf5", FEATURES, LABELS)
    with pytest.raises(InputError, match="is a folder"):
        write_hdf5(tmp_path, FEATURES, LABELS)
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(InputError, match="cannot write"):
            write_hdf5(tmp_path / name, FEATURES, LABELS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "train.hdf5"
    write_hdf5(path, FEATURES, LABELS)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(InputError, match=r"cannot write .*train\.hdf5: No space left"):
        write_hdf5(path, FEATURES[:1], LABELS[:1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.hdf5"]
    assert Hdf5Features(path).n == 6


# A process of its own, because the peak of this one has other causes; VmHWM, because getrusage starts from the peak
# of the process that it was started by.
MEASURE = """
import sys
from pathlib import Path
import h5py, numpy
from cpaan.data.hdf5 import Hdf5Features

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

before = peak()
chosen = Hdf5Features(sys.argv[1]).select(range(10))
print(peak() - before, len(chosen), chosen.features.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("order", ["by class", "shuffled"])
def test_a_tenth_of_a_file_takes_little_more_than_a_tenth_of_its_size(tmp_path: Path, order: str) -> None:
    rows, dimension = 200_000, 512
    labels = np.arange(rows) * 100 // rows
    if order == "shuffled":
        np.random.default_rng(0).shuffle(labels)
    path = tmp_path / "large.hdf5"
    with h5py.File(path, "w") as file:
        # Allocated, but never filled: a file of full length with holes in it, which is quick to make.
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((rows, dimension))
        h5py.h5d.create(file.id, b"all_feats", h5py.h5t.IEEE_F32LE, space, creation)
        file["all_labels"], file["count"] = labels, [rows]
    size = path.stat().st_size
    assert size > 400e6
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True, timeout=600
    ).stdout
    path.unlink()
    growth, n, nbytes = (int(number) for number in output.split())
    assert n == rows // 10
    assert nbytes <= growth < size / 4
