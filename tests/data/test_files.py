"""Feature files of every format: round trips, files of others, wrong files, and rows without labels."""

import json
import struct
import sys
import zipfile
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data import FeatureSet, read_bank, read_features, tensor_file, write_features
from cpaan.data.benchmark import load_benchmark
from cpaan.data.class_split import Setup
from cpaan.data.files import read_rows, read_table
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.data.memory_map import is_mapped
from cpaan.errors import InputError

RNG = np.random.default_rng(0)
NAMES = ["oak", "yew", "oak", "elm", "yew", "elm"]
TREES = FeatureSet(RNG.normal(size=(6, 3)).astype(np.float32), NAMES)
IS_TEST = np.array([False, False, True, False, True, True])
FORMATS = ("npz", "safetensors", "parquet")


@pytest.fixture(autouse=True)
def _arrow() -> None:
    pytest.importorskip("pyarrow.parquet", reason="needs the extra 'parquet'")


def parquet(path: Path, **columns: Any) -> Path:
    arrow, library = import_module("pyarrow"), import_module("pyarrow.parquet")
    library.write_table(arrow.table(columns), path)
    return path


def tensors(path: Path, metadata: dict[str, str] | None = None, **arrays: Any) -> Path:
    import_module("safetensors.numpy").save_file(arrays, path, metadata)
    return path


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("names", [["b", "a", "b"], [7, -3, 7], [True, False, True], [0.5, 2.5, 0.5]])
@pytest.mark.parametrize("ending", FORMATS)
def test_round_trip(tmp_path: Path, ending: str, names: list[Any], dtype: Any) -> None:
    # Classes in an order of their own, which is to be kept.
    classes = list(dict.fromkeys(names))
    trees = FeatureSet(RNG.normal(size=(3, 2)).astype(dtype), [classes.index(name) for name in names], classes)
    path = tmp_path / f"trees.{ending}"
    write_features(path, trees, is_test=[False, False, True])
    read = read_features(path)
    assert read == trees
    assert [type(name) for name in read.classes] == [type(name) for name in trees.classes]
    bank = read_bank(path)
    assert bank.test is not None
    assert bank.train == trees.take([0, 1])
    assert bank.test == trees.take([2])
    write_features(path, trees)
    assert read_table(path).is_test is None
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_hdf5_is_a_bank_as_well(tmp_path: Path) -> None:
    numbered = FeatureSet(TREES.features, [30, 10, 30, 20, 10, 20])
    write_features(tmp_path / "trees.h5", numbered, is_test=np.zeros(6, dtype=bool))
    assert Hdf5Features(tmp_path / "trees.h5").classes == (10, 20, 30)
    assert read_bank(tmp_path / "trees.h5").train == numbered
    with pytest.raises(InputError, match="holds training or test rows; write each to a file of its own"):
        write_features(tmp_path / "both.h5", numbered, is_test=IS_TEST)
    with pytest.raises(InputError, match=r"whole numbers from 0, not by names such as 'elm'"):
        write_features(tmp_path / "named.h5", TREES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trees.h5"]


def test_content_counts_more_than_the_ending(tmp_path: Path) -> None:
    for ending in ("parquet", "npz"):
        write_features(tmp_path / f"trees.{ending}", TREES)
        (tmp_path / f"trees.{ending}").rename(tmp_path / "trees.bin")
        assert read_features(tmp_path / "trees.bin") == TREES


def test_parquet_of_others(tmp_path: Path) -> None:
    lists = parquet(tmp_path / "lists.parquet", features=[[0.5, 1.5], [2.5, 3.5]], label=["oak", "elm"])
    assert read_features(lists) == FeatureSet([[0.5, 1.5], [2.5, 3.5]], ["oak", "elm"])
    many = {f"f{column}": [float(column), column + 0.5] for column in reversed(range(11))}
    columns = parquet(tmp_path / "columns.parquet", **many, label=[3, 1], file=["a.jpg", "b.jpg"])
    read = read_features(columns)
    assert read.features[0].tolist() == [*range(11)]
    assert read.names.tolist() == [3, 1]
    arrow = import_module("pyarrow")
    encoded = arrow.array(["x", "y"]).dictionary_encode()
    assert read_features(parquet(tmp_path / "d.parquet", f0=[1, 2], label=encoded)).classes == ("x", "y")


def test_rows_that_were_taken_out_of_a_file_of_ours(tmp_path: Path) -> None:
    library = import_module("pyarrow.parquet")
    write_features(tmp_path / "trees.parquet", TREES)
    library.write_table(library.read_table(tmp_path / "trees.parquet").slice(0, 2), tmp_path / "some.parquet")
    assert read_features(tmp_path / "some.parquet").classes == ("oak", "yew")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"features": [[1.0], [2.0]]}, "there is no column label; columns: features"),
        ({"label": [1, 2], "x": [0.5, 0.5]}, "no column features, and none called f0"),
        ({"label": [1, 2], "features": [[1.0], [2.0, 3.0]]}, "lists of 1 to 2 numbers"),
        ({"label": [1, 2], "features": [[1.0], None]}, r"missing \(null\) in 1 rows"),
        ({"label": [1, 2], "features": [[1.0], [None]]}, "1 missing values"),
        ({"label": [1, 2], "features": [["a"], ["b"]]}, "string, not numbers"),
        ({"label": [1, 2], "features": [1.0, 2.0]}, "must hold a list of numbers"),
        ({"label": [1, 2], "f0": ["a", "b"]}, "f0 holds string"),
        ({"label": ["a", None], "f0": [1.0, 2.0]}, "label is missing"),
        ({"label": [[1], [2]], "f0": [1.0, 2.0]}, "class names must be text or numbers"),
        ({"label": [1, 2], "f0": [1.0, float("nan")]}, "NaN or infinite in row 1"),
        ({"label": [1, 2], "f0": [1.0, 2.0], "is_test": ["no", "yes"]}, "column is_test holds string; give bool"),
    ],
)
def test_wrong_parquet_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_bank(parquet(tmp_path / "odd.parquet", **columns))
    assert "odd.parquet" in str(error.value)


def test_safetensors_of_others(tmp_path: Path) -> None:
    plain = tensors(tmp_path / "plain.safetensors", features=np.eye(2, dtype=np.float32), labels=np.array([30, 10]))
    assert read_features(plain).names.tolist() == [30, 10]
    half = torch.tensor([[1.5, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    path = tmp_path / "half.safetensors"
    import_module("safetensors.torch").save_file({"features": half, "labels": torch.tensor([0, 1])}, path)
    assert read_features(path).features.tolist() == half.tolist()


@pytest.mark.parametrize(
    ("arrays", "classes", "message"),
    [
        ({"labels": np.zeros(1, int)}, None, "no tensor called features; found: labels"),
        ({"features": np.ones(3), "labels": np.zeros(3, int)}, None, r"shape \(3,\); it must be n × D"),
        ({"features": np.ones((2, 2)), "labels": np.zeros(3, int)}, None, r"labels has shape \(3,\) for 2 rows"),
        ({"features": np.ones((2, 2), int), "labels": np.zeros(2, int)}, None, "features is I64"),
        ({"features": np.ones((2, 2)), "labels": np.zeros(2)}, None, "labels is F64"),
        ({"features": np.ones((1, 2)), "labels": np.zeros(1, int)}, "{", "is not JSON|as JSON"),
        ({"features": np.ones((1, 2)), "labels": np.zeros(1, int)}, "[" * 100_000, "is not JSON|as JSON"),
        ({"features": np.ones((1, 2)), "labels": np.zeros(1, int)}, '{"a": 1}', "must be a list of names"),
        ({"features": np.ones((1, 2)), "labels": np.ones(1, int)}, '["a"]', "from 0 to 0"),
    ],
)
def test_wrong_safetensors_are_refused(tmp_path: Path, arrays: Any, classes: str | None, message: str) -> None:
    metadata = None if classes is None else {"classes": classes}
    with pytest.raises(InputError, match=message):
        read_features(tensors(tmp_path / "odd.safetensors", metadata, **arrays))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_safetensors_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    monkeypatch.setattr(tensor_file, "_SMALLEST_MAPPED", 0)
    trees = FeatureSet(TREES.features.astype(dtype), NAMES)
    write_features(tmp_path / "trees.safetensors", trees, is_test=IS_TEST)
    read = read_features(tmp_path / "trees.safetensors")
    assert read == trees
    assert is_mapped(read.features)


def test_commands_take_every_format(tmp_path: Path) -> None:
    base = FeatureSet(RNG.normal(size=(48, 3)).astype(np.float32), np.arange(48) % 6)
    options = ("--episodes", 2, "--device", "cpu", "--set", "width=8", "--set", "novel_per_episode=3")
    made = []
    for ending, out in zip(
        ("npz", "safetensors", "parquet", "h5"), ("npz", "parquet", "safetensors", "npz"), strict=True
    ):
        write_features(tmp_path / f"base.{ending}", base)
        write_features(tmp_path / f"novel.{ending}", FeatureSet(TREES.features, TREES.labels + 10))
        model, output = tmp_path / f"model-{ending}", tmp_path / f"made-{ending}.{out}"
        fitted = cpaan("fit", tmp_path / f"base.{ending}", "-o", model, *options)
        assert fitted.exit_code == 0, fitted.output
        result = cpaan("augment", model, tmp_path / f"novel.{ending}", "-o", output, "--per-class", 4)
        assert result.exit_code == 0, result.output
        made.append(read_features(output))
        assert "48 examples × 3 dimensions" in cpaan("info", tmp_path / f"base.{ending}").stdout
    assert all(each == made[0] for each in made[1:])


@pytest.mark.parametrize("ending", [*FORMATS, "h5"])
def test_damage_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trees.{ending}"
    with pytest.raises(InputError, match=r"there is no file .*trees"):
        read_features(path)
    write_features(path, FeatureSet(TREES.features, TREES.labels))
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=f"trees.{ending}"):
            read_features(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_features(path)


def test_what_a_file_claims_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    header = json.dumps({"features": {"dtype": "F32", "shape": [2**40, 4], "data_offsets": [0, 2**44]}}).encode()
    (tmp_path / "huge.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match=r"huge\.safetensors"):
        read_features(tmp_path / "huge.safetensors")
    h5py = import_module("h5py")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        # Chunks that were never written take no room.
        file.create_dataset("all_feats", shape=(2**36, 4), dtype="f4", chunks=(1024, 4))
        file.create_dataset("all_labels", shape=(2**36,), dtype="i4", chunks=(1024,))
        file.create_dataset("count", data=np.array([2**36]))
    with pytest.raises(InputError, match=r"huge\.h5 is damaged or made to do harm: it claims to hold 1310720 MiB"):
        read_features(tmp_path / "huge.h5")
    arrow, library = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows = 2**23  # alike in all, so that they take next to no room
    same = arrow.DictionaryArray.from_arrays(arrow.repeat(arrow.scalar(0, arrow.int8()), rows), [0.5])
    columns = {f"f{column}": same.cast(arrow.float32()) for column in range(8)}
    library.write_table(arrow.table({**columns, "label": same.cast(arrow.float32())}), tmp_path / "huge.parquet")
    with pytest.raises(InputError, match=r"huge\.parquet is damaged or made to do harm: it claims to hold 640 MiB"):
        read_features(tmp_path / "huge.parquet")


def test_an_archive_whose_header_lies(tmp_path: Path) -> None:
    begin = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (600_000_000_000, 3)}
    np.lib.format.write_array_header_1_0(begin, header)
    with zipfile.ZipFile(tmp_path / "trees.npz", "w") as archive:
        archive.writestr("features.npy", begin.getvalue() + bytes(72))
    with pytest.raises(InputError, match=r"trees\.npz is damaged: features\.npy has another size"):
        read_features(tmp_path / "trees.npz")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_benchmark_of_any_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trees.{ending}"
    write_features(path, TREES, is_test=IS_TEST)
    data = load_benchmark(path, Setup(base=("oak", "yew"), novel=("elm",)))
    assert (len(data.base_train), len(data.base_test), len(data.novel_test)) == (3 - 1, 2, 1)
    test = tmp_path / f"test.{ending}"
    write_features(test, TREES, is_test=IS_TEST)
    assert len(load_benchmark(path, Setup(base=("oak", "yew"), novel=("elm",)), test=test).base_test) == 2
    write_features(test, TREES.take([0, 1, 3]))
    assert len(load_benchmark(path, Setup(base=("oak", "yew"), novel=("elm",)), test=test).novel_test) == 1


def test_a_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"a parquet file needs pyarrow: pip install 'cpaan\[parquet\]'"):
        write_features(tmp_path / "trees.parquet", TREES)


def test_convert_goes_round(tmp_path: Path) -> None:
    write_features(tmp_path / "0.npz", TREES, is_test=IS_TEST)
    steps = ("0.npz", "1.parquet", "2.safetensors", "3.npz")
    for source, target in pairwise(steps):
        result = cpaan("convert", tmp_path / source, tmp_path / target)
        assert result.exit_code == 0, result.output
        assert "6 examples of 3 classes, 3 features" in result.stdout
    table = read_table(tmp_path / "3.npz")
    assert table.rows == TREES
    assert table.is_test is not None
    assert table.is_test.tolist() == IS_TEST.tolist()
    assert cpaan("convert", tmp_path / "0.npz", tmp_path / "4.npz", "--dtype", "float16").exit_code == 0
    assert read_features(tmp_path / "4.npz").features.dtype == np.float16


def test_convert_to_the_benchmarks_files(tmp_path: Path) -> None:
    # A class without training rows must not shift the numbers of others.
    write_features(tmp_path / "bank.npz", TREES, is_test=[True, False, True, True, False, True])
    for part in ("train", "test"):
        options = ("--only", part, "--names", tmp_path / "classes.json")
        result = cpaan("convert", tmp_path / "bank.npz", tmp_path / f"{part}.h5", *options)
        assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "classes.json").read_text()) == ["elm", "oak", "yew"]
    assert Hdf5Features(tmp_path / "train.h5").labels.tolist() == [2, 2]
    test = Hdf5Features(tmp_path / "test.h5")
    assert test.labels.tolist() == [1, 1, 0, 0]
    assert np.array_equal(test.read([0, 1, 2, 3]), TREES.features[[0, 2, 3, 5]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bank.npz", "bank.txt"), "must end in .npz"),
        (("bank.npz", "no/bank.npz"), "does not exist"),
        (("bank.npz", "out.npz", "--only", "both"), "a part is train or test, not 'both'"),
        (("bank.npz", "out.npz", "--only", "test"), "the file has no test rows"),
        (("bank.npz", "out.npz", "--dtype", "int8"), "cannot hold features"),
        (("none.npz", "out.npz"), "there is no file"),
    ],
)
def test_convert_refuses(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write_features(tmp_path / "bank.npz", TREES)
    paths = [tmp_path / arguments[0], tmp_path / arguments[1]]
    result = cpaan("convert", *paths, *arguments[2:])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["bank.npz"]


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_come_back_with_their_precision(tmp_path: Path, dtype: type[np.floating]) -> None:
    rows = ROWS.astype(dtype)
    np.savez(tmp_path / "X.npz", X=rows)
    np.savez(tmp_path / "features.npz", features=rows, labels=[0, 1, 0, 1], is_test=[True, False, True, False])
    np.save(tmp_path / "rows.npy", rows)
    for name in ("X.npz", "features.npz", "rows.npy"):
        found = read_rows(tmp_path / name)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, rows)


def test_hdf5_is_read_whole(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "rows.h5", ROWS, [7, 3, 7, 3])
    np.testing.assert_array_equal(read_rows(tmp_path / "rows.h5"), ROWS)


def test_unfit_files_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", ROWS[0])
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    np.savez(tmp_path / "labels.npz", y=[1])
    whole = tmp_path / "whole.npy"
    np.save(whole, ROWS)
    whole.write_bytes(whole.read_bytes()[:-8])
    cases = {"flat.npy": "flat.npy", "nan.npy": "NaN", "labels.npz": "no array called features"}
    for name, message in {**cases, "whole.npy": "damaged", "none.npz": "there is no file", ".": "is a folder"}.items():
        with pytest.raises(InputError, match=message):
            read_rows(tmp_path / name)
