"""Features and labels: every container in, the same container out."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpaan.data.containers import (
    append_features,
    append_labels,
    as_features,
    as_labels,
    label_array,
    restore_features,
    restore_labels,
)
from cpaan.errors import InputError

pd: Any = pytest.importorskip("pandas")
pl: Any = pytest.importorskip("polars")
sparse: Any = pytest.importorskip("scipy.sparse")

VALUES = [[1.5, 2.0], [3.0, -4.0], [0.25, 8.0]]
FEATURE_CONTAINERS: list[Any] = [
    VALUES,
    np.array(VALUES),
    np.array(VALUES, dtype=np.float16),
    np.array(VALUES, dtype=">f4"),
    np.array(VALUES, dtype=object),
    torch.tensor(VALUES, requires_grad=True),
    torch.tensor(VALUES, dtype=torch.bfloat16),
    pd.DataFrame(VALUES, columns=["a", "b"], index=[7, 8, 9]),
    pd.DataFrame(VALUES, columns=["a", "b"]).convert_dtypes(),
    pl.DataFrame(VALUES, schema=["a", "b"], orient="row"),
    pd.DataFrame(VALUES, columns=["a", "b"], dtype=pd.SparseDtype(float, 0)),
    sparse.csr_matrix(VALUES),
    sparse.coo_array(np.array(VALUES, dtype=np.float32)),
]


@pytest.mark.parametrize("given_features", FEATURE_CONTAINERS, ids=lambda value: type(value).__name__)
def test_features_are_read_from_every_container(given_features: Any) -> None:
    features = as_features(given_features)
    assert features.dtype in (np.float32, np.float64)
    assert features.dtype.isnative
    np.testing.assert_array_equal(features, VALUES)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.longdouble, np.float64),
        (np.int64, np.float32),
        (np.uint8, np.float32),
        (bool, np.float32),
        (object, np.float64),
    ],
)
def test_dtype_of_features(dtype: Any, expected: Any) -> None:
    assert as_features(np.ones((2, 2), dtype=dtype)).dtype == expected


def test_half_precision_is_kept_on_request() -> None:
    assert as_features(np.ones((2, 2), dtype=np.float16), keep_half=True).dtype == np.float16


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones(3), r"X has shape \(3,\), but must have two dimensions"),
        (np.ones((2, 2, 2)), "two dimensions"),
        (np.ones((0, 3)), r"0 sample\(s\)"),
        (np.ones((3, 0)), r"0 feature\(s\)"),
        ([[1.0, 2.0], [3.0]], "X is not a table of numbers"),
        (np.array([["a", "b"]]), "not numbers"),
        (np.array([["1", 2.0]], dtype=object), "X holds text"),
        (np.array([[{}, 2.0]], dtype=object), "not numbers"),
        (np.ones((2, 2), dtype=complex), "Complex data not supported"),
        (torch.eye(3).to_sparse(), r"sparse.*X\.to_dense\(\)"),
        (pd.DataFrame({"a": [1.0], "name": ["x"]}), "columns that are not numbers, such as 'name'; drop"),
        (pd.DataFrame({"a": [1.0], "digits": ["1"]}), "columns that are not numbers, such as 'digits'"),
        (pl.DataFrame({"a": [1.0], "name": ["x"]}), "text"),
        (
            pd.DataFrame({"a": [1, None, 3]}, dtype="Int64"),
            "NaN or infinite in row 1; remove or impute this row",
        ),
        (pl.DataFrame({"a": [1, None, 3]}), "NaN or infinite in row 1"),
    ],
    ids=str,
)
def test_wrong_features_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_features(wrong)


def test_rows_that_are_not_finite_are_named() -> None:
    features = np.zeros((40, 2))
    features[[3, 17, 20, 21, 22, 39], 1] = [np.nan, np.inf, -np.inf, np.nan, np.nan, np.nan]
    with pytest.raises(InputError, match="table is NaN or infinite in rows 3, 17, 20 and 3 more; remove or impute"):
        as_features(features, name="table")


@pytest.mark.parametrize("like", FEATURE_CONTAINERS, ids=lambda value: type(value).__name__)
def test_features_go_back_into_the_container_they_came_in(like: Any) -> None:
    restored: Any = restore_features(np.array([[0.5, 0.25]]), like)
    expected: Any = np.ndarray if isinstance(like, list) else type(like)
    assert type(restored) is expected
    np.testing.assert_array_equal(as_features(restored), [[0.5, 0.25]])
    if hasattr(like, "columns"):
        assert list(restored.columns) == list(like.columns)
    if isinstance(like, np.ndarray) and like.dtype != object:
        assert restored.dtype == like.dtype.newbyteorder("=")
    if isinstance(like, torch.Tensor):
        assert restored.dtype == like.dtype
    if isinstance(like, pd.DataFrame):
        assert all(new == old for new, old in zip(restored.dtypes, like.dtypes, strict=True) if old.kind == "f")


@pytest.mark.parametrize("given_features", FEATURE_CONTAINERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("further", [np.array([[0.5, 0.25]]), np.empty((0, 2))], ids=["some", "none"])
def test_features_follow_others_in_their_container(given_features: Any, further: Any) -> None:
    both = append_features(given_features, further)
    assert type(both) is type(given_features)
    np.testing.assert_array_equal(as_features(both), [*VALUES, *further.tolist()])
    if isinstance(given_features, pd.DataFrame):
        kept = [dtype.kind == "f" for dtype in given_features.dtypes]
        assert both.dtypes[kept].equals(given_features.dtypes[kept])
        assert both.index.tolist() == list(range(len(both)))
    if isinstance(given_features, pl.DataFrame):
        assert both.schema == given_features.schema
    if sparse.issparse(given_features):
        assert (both.format, both.dtype) == (given_features.format, given_features.dtype)
    if isinstance(given_features, torch.Tensor):
        assert both.dtype == given_features.dtype
        assert not both.requires_grad


LARGE = 2**31 - 1  # float32 cannot hold it
WHOLE_NUMBERS: list[Any] = [
    np.array([[LARGE, 1]]),
    np.array([[True, False]]),
    [[LARGE, 1]],
    torch.tensor([[LARGE, 1]]),
    torch.tensor([[3, 1]], dtype=torch.uint8),
    pd.DataFrame({"a": [LARGE], "b": [True]}),
    pd.DataFrame({"a": [LARGE], "b": [True]}).convert_dtypes(),
    pl.DataFrame({"a": [LARGE], "b": [True]}),
    sparse.csc_array(np.array([[LARGE, 1]])),
]


@pytest.mark.parametrize("given_features", WHOLE_NUMBERS, ids=lambda value: type(value).__name__)
def test_whole_numbers_stay_what_they_are_where_fractions_follow(given_features: Any) -> None:
    both = append_features(given_features, np.array([[0.5, 0.25]]))
    dense = both.toarray() if sparse.issparse(both) else np.asarray(both, dtype=np.float64)
    original = given_features.toarray() if sparse.issparse(given_features) else np.asarray(given_features, np.float64)
    np.testing.assert_array_equal(dense, [*original.tolist(), [0.5, 0.25]])


def test_columns_of_equal_names_are_followed() -> None:
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    both = append_features(frame, np.array([[0.5, 0.25]]))
    assert list(both.columns) == ["a", "a"]
    assert both.to_numpy().tolist() == [[1.0, 2.0], [0.5, 0.25]]


def test_integers_go_back_as_float32() -> None:
    synthetic = np.array([[0.5, 0.25]])
    integers = np.ones((2, 2), dtype=np.int64)
    assert restore_features(synthetic, integers).dtype == np.float32
    assert restore_features(synthetic, torch.tensor(integers)).dtype == torch.float32
    assert set(restore_features(synthetic, pd.DataFrame(integers)).dtypes) == {np.dtype(np.float32)}
    assert set(restore_features(synthetic, pl.DataFrame(integers)).dtypes) == {pl.Float32}


def test_columns_of_different_types_and_equal_names_go_back() -> None:
    like = pd.concat([pd.Series([1.0], name="a", dtype="float32"), pd.Series([2], name="a")], axis=1)
    restored = restore_features(np.array([[0.5, 0.25]]), like)
    assert list(restored.columns) == ["a", "a"]
    assert restored.to_numpy().tolist() == [[0.5, 0.25]]


def test_a_frame_of_another_width_is_refused() -> None:
    with pytest.raises(InputError, match="3 features do not fit"):
        restore_features(np.ones((1, 3)), pd.DataFrame(VALUES))


LABEL_CONTAINERS: list[tuple[Any, list[Any]]] = [
    (["b", "a"], ["b", "a"]),
    ((1, 2), [1, 2]),
    ([("x", 1), ("y", 2)], [("x", 1), ("y", 2)]),
    ([np.int32(3), torch.tensor(4)], [3, 4]),
    (np.array(["b", "a"]), ["b", "a"]),
    (np.array([[5], [6]], dtype=np.int8), [5, 6]),
    (np.array([True, False]), [True, False]),
    (torch.tensor([5, 6], dtype=torch.int32), [5, 6]),
    (pd.Series(["b", "a"], name="tree", index=[4, 5]), ["b", "a"]),
    (pd.Series(["b", "a"], name="tree", dtype="category"), ["b", "a"]),
    (pd.Series([("x", 1), ("y", 2)], name="pair"), [("x", 1), ("y", 2)]),
    (pd.DataFrame({"tree": ["b", "a"]}), ["b", "a"]),
    (pd.Index([7, 8]), [7, 8]),
    (pl.Series("tree", ["b", "a"]), ["b", "a"]),
    (pl.DataFrame({"tree": [1, 2]}), [1, 2]),
]


@pytest.mark.parametrize(("labels", "expected"), LABEL_CONTAINERS, ids=str)
def test_labels_are_read_and_restored(labels: Any, expected: list[Any]) -> None:
    names = as_labels(labels, length=2)
    assert names == expected
    assert [type(name) for name in names] == [type(name) for name in expected]
    restored = restore_labels(names[::-1], labels)
    assert as_labels(restored) == expected[::-1]
    if isinstance(labels, (np.ndarray, torch.Tensor, pd.Series, pl.Series)):
        assert type(restored) is type(labels)
        assert restored.dtype == labels.dtype
    if isinstance(labels, (pd.Series, pl.Series)):
        assert restored.name == labels.name


@pytest.mark.parametrize(("labels", "expected"), LABEL_CONTAINERS, ids=str)
def test_labels_follow_others_in_their_container(labels: Any, expected: list[Any]) -> None:
    both = append_labels(labels, expected[:1])
    assert as_labels(both) == [*expected, expected[0]]
    if isinstance(labels, (np.ndarray, torch.Tensor, pd.Series, pl.Series, pd.DataFrame, pl.DataFrame, list)):
        assert type(both) is type(labels)
    if isinstance(labels, (pd.DataFrame, pl.DataFrame)):
        assert list(both.columns) == list(labels.columns)


def test_dates_keep_their_type() -> None:
    days = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[ns]")
    assert as_labels(days) == list(days)
    assert restore_labels(as_labels(days), days).dtype == days.dtype


def test_restored_names_are_never_cut() -> None:
    assert restore_labels(["longer"], np.array(["a"])).tolist() == ["longer"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("ab", "y is one str"),
        (3, "not a sequence of labels"),
        (["a", None], "missing .* in row 1"),
        ([float("nan"), 1.0], "missing .* in row 0"),
        (pd.Series([1, None], dtype="Int64"), "missing .* in row 1"),
        (np.array(["2020", "NaT"], dtype="datetime64[D]"), "missing .* in row 1"),
        ([["a"], ["b"]], "a list in row 0"),
        ([torch.ones(2), torch.ones(2)], "a Tensor in row 0"),
        (np.ones((2, 2)), r"shape \(2, 2\)"),
        (["a"], "1 labels for 2 examples"),
    ],
    ids=str,
)
def test_wrong_labels_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_labels(wrong, length=2)


@given(st.lists(st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.integers())), max_size=8))
def test_arrays_of_labels_lose_nothing(names: list[Any]) -> None:
    array = label_array(names)
    assert array.ndim == 1
    assert array.tolist() == names


def test_nothing_heavy_is_imported() -> None:
    heavy = "torch pandas polars sklearn scipy matplotlib"
    code = f"import sys, cpaan.data; print([name for name in '{heavy}'.split() if name in sys.modules])"
    # The package's own front door may import more; what counts is what the data folder adds to it.
    baseline = code.replace(", cpaan.data", ", cpaan")
    outputs = [subprocess.check_output([sys.executable, "-c", run], text=True) for run in (code, baseline)]
    assert outputs[0] == outputs[1]
