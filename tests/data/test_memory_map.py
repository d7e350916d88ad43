"""Memory maps: what counts as one, that reading gives its values, and what happens when the file changes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data import FeatureSet, memory_map
from cpaan.data.memory_map import RowReader, is_mapped
from cpaan.errors import InputError

FEATURES = np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32)
NAMES = np.repeat(["ash", "elm", "oak"], 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "bank.npy", FEATURES)
    return tmp_path / "bank.npy"


def mapped(path: Path, mode: Any = "r") -> Any:
    return np.load(path, mmap_mode=mode)


def test_only_what_was_mapped_for_reading_counts(path: Path) -> None:
    whole = mapped(path)
    assert all(is_mapped(array) for array in (whole, whole[5:], np.asarray(whole)[::2], np.asarray(whole).T))
    copied_on_write = mapped(path, "c")
    copied_on_write[0] = 7
    copied_on_write.flags.writeable = False
    assert not any(is_mapped(array) for array in (FEATURES, whole[[1, 2]], copied_on_write, mapped(path, "r+")))
    # Changes that are held in memory alone must survive.
    RowReader(copied_on_write).release()
    assert (copied_on_write[0] == 7).all()


@pytest.mark.parametrize("kept", [0, 10_000, 2**28])
def test_rows_stay_the_same_however_often_they_are_let_go_of(
    path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_map, "KEPT_BYTES", kept)
    monkeypatch.setattr(memory_map, "BLOCK_BYTES", 10_000)
    reader = RowReader(mapped(path))
    rows = np.array([[2999, 0], [5, 5]])
    for _ in range(3):
        np.testing.assert_array_equal(reader.read(rows), FEATURES[rows])
        np.testing.assert_array_equal(reader.read(slice(10, 20)), FEATURES[10:20])
    blocks = list(reader.blocks())
    assert [start for start, _ in blocks] == list(range(0, 3000, 39))
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), FEATURES)


def test_a_file_that_was_cut_off_is_named_instead_of_ending_the_process(path: Path) -> None:
    reader = RowReader(mapped(path)[10:20])
    os.truncate(path, 5000)
    with pytest.raises(InputError, match=r"bank\.npy has 5000 bytes, but had 768128 or more when it was mapped"):
        reader.read(slice(0, 5))
    with pytest.raises(InputError, match="map it again"):
        FeatureSet(mapped_before := reader.array, np.zeros(len(mapped_before), dtype=int))


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted")
def test_a_file_that_was_deleted_can_be_read_to_the_end(path: Path) -> None:
    reader = RowReader(mapped(path))
    path.unlink()
    np.testing.assert_array_equal(reader.read(slice(0, 9)), FEATURES[:9])


def test_a_set_of_mapped_features_copies_neither_them_nor_consecutive_rows(path: Path) -> None:
    whole = mapped(path)
    bank = FeatureSet(whole, NAMES)
    parts = (bank, bank.take(np.arange(3000) < 1500), bank.select(["elm"]), bank.select(["ash", "elm", "oak"]))
    assert all(np.shares_memory(part.features, whole) and is_mapped(part.features) for part in parts)
    np.testing.assert_array_equal(bank.select(["elm"]).features, FEATURES[1000:2000])
    scattered = bank.take([2, 1, 7])
    np.testing.assert_array_equal(scattered.features, FEATURES[[2, 1, 7]])
    assert not is_mapped(scattered.features)


def test_wrong_rows_of_a_map_are_named_by_their_number_in_the_file(path: Path) -> None:
    changed = mapped(path, "r+")
    changed[[17, 2500], 3] = np.nan, np.inf
    changed.flush()
    with pytest.raises(InputError, match=r"NaN or infinite in rows 17, 2500; remove"):
        FeatureSet(mapped(path), NAMES)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell resident memory")
def test_what_was_read_does_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_files() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:")) // 1024

    np.save(tmp_path / "large.npy", np.ones((64, 2**18), dtype=np.float32))
    monkeypatch.setattr(memory_map, "KEPT_BYTES", 2**23)
    whole = mapped(tmp_path / "large.npy")
    reader, before = RowReader(whole), from_files()
    for _, block in reader.blocks():
        assert block.all()
        assert from_files() - before < 30
    reader.read(np.arange(64))
    assert from_files() - before < 30
    assert np.asarray(whole).all()  # read in another way, all 64 megabytes stay
    assert from_files() - before > 50
    reader.release()
    assert from_files() - before < 30
