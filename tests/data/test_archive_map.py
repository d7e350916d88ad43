"""Mapped members of archives: the same values, and nothing that a forged archive can do."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpaan.data import FeatureSet, npz, read_bank, read_features, write_features
from cpaan.data.memory_map import is_mapped
from cpaan.data.npz import map_member
from cpaan.errors import InputError

FEATURES = np.random.default_rng(0).normal(size=(30, 7))
TREES = FeatureSet(FEATURES, np.repeat(["ash", "elm", "oak"], 10))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(npz, "_SMALLEST_MAPPED", 0)
    write_features(tmp_path / "trees.npz", TREES)
    return tmp_path / "trees.npz"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_mapped_is_what_would_be_read(path: Path, dtype: str) -> None:
    write_features(path, TREES, dtype=dtype)
    found = read_features(path)
    assert is_mapped(found.features)
    assert found.features.dtype == dtype
    np.testing.assert_array_equal(found.features, FEATURES.astype(dtype))
    np.testing.assert_array_equal(found.to_torch()[0], FEATURES.astype(dtype))


def test_test_rows_at_the_end_leave_the_others_in_the_file(path: Path) -> None:
    write_features(path, TREES, is_test=np.arange(30) >= 25)
    bank = read_bank(path)
    assert bank.test is not None
    assert is_mapped(bank.train.features)
    np.testing.assert_array_equal(bank.train.features, FEATURES[:25])
    np.testing.assert_array_equal(bank.test.features, FEATURES[25:])


@pytest.mark.parametrize(
    ("array", "smallest"),
    [
        (FEATURES, 10_000),
        (np.asfortranarray(FEATURES), 0),
        (FEATURES.astype(int), 0),
        (np.zeros((0, 7)), 0),
        (FEATURES > 0, 0),
    ],
    ids=["small", "columns first", "integers", "empty", "booleans"],
)
def test_what_is_not_mapped_is_left_to_numpy(tmp_path: Path, array: Any, smallest: int) -> None:
    np.savez(tmp_path / "trees.npz", features=array)
    assert map_member(tmp_path / "trees.npz", "features", smallest) is None
    assert map_member(tmp_path / "trees.npz", "other", 0) is None


def test_compressed_features_are_read(path: Path) -> None:
    np.savez_compressed(path, features=FEATURES, labels=TREES.names)
    assert map_member(path, "features", 0) is None
    assert read_features(path) == TREES


@pytest.mark.parametrize("shape", ["(30000, 7)", "(99999999999999999999, 7)", "(29, 7)"])
def test_a_shape_that_does_not_fit_is_refused(path: Path, shape: str) -> None:
    content = path.read_bytes()
    claimed = f"'shape': {shape}, }}".encode()
    start = content.index(b"'shape': (30, 7), }")
    path.write_bytes(content[:start] + claimed + content[start + len(claimed) :])
    with pytest.raises(InputError, match="damaged"):
        read_features(path)


def test_a_member_that_is_not_where_it_should_be_is_refused(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"PK\x03\x04" + bytes(40) + content)  # zipfile looks for the directory from the end
    with zipfile.ZipFile(path) as found:
        assert found.namelist()
    assert read_features(path) == TREES
    place = content.index(b"PK\x03\x04")
    path.write_bytes(content[:place] + b"PK\x03\x09" + content[place + 4 :])
    with pytest.raises(InputError):
        read_features(path)


@given(st.integers(0, 3000), st.integers(0, 255), st.integers(0, 400))
def test_damage_anywhere_is_an_error_or_gives_rows_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "trees.npz"
    np.savez(path, features=FEATURES)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content[: len(content) - (cut if cut > 200 else 0)])
    try:
        found = map_member(path, "features", 0)
    except InputError:
        return
    assert found is None or found.nbytes <= path.stat().st_size
    assert found is None or np.asarray(found).sum() is not None
