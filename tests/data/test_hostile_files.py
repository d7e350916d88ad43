"""Files that were damaged, or made to do harm, end in an InputError that names them, and take no memory."""

import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data import FeatureSet, read_features, write_features
from cpaan.data.benchmark import load_benchmark
from cpaan.data.class_split import Setup, read_setup
from cpaan.data.files import read_rows
from cpaan.data.hdf5 import Hdf5Features, write_hdf5
from cpaan.data.npz import read_archive, read_array_file
from cpaan.data.untrusted import (
    MOST_JSON_BYTES,
    parse_json,
    plain_name,
    positive_number,
    read_bytes,
    read_json,
    reading,
    require_arrays,
    require_counts,
)
from cpaan.errors import InputError

h5py: Any = import_module("h5py")
TREES = FeatureSet(np.arange(24, dtype=np.float32).reshape(12, 2), ["oak", "elm", "yew"] * 4)
FEATURES, LABELS = TREES.features, TREES.labels
MOST_MEMORY = 2**26


def refused(read: Callable[[Path], Any], path: Path, message: str) -> None:
    """Require an InputError that names the file, at the cost of little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as error:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert path.name in str(error.value)


def array_bytes(shape: str, kind: str = "<f4", data: bytes = bytes(48)) -> bytes:
    """Write an array with a header that says anything."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


WRONG_HEADERS = [
    ("(1000000000000, 4)", "<f4", bytes(48), "another size than its shape"),
    ("(99999999999999999999999, 4)", "<f4", bytes(48), "another size than its shape"),
    ("(-3, -4)", "<f4", bytes(48), "another size than its shape"),
    ("(1000000000000, 0)", "<f4", b"", "another size than its shape"),
    ("(1000000000000,)", "<U0", b"", "must be numbers or text"),
    ("(6, 2)", "|O", bytes(48), "a pickle and could run code"),
    ("(6, 2", "<f4", bytes(48), "damaged"),
    ("(" * 200 + ")" * 200, "<f4", bytes(48), "damaged"),
    ("__import__('os').getcwd()", "<f4", bytes(48), "damaged"),
]


@pytest.mark.parametrize(("shape", "kind", "data", "message"), WRONG_HEADERS)
def test_headers_of_arrays_are_not_believed(tmp_path: Path, shape: str, kind: str, data: bytes, message: str) -> None:
    content = array_bytes(shape, kind, data)
    (tmp_path / "rows.npy").write_bytes(content)
    refused(read_rows, tmp_path / "rows.npy", message)
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "bank.npz", "w", packing) as archive:
            archive.writestr("features.npy", content)
            archive.writestr("labels.npy", array_bytes("(6,)", "<i8"))
        refused(read_features, tmp_path / "bank.npz", message)


def test_an_array_that_is_whole_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.asfortranarray(FEATURES))
    np.testing.assert_array_equal(read_array_file(tmp_path / "rows.npy"), FEATURES)
    np.savez(tmp_path / "empty.npz", none=np.empty((0, 3)), other=[1])
    assert read_archive(tmp_path / "empty.npz", ["none"])["none"].shape == (0, 3)


def test_bombs_in_archives_are_refused(tmp_path: Path) -> None:
    zeros = np.zeros((2**24, 1), dtype=np.float32)  # a thousandth of it, when packed
    np.savez_compressed(tmp_path / "bomb.npz", features=zeros[: 2**16])
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("features.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, zeros)
        archive.writestr("labels.npy", array_bytes("(6,)", "<i8"))
    del zeros
    refused(read_features, tmp_path / "bomb.npz", "made to do harm: it claims to hold 64 MiB.*without compression")


def test_a_member_without_its_ending_is_not_read_past_the_checks(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bank.npz", "w") as archive:
        archive.writestr("features", array_bytes("(1000000000000, 4)"))
        archive.writestr("labels.npy", array_bytes("(6,)", "<i8"))
    refused(read_features, tmp_path / "bank.npz", "has no array called features")


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_numpy_does_not_write_are_refused(tmp_path: Path, packing: int) -> None:
    with zipfile.ZipFile(tmp_path / "bank.npz", "w", packing) as archive:
        archive.writestr("features.npy", array_bytes("(6, 2)"))
    refused(read_features, tmp_path / "bank.npz", "packed in a way that NumPy does not write")


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    refused(read_features, tmp_path / "pipe.npz", "a device or a pipe")
    refused(read_rows, tmp_path / "pipe.npz", "a device or a pipe")
    refused(read_json, tmp_path / "pipe.npz", "a device or a pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    refused(read_json, tmp_path / "zeros", "a device or a pipe")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested deeper than 50"),
        (b"[" * 60 + b"]" * 60, "nested deeper than 50"),
        (b'["\\"[", ' + b"[" * 50 + b"]" * 51, "nested deeper than 50"),
        (("[" * 60 + "]" * 60).encode("utf-16"), "nested deeper than 50"),
        (b'{"base": ' * 60 + b"1" + b"}" * 60, "nested deeper than 50"),
        (b'{"base": ["a"], "novel": [' + b"9" * 5000 + b"]}", "is not JSON"),
        (b"\xff\xfe\x00\xd8", "is not JSON"),
        (b'{"base": ["a"], "novel": [NaN]}', "missing"),
        (b'{"base": ["a"], "novel": [["b"]]}', "cannot be a class name"),
        (b'{"base": {"a": 1}, "novel": ["b"]}', "give a list"),
        (b'{"base": ["a"], "novel": ["\\ud800"]}', "half a character"),
    ],
)
def test_json_that_is_no_setup(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "setup.json").write_bytes(content)
    refused(read_setup, tmp_path / "setup.json", message)


def test_json_that_is_too_long(tmp_path: Path) -> None:
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(MOST_JSON_BYTES + 1)
    with pytest.raises(InputError, match=r"long\.json has more than 64 MiB"):
        read_json(tmp_path / "long.json")
    with pytest.raises(InputError, match="more than 0 MiB"):
        read_bytes(tmp_path / "long.json", 10)
    assert parse_json("[" * 50 + "]" * 50, "x")


@pytest.mark.parametrize(
    "table", [[["x" * 10**6, "y"]] * 2, [[0], [2**70]], [[0], [1, 2]], [[True]], {"a": 1}, [], [[]], [[0.5]], [1]]
)
def test_split_files_are_checked_before_they_are_arrays(tmp_path: Path, table: Any) -> None:
    write_hdf5(tmp_path / "train.h5", FEATURES, LABELS)
    write_hdf5(tmp_path / "test.h5", FEATURES, LABELS)
    (tmp_path / "split.json").write_text(json.dumps(table))

    def read(path: Path) -> Any:
        setup = Setup(base=(0,), novel=(1,))
        return load_benchmark(tmp_path / "train.h5", setup, test=tmp_path / "test.h5", splits=[path])

    refused(read, tmp_path / "split.json", "not a split file|different lengths")


def hdf5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, options in {
            "all_feats": {"data": FEATURES},
            "all_labels": {"data": LABELS},
            "count": {"data": [len(LABELS)]},
            **datasets,
        }.items():
            file.create_dataset(name, **options)
    return path


def read_hdf5(path: Path) -> Any:
    file = Hdf5Features(path)
    return file.select(file.classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": {"shape": (10**12,), "dtype": "i8", "chunks": (10,)}}, "count is 1000000000000 numbers"),
        ({"all_labels": {"data": ["oak"] * 12, "dtype": h5py.string_dtype()}}, "must be numbers"),
        ({"all_labels": {"data": np.full(12, 1e300)}}, "not all class indices"),
        ({"all_labels": {"data": np.full(12, np.inf)}}, "not all class indices"),
        ({"all_labels": {"data": np.full(12, 2**63, dtype=np.uint64)}}, "not all class indices"),
        ({"all_feats": {"shape": (12, 2**28), "dtype": "f4", "chunks": (12, 2**26)}}, "chunks of 3072 MiB"),
        ({"all_feats": {"shape": (12, 2**26), "dtype": "f4", "chunks": (1, 2**26)}}, "made to do harm"),
    ],
)
def test_datasets_that_claim_too_much(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    refused(read_hdf5, hdf5(tmp_path / "bank.h5", **change), message)


def test_datasets_of_other_files_are_refused(tmp_path: Path) -> None:
    hdf5(tmp_path / "secret.h5")
    (tmp_path / "secret.raw").write_bytes(FEATURES.tobytes())
    raw = [(str(tmp_path / "secret.raw"), 0, FEATURES.nbytes)]
    path = hdf5(tmp_path / "bank.h5", all_feats={"shape": (12, 2), "dtype": "f4", "external": raw})
    refused(read_hdf5, path, "all_feats takes its values from other files")
    path = hdf5(tmp_path / "bank.h5")
    with h5py.File(path, "a") as file:
        del file["all_feats"]
        file["all_feats"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "all_feats")
    refused(read_hdf5, path, "all_feats is a link to another file")
    with h5py.File(path, "a") as file:
        del file["all_feats"]
        layout = h5py.VirtualLayout((12, 2), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "all_feats", (12, 2))
        file.create_virtual_dataset("all_feats", layout)
    refused(read_hdf5, path, "all_feats takes its values from other files")


def packed_hdf5(path: Path, chunk: bytes, rows: int) -> Path:
    """Write features in one chunk that holds any bytes."""
    options = {"shape": (rows, 2), "dtype": "f4", "chunks": (rows, 2), "compression": "gzip"}
    hdf5(path, all_feats=options, all_labels={"data": np.zeros(rows, int)}, count={"data": [rows]})
    with h5py.File(path, "a") as file:
        file["all_feats"].id.write_direct_chunk((0, 0), chunk)
    return path


def test_chunks_that_unpack_to_more_than_they_should(tmp_path: Path) -> None:
    rows = 2**16
    path = packed_hdf5(tmp_path / "bank.h5", zlib.compress(bytes(2**29), 1), rows)  # half a gigabyte, in two megabytes
    refused(read_hdf5, path, "damaged|made to do harm")
    noise = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    path = packed_hdf5(tmp_path / "bank.h5", zlib.compress(noise.tobytes()), rows)
    np.testing.assert_array_equal(read_hdf5(path).features, noise)


def test_chunked_and_packed_files_are_read(tmp_path: Path) -> None:
    options = {"chunks": (5, 2), "compression": "gzip", "shuffle": True, "fletcher32": True}
    path = hdf5(
        tmp_path / "bank.h5",
        all_feats={"data": FEATURES, **options},
        all_labels={"data": LABELS, **options | {"chunks": (5,)}},
    )
    np.testing.assert_array_equal(np.sort(read_hdf5(path).features, axis=0), FEATURES)


def test_a_filter_that_is_a_plugin_is_refused(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "bank.h5")
    with h5py.File(path, "a") as file:
        del file["all_feats"]
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((12, 2))
        settings.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((12, 2))
        h5py.h5d.create(file.id, b"all_feats", h5py.h5t.IEEE_F32LE, space, settings)
    refused(read_hdf5, path, "packed by filter 32001")


@contextmanager
def little_arrow_memory() -> Iterator[None]:
    """Require that Arrow takes no more than 128 MiB."""
    pool = pytest.importorskip("pyarrow").default_memory_pool()
    allowed = max(pool.max_memory(), pool.bytes_allocated() + 2**27)  # others may have had their peak before
    yield
    assert pool.max_memory() <= allowed


def refused_parquet(path: Path, message: str) -> None:
    with little_arrow_memory():
        refused(read_features, path, message)


@pytest.mark.parametrize("column", ["label", "is_test", "f0"])
def test_text_in_a_parquet_file_that_expands_to_gigabytes(tmp_path: Path, column: str) -> None:
    arrow, library = pytest.importorskip("pyarrow"), import_module("pyarrow.parquet")
    text = arrow.array([f"{row:04}" + 40_000 * "x" for row in range(1000)])
    columns = {"f0": np.zeros(1000, np.float32), "label": ["oak"] * 1000, "is_test": np.arange(1000) == 0}
    table, path = arrow.table({**columns, column: text}), tmp_path / "bank.parquet"
    with library.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(30):  # 1.2 gigabytes
            writer.write_table(table)
    assert path.stat().st_size < 2**18
    del text, table
    refused_parquet(path, "made to do harm: it claims to hold 1... MiB" if column == "label" else f"{column} holds str")


def test_text_in_a_parquet_file_that_shares_its_beginnings(tmp_path: Path) -> None:
    arrow, library = pytest.importorskip("pyarrow"), import_module("pyarrow.parquet")
    table = arrow.table({"f0": np.zeros(1000, np.float32), "label": ["x" * 9999 + str(row) for row in range(1000)]})
    path = tmp_path / "bank.parquet"
    library.write_table(table, path, use_dictionary=False, column_encoding={"label": "DELTA_BYTE_ARRAY"})
    refused_parquet(path, "packed as DELTA_BYTE_ARRAY, which can grow without limit; write it again")


def test_a_parquet_file_whose_footer_lies_about_its_pages(tmp_path: Path) -> None:
    arrow, library = pytest.importorskip("pyarrow"), import_module("pyarrow.parquet")
    values, path = 2**24 + 3, tmp_path / "bank.parquet"
    row = arrow.array([np.zeros(values, np.float32)], arrow.list_(arrow.float32()))
    library.write_table(arrow.table({"features": row, "label": ["oak"]}), path, data_page_size=2**30)
    del row
    whole, number = path.read_bytes(), varint(2 * values)
    assert len(whole) < 2**10
    refused_parquet(path, "made to do harm: it claims to hold 128 MiB")
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    twelve = bytes([24 | 128, *[128] * (len(number) - 2), 0])
    assert number in whole[start:]
    path.write_bytes(whole[:start] + whole[start:].replace(number, twelve))
    refused_parquet(path, "made to do harm: it claims to hold 128 MiB")


def varint(number: int) -> bytes:
    """Write a number as Thrift does: seven bits in each byte, and a bit that says whether more follow."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def test_missing_lists_of_a_fixed_size_in_a_parquet_file(tmp_path: Path) -> None:
    arrow, library = pytest.importorskip("pyarrow"), import_module("pyarrow.parquet")

    def schema(size: int) -> Any:
        return arrow.schema([("features", arrow.list_(arrow.float32(), size)), ("label", arrow.string())])

    path = tmp_path / "bank.parquet"
    library.write_table(arrow.table([[None] * 3, ["oak"] * 3], schema=schema(4)), path)
    small, large = (b64encode(schema(size).serialize().to_pybytes()) for size in (4, 2**27))
    whole = path.read_bytes()
    assert small in whole
    path.write_bytes(whole.replace(small, large))  # each null would take half a gigabyte
    refused_parquet(path, "made to do harm: it claims to hold 3072 MiB")


def test_a_parquet_file_is_read_by_a_process_that_imported_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_features(tmp_path / "bank.parquet", TREES)
    code = "import sys; from cpaan.data import read_features; print(read_features(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "bank.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{TREES}\n"


def test_a_long_name_in_a_parquet_file_is_not_written_out_for_every_row(tmp_path: Path) -> None:
    arrow, library = pytest.importorskip("pyarrow"), import_module("pyarrow.parquet")
    rows = 60_000
    names = arrow.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), ["x" * 20_000])
    table = arrow.table({"f0": arrow.array(np.zeros(rows, np.float32)), "label": names})
    library.write_table(table, tmp_path / "bank.parquet", store_schema=False)
    refused_parquet(tmp_path / "bank.parquet", "a class name has 20000 characters")
    write_features(tmp_path / "bank.parquet", TREES)
    assert read_features(tmp_path / "bank.parquet") == TREES


def test_damage_in_a_parquet_file_does_not_end_the_process(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "bank.parquet"
    write_features(path, TREES, is_test=np.arange(12) == 0)
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(start, len(whole) - 8):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        with suppress(InputError):
            read_features(path)
    for footer in (b"\x1c" * 500, b"\x19\xfc" + b"\xff" * 9 + b"\x01", b"\x16" + b"\xff" * 40, b""):
        path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        refused(read_features, path, "parquet")


def test_what_goes_wrong_names_the_file() -> None:
    for error in (KeyError("a"), MemoryError(), RecursionError("deep"), ValueError("first\nsecond"), InputError("odd")):
        with pytest.raises(InputError, match=r"^bank\.npz") as raised, reading("bank.npz"):
            raise error
        assert "second" not in str(raised.value)
    with pytest.raises(InputError, match=r"^the bank\.npz is odd$"), reading("bank.npz"):
        raise InputError("the bank.npz is odd")
    with pytest.raises(KeyboardInterrupt), reading("bank.npz"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "", ".", "..", ".hidden", "C:x", "a\0b", None, 3, ["a"]])
def test_names_that_lead_out_of_a_folder(name: Any) -> None:
    with pytest.raises(InputError, match="not a plain name"):
        plain_name(name, "config.json")


def test_names_that_no_file_can_have() -> None:
    assert plain_name("é" * 100, "config.json") == "é" * 100
    with pytest.raises(InputError, match="longer than the name of a file"):
        plain_name("é" * 101, "config.json")


def test_what_does_not_fit_together() -> None:
    values = {"means": np.zeros((3, 2)), "counts": np.zeros(3, dtype=np.int64)}
    require_arrays(values, {"means": "CD float64", "counts": "C int"}, D=2)
    wrong = ({"means": "CD float32"}, {"means": "C float"}, {"means": "CC float"}, {"other": "C int"})
    for forms in (*wrong, {"means": "CD float", "counts": "D int"}):
        with pytest.raises(InputError, match=r"does not fit the rest|is missing"):
            require_arrays(values, forms)
    require_counts(np.array([2, 0, 3]), 5, "kept")
    for counts in ([6, -1], [2**62, 2**62, 2**62, 2**62 + 5], [4]):
        with pytest.raises(InputError, match="must add up to 5 rows"):
            require_counts(np.array(counts), 5, "kept")
    assert positive_number(0, "x", or_zero=True) == 0
    for number in (0, -1, float("nan"), float("inf"), True, "1", None, 10**400):
        with pytest.raises(InputError, match="must be a number above 0"):
            positive_number(number, "x")


def test_an_archive_that_is_no_file_of_arrays(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("features.npy", b"no array")
    (tmp_path / "bank.npz").write_bytes(content.getvalue())
    refused(read_features, tmp_path / "bank.npz", "damaged")


def test_brackets_in_names_are_no_depth(tmp_path: Path) -> None:
    names = ["[" * 60, '"[{' * 30, "\\" + "{" * 60]
    (tmp_path / "setup.json").write_text(json.dumps({"base": names, "novel": ["b"]}))
    assert read_json(tmp_path / "setup.json")["base"] == names
    (tmp_path / "deep.json").write_text("[" * 50 + "]" * 50)
    assert read_json(tmp_path / "deep.json")


def test_times_without_a_unit_are_no_class_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "bank.npz", features=np.zeros((2, 1), np.float32), labels=np.zeros(2, "m8"))
    refused(read_features, tmp_path / "bank.npz", "cannot be a class name")
