"""Features without labels, from every kind of file."""

from pathlib import Path

import numpy as np
import pytest

from cpaan.data.files import read_rows
from cpaan.data.hdf5 import write_hdf5
from cpaan.errors import InputError

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
