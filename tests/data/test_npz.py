"""NumPy archives: what is written is read, pickles are never run, damage is found, large arrays stay in the file."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cpaan.data import FeatureSet, npz, read_bank, read_features, write_features
from cpaan.data.memory_map import is_mapped
from cpaan.data.npz import map_member
from cpaan.errors import InputError

TREES = FeatureSet([[0.5, 1.0], [1.5, 2.0], [0.25, 3.0]], ["oak", "elm", "oak"])
# The folder of development data lies beside the repository; another place can be named in the environment.
SHARED = Path(os.environ.get("CPAAN_DATA", Path(__file__).parents[3] / "shared" / "data"))


@given(
    features=hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=5),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    data=st.data(),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, features: Any, data: st.DataObject) -> None:
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
    kinds: list[st.SearchStrategy[Any]] = [
        text,
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
    ]
    kind = data.draw(st.sampled_from(kinds))
    names = data.draw(st.lists(kind, min_size=len(features), max_size=len(features)))
    path = tmp_path_factory.mktemp("archive") / "features.npz"
    original = FeatureSet(features, names)
    write_features(path, original)
    read = read_features(path)
    assert read == original
    assert [type(name) for name in read.classes] == [type(name) for name in original.classes]


def test_the_name_stays_and_nothing_lies_beside(tmp_path: Path) -> None:
    write_features(tmp_path / "trees", TREES)
    write_features(str(tmp_path / "trees"), TREES)
    assert [path.name for path in tmp_path.iterdir()] == ["trees"]
    assert read_features(tmp_path / "trees") == TREES


def test_the_arrays_in_a_file(tmp_path: Path) -> None:
    write_features(tmp_path / "trees.npz", TREES, is_test=[0, 0, 1], dtype="float16")
    with np.load(tmp_path / "trees.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"features", "labels", "classes", "is_test"}
        assert archive["features"].dtype == np.float16
        assert archive["is_test"].tolist() == [False, False, True]
        assert archive["classes"][archive["labels"]].tolist() == ["oak", "elm", "oak"]


def test_bank_splits_by_is_test(tmp_path: Path) -> None:
    write_features(tmp_path / "trees.npz", TREES, is_test=[False, False, True])
    bank = read_bank(tmp_path / "trees.npz")
    assert bank.train == TREES.take([0, 1])
    assert bank.test is not None
    assert bank.test.classes == ("oak",)
    assert bank.test.features.tolist() == [[0.25, 3.0]]


def test_bank_without_test_rows(tmp_path: Path) -> None:
    write_features(tmp_path / "plain.npz", TREES)
    write_features(tmp_path / "none.npz", TREES, is_test=np.zeros(3, dtype=bool))
    for name in ("plain.npz", "none.npz"):
        bank = read_bank(tmp_path / name)
        assert bank.train == TREES
        assert bank.test is None


def test_files_of_others_with_names_as_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", X=TREES.features, y=TREES.names, comment=np.array("mine"))
    assert read_features(tmp_path / "other.npz") == TREES
    np.savez(tmp_path / "numbers.npz", features=TREES.features, labels=np.array([30, 10, 30]))
    assert read_features(tmp_path / "numbers.npz").classes == (10, 30)


class Harmful:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickles_are_never_run(tmp_path: Path) -> None:
    objects = np.array([Harmful(tmp_path / "trace")], dtype=object)
    np.savez(tmp_path / "objects.npz", features=np.ones((1, 1)), labels=objects)
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Harmful(tmp_path / "trace")))
    with pytest.raises(InputError, match=r"objects\.npz holds an array of Python objects.*str or int"):
        read_features(tmp_path / "objects.npz")
    with pytest.raises(InputError, match="not a NumPy archive"):
        read_features(tmp_path / "pickle.npz")
    assert not (tmp_path / "trace").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*missing\.npz"):
        read_features(tmp_path / "missing.npz")
    with pytest.raises(InputError, match="is a folder"):
        read_features(tmp_path)
    (tmp_path / "text.npz").write_text("oak,elm\n")
    with pytest.raises(InputError, match=r"text\.npz is not a NumPy archive"):
        read_features(tmp_path / "text.npz")
    np.save(tmp_path / "array.npy", TREES.features)
    with pytest.raises(InputError, match=r"array\.npy is not a NumPy archive"):
        read_features(tmp_path / "array.npy")


def test_damage_is_found(tmp_path: Path) -> None:
    write_features(tmp_path / "whole.npz", TREES)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.npz is a truncated archive"):
        read_features(tmp_path / "cut.npz")
    place = whole.index(TREES.features.tobytes())
    (tmp_path / "flipped.npz").write_bytes(whole[:place] + b"\x77" + whole[place + 1 :])
    with pytest.raises(InputError, match=r"flipped\.npz is damaged"):
        read_features(tmp_path / "flipped.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [0]}, "no array called features; arrays in it: labels"),
        ({"features": [[1.0]]}, "no array called labels"),
        ({"other": [1]}, "none that is known"),
        ({"features": [[np.nan]], "labels": [0]}, r"odd\.npz: features are NaN"),
        ({"features": [[1.0]], "labels": [3], "classes": ["a"]}, "from 0 to 0"),
        ({"features": [[1.0]], "labels": [0], "is_test": [True, False]}, r"is_test in .* has shape \(2,\)"),
        ({"features": [[1.0]], "labels": [0], "is_test": [0.5]}, "is_test in .* is float64"),
        ({"features": [[1.0]], "labels": [0], "is_test": [True]}, "test rows only"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_bank(tmp_path / "odd.npz")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", 1], "of type int, str, but a file can hold"),
        ([("a", 1), ("b", 2)], "of type tuple"),
        ([2**70, 1], "cannot be kept"),
        (["a\0", "b"], r"'a\\x00' cannot be kept"),
    ],
)
def test_names_that_no_file_can_hold(tmp_path: Path, names: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_features(tmp_path / "trees.npz", FeatureSet(np.zeros((2, 1)), names))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "int8 cannot hold features"),
        ({"dtype": "half a float"}, "unknown"),
        ({"dtype": "float16"}, "features as float16 values are NaN or infinite in row 1"),
        ({"is_test": [True]}, r"is_test has shape \(1,\) for 2 examples"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_features(tmp_path / "trees.npz", FeatureSet([[1.0], [1e6]], ["a", "b"]), **options)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*missing; make it first"):
        write_features(tmp_path / "missing" / "trees.npz", TREES)
    with pytest.raises(InputError, match="is a folder"):
        write_features(tmp_path, TREES)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="there is no folder"):
        write_features(tmp_path / "file" / "trees.npz", TREES)
    with pytest.raises(InputError, match="cannot write"):
        write_features(tmp_path / ("x" * 300), TREES)
    with pytest.raises(InputError, match="cannot write"):
        write_features(tmp_path / "a\0b", TREES)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="Permission denied"):
            write_features(tmp_path / "trees.npz", TREES)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "trees.npz"
    write_features(path, TREES)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(InputError, match=r"cannot write .*trees\.npz: No space left"):
        write_features(path, TREES.take([0]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["trees.npz"]
    assert read_features(path) == TREES


@pytest.mark.parametrize(
    ("name", "dimension", "n_classes", "rows"),
    [("clinc150-minilm", 384, 120, (14_400, 3_600)), ("tiny-imagenet-resnet10", 512, 132, (46_200, 6_600))],
)
def test_development_files(name: str, dimension: int, n_classes: int, rows: tuple[int, int]) -> None:
    path = SHARED / "features" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no file {path}; set CPAAN_DATA to the folder with the development data")
    bank = read_bank(path)
    assert bank.test is not None
    assert (len(bank.train), len(bank.test)) == rows
    assert bank.train.dimension == dimension
    assert bank.train.n_classes == n_classes
    assert bank.train.classes == bank.test.classes
    assert bank.train.features.dtype == np.float16


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'shape': (2, 2", "{'descr': '\0'", "(" * 5000, "\n  x\n y"])
def test_a_header_that_is_no_literal_is_damage(tmp_path: Path, header: str) -> None:
    path = tmp_path / "trees.npz"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", content)
    with pytest.raises(InputError, match=r"trees\.npz"):
        read_features(path)


FEATURES = np.random.default_rng(0).normal(size=(30, 7))
ROWS_OF_TREES = FeatureSet(FEATURES, np.repeat(["ash", "elm", "oak"], 10))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(npz, "_SMALLEST_MAPPED", 0)
    write_features(tmp_path / "trees.npz", ROWS_OF_TREES)
    return tmp_path / "trees.npz"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_mapped_is_what_would_be_read(path: Path, dtype: str) -> None:
    write_features(path, ROWS_OF_TREES, dtype=dtype)
    found = read_features(path)
    assert is_mapped(found.features)
    assert found.features.dtype == dtype
    np.testing.assert_array_equal(found.features, FEATURES.astype(dtype))
    np.testing.assert_array_equal(found.to_torch()[0], FEATURES.astype(dtype))


def test_test_rows_at_the_end_leave_the_others_in_the_file(path: Path) -> None:
    write_features(path, ROWS_OF_TREES, is_test=np.arange(30) >= 25)
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
    np.savez_compressed(path, features=FEATURES, labels=ROWS_OF_TREES.names)
    assert map_member(path, "features", 0) is None
    assert read_features(path) == ROWS_OF_TREES


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
    assert read_features(path) == ROWS_OF_TREES
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
