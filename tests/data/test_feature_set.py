"""The data object: what it takes, what it refuses, and that it never changes."""

import copy
import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpaan.data import FeatureSet
from cpaan.errors import InputError

pd: Any = pytest.importorskip("pandas")
pl: Any = pytest.importorskip("polars")

FEATURES = np.arange(12, dtype=np.float32).reshape(6, 2)
NAMES = ["oak", "elm", "ash", "oak", "elm", "oak"]


@pytest.fixture
def trees() -> FeatureSet:
    return FeatureSet(FEATURES, NAMES)


def test_members(trees: FeatureSet) -> None:
    assert trees.classes == ("ash", "elm", "oak")
    assert trees.labels.tolist() == [2, 1, 0, 2, 1, 2]
    assert trees.labels.dtype == np.int64
    assert trees.counts.tolist() == [1, 2, 3]
    assert trees.names.tolist() == NAMES
    assert (len(trees), trees.n_classes, trees.dimension) == (6, 3, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_types_are_kept(dtype: Any) -> None:
    assert FeatureSet(FEATURES.astype(dtype), NAMES).features.dtype == dtype


def test_integers_become_float32() -> None:
    assert FeatureSet(FEATURES.astype(int), NAMES).features.dtype == np.float32


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (FEATURES.tolist(), tuple(NAMES)),
        (torch.tensor(FEATURES), np.array(NAMES)),
        (pd.DataFrame(FEATURES), pd.Series(NAMES)),
        (pl.DataFrame(FEATURES), pl.Series(NAMES)),
    ],
    ids=["list", "torch", "pandas", "polars"],
)
def test_every_container_gives_the_same_set(trees: FeatureSet, features: Any, labels: Any) -> None:
    read = FeatureSet(features, labels)
    assert read.classes == trees.classes
    np.testing.assert_array_equal(read.labels, trees.labels)
    np.testing.assert_array_equal(read.features, trees.features)


def test_names_without_order_keep_that_of_their_appearance() -> None:
    mixed = FeatureSet(np.zeros((4, 1)), ["b", 3, ("t", 1), "b"])
    assert mixed.classes == ("b", 3, ("t", 1))
    assert mixed.names.tolist() == ["b", 3, ("t", 1), "b"]


def test_numpy_scalars_become_python_scalars() -> None:
    numbered = FeatureSet(np.zeros((2, 1)), [np.int64(7), np.int64(3)])
    assert numbered.classes == (3, 7)
    assert {type(name) for name in numbered.classes} == {int}


@given(st.lists(st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(0, 3))), min_size=1))
def test_names_come_back_as_they_went_in(names: list[Any]) -> None:
    assert FeatureSet(np.zeros((len(names), 1)), names).names.tolist() == names


def test_nobody_can_change_a_set(trees: FeatureSet) -> None:
    mine = FEATURES.copy()
    indices = np.array([0, 1, 0, 1, 0, 1])
    frozen = FeatureSet(mine, indices, ["a", "b"])
    with pytest.raises(ValueError, match="read-only"):
        frozen.features[0, 0] = 9
    with pytest.raises(ValueError, match="read-only"):
        frozen.labels[0] = 1
    with pytest.raises(AttributeError):
        trees.classes = ()  # type: ignore[misc]
    mine[0, 0] = 99
    indices[0] = 1
    assert frozen.features[0, 0] == 0
    assert frozen.labels[0] == 0


def test_a_tensor_stays_apart() -> None:
    tensor = torch.zeros(2, 2)
    frozen = FeatureSet(tensor, ["a", "b"])
    tensor += 1
    assert frozen.features.max() == 0


def test_copies_are_equal_and_as_frozen(trees: FeatureSet) -> None:
    for twin in (pickle.loads(pickle.dumps(trees)), copy.deepcopy(trees)):
        assert twin == trees
        assert not twin.features.flags.writeable
    assert trees != FeatureSet(FEATURES.astype(np.float64), NAMES)
    assert trees != FeatureSet(FEATURES + 1, NAMES)
    assert trees != NAMES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FEATURES[0], NAMES), "features has shape"),
        ((FEATURES, NAMES[:4]), "labels has 4 labels for 6 examples"),
        ((FEATURES, [0, 1], "ab"), "classes is one str"),
        ((FEATURES, [0, 1], ["a", "b"]), r"labels has shape \(2,\) for 6 examples"),
        ((FEATURES, [0, 1, 2, 0, 1, -1], ["a", "b"]), "from 0 to 1; they are not in rows 2, 5"),
        ((FEATURES, NAMES, ["oak", "elm", "ash"]), "integer indices into classes.*leave classes out"),
        ((FEATURES, [0.0] * 6, ["a"]), "integer indices"),
        ((FEATURES, [0] * 6, ["a", "b", "a"]), "classes has 'a' more than once"),
        ((FEATURES, [0] * 6, ["a", "b", "c"]), "no examples of 'b', 'c'"),
        ((FEATURES, [0] * 6, [["a"]]), "classes holds a list"),
        ((FEATURES, [0] * 6, []), "classes is empty"),
    ],
)
def test_wrong_sets_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FeatureSet(*arguments)


def test_rows_that_are_not_finite_are_named() -> None:
    features = np.zeros((30, 2))
    features[[3, 17, 20, 21], 0] = np.nan
    message = "features are NaN or infinite in rows 3, 17, 20 and 1 more; remove or impute these rows"
    with pytest.raises(InputError, match=message):
        FeatureSet(features, [0] * 30)


def test_select_keeps_the_order_asked_for(trees: FeatureSet) -> None:
    chosen = trees.select(["oak", "ash"])
    assert chosen.classes == ("oak", "ash")
    assert chosen.names.tolist() == ["oak", "ash", "oak", "oak"]
    np.testing.assert_array_equal(chosen.features, FEATURES[[0, 2, 3, 5]])


def test_unknown_classes_are_refused_with_close_names(trees: FeatureSet) -> None:
    with pytest.raises(InputError, match="unknown class 'aok'; did you mean 'oak'"):
        trees.select(["elm", "aok"])
    with pytest.raises(InputError, match="unknown class 17; known: 'ash', 'elm', 'oak'"):
        trees.of_class(17)
    with pytest.raises(InputError, match="'elm' more than once"):
        trees.select(["elm", "elm"])


def test_take_leaves_out_classes_without_rows(trees: FeatureSet) -> None:
    taken = trees.take([5, 2])
    assert taken.classes == ("ash", "oak")
    assert taken.names.tolist() == ["oak", "ash"]
    np.testing.assert_array_equal(taken.features, FEATURES[[5, 2]])
    assert trees.take(np.isin(np.arange(6), [2, 5])).names.tolist() == ["ash", "oak"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows are taken"),
        (np.zeros(6, dtype=bool), "no rows are taken"),
        ([6], "from 0 to 5"),
        ([-1], "from 0 to 5"),
        ([True, False], "a mask of 6 bool"),
        ([0.5], "row numbers"),
        (3, "row numbers"),
    ],
)
def test_wrong_rows_are_refused(trees: FeatureSet, rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trees.take(rows)


def test_of_class(trees: FeatureSet) -> None:
    np.testing.assert_array_equal(trees.of_class("elm"), FEATURES[[1, 4]])


def test_concatenate_joins_classes_by_name(trees: FeatureSet) -> None:
    joined = trees.concatenate(FeatureSet([[0.5, 0.5], [1.5, 1.5]], ["yew", "ash"]))
    assert joined.classes == ("ash", "elm", "oak", "yew")
    assert joined.names.tolist() == [*NAMES, "yew", "ash"]
    with pytest.raises(InputError, match="2 and 1 columns"):
        trees.concatenate(FeatureSet([[1.0]], ["yew"]))


def test_to_numpy_and_torch(trees: FeatureSet) -> None:
    X, y = trees.to_numpy()
    assert FeatureSet(X, y) == trees
    features, labels = trees.to_torch()
    assert features.dtype == torch.float32
    assert labels.dtype == torch.int64
    features += 1
    np.testing.assert_array_equal(trees.features, FEATURES)
    np.testing.assert_array_equal(labels.numpy(), trees.labels)


def test_frames_and_back(trees: FeatureSet) -> None:
    frame = trees.to_frame(label="tree")
    assert list(frame.columns) == ["feature_0", "feature_1", "tree"]
    assert FeatureSet.from_frame(frame, label="tree") == trees
    assert FeatureSet.from_frame(pl.DataFrame(frame.to_dict("list")), label="tree").names.tolist() == NAMES


def test_wrong_frames_are_refused(trees: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown column 'lable'; did you mean 'label'"):
        FeatureSet.from_frame(trees.to_frame(), label="lable")
    with pytest.raises(InputError, match="a ndarray is not a data frame"):
        FeatureSet.from_frame(FEATURES)
    with pytest.raises(InputError, match="choose another name"):
        trees.to_frame(label="feature_1")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        trees.to_frame()


def test_a_fingerprint_is_of_features_labels_and_classes(tmp_path: Path) -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    trees = FeatureSet(features, ["oak", "elm", "oak"])
    digest = hashlib.sha256(b"float32 (3, 2) ('elm', 'oak')" + trees.labels.tobytes() + features.tobytes())
    assert trees.fingerprint() == digest.hexdigest()[:16]
    np.save(tmp_path / "rows.npy", features)
    mapped = FeatureSet(np.load(tmp_path / "rows.npy", mmap_mode="r"), trees.labels, trees.classes)
    assert mapped.fingerprint() == trees.fingerprint()
    others = [
        FeatureSet(features + 1, trees.labels, trees.classes),
        FeatureSet(features.astype(np.float64), trees.labels, trees.classes),
        FeatureSet(features, ["elm", "elm", "oak"]),
        FeatureSet(features, ["oak", "yew", "oak"]),
    ]
    assert len({other.fingerprint() for other in (trees, *others)}) == 5
