"""Setups: class lists that are valid, from files of our own and from the official one."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data.class_split import ImageClasses, Setup, read_image_classes, read_setup
from cpaan.errors import InputError

# The folder of development data lies beside the repository; another place can be named in the environment.
SHARED = Path(os.environ.get("CPAAN_DATA", Path(__file__).parents[3] / "shared" / "data"))
OFFICIAL = {
    "label_names": ["n01", "n02", "n03", "n04", "n05"],
    "base_classes": [0, 1, 4],
    "base_classes_1": [1],
    "novel_classes_1": [2],
    "base_classes_2": [4, 0],
    "novel_classes_2": [3],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def shared_file(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"no file {path}; set CPAAN_DATA to the folder with the development data")
    return path


def test_names_keep_their_order_and_type() -> None:
    setup = Setup(("b", "a"), (3, ("x", 1)))
    assert setup.base == ("b", "a")
    assert setup.novel == (3, ("x", 1))


def test_lists_and_arrays_become_tuples() -> None:
    base: Any = np.array([3, 1])
    novel: Any = [2]
    assert Setup(base, novel) == Setup((3, 1), (2,))
    assert [type(name) for name in Setup(base, novel).base] == [int, int]


@pytest.mark.parametrize(
    ("base", "novel", "message"),
    [
        ((), ("a",), "base is empty; give at least one class"),
        (("a",), (), "novel is empty"),
        (("a", "b", "a"), ("c",), "base has 'a' more than once"),
        (("a",), ("c", "c"), "novel has 'c' more than once"),
        (("a", "b", "c"), ("c", "d", "a"), "both base and novel: 'c', 'a'; a class can be one of the two only"),
        (("a", None), ("b",), "base is missing .* in row 1"),
        ((["a"],), ("b",), "base holds a list in row 0"),
        ("ab", ("c",), "base is one str"),
    ],
)
def test_wrong_lists_are_refused(base: Any, novel: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setup(base, novel)


def test_reading_a_setup(tmp_path: Path) -> None:
    path = write(tmp_path / "setup.json", {"base": ["b", "a"], "novel": ["ü"], "all_base": ["b", "a", "c"]})
    assert read_setup(path) == read_setup(str(path)) == Setup(("b", "a"), ("ü",))


def test_reading_the_two_parts_of_the_official_file(tmp_path: Path) -> None:
    path = write(tmp_path / "label_idx.json", OFFICIAL)
    assert read_setup(path, part=1) == Setup((1,), (2,))
    assert read_setup(path, part=2) == Setup((4, 0), (3,))


@pytest.mark.parametrize(
    ("content", "part", "message"),
    [
        ([1, 2], None, "this is a list; a setup is an object"),
        ({}, None, "this has no keys"),
        ({"base": ["a"], "classes": []}, None, "needs the keys \"base\" and \"novel\".*this has 'base', 'classes'"),
        ({"base": "a", "novel": ["b"]}, None, "base is a str; give a list"),
        ({"base": ["a"], "novel": {"b": 1}}, None, "novel is a dict; give a list"),
        ({"base": ["a"], "novel": ["a"]}, None, r"odd\.json: both base and novel: 'a'"),
        ({"base": ["a"], "novel": [["b"]]}, None, "novel holds a list"),
        ({"base": ["a"], "novel": ["b"]}, 1, "part is 1, but .* one part only; leave part out"),
        (OFFICIAL, None, r"two parts; give part=1 \(validation\) or part=2 \(final results\)"),
        (OFFICIAL, 3, "part is 3; give part=1"),
        (OFFICIAL, True, "part is True"),
        ({"base_classes_1": [1]}, 1, "no key 'novel_classes_1'"),
        ({"base_classes": [1], "novel_classes": [2]}, 2, "no key 'base_classes_2'"),
        (OFFICIAL | {"novel_classes_1": ["n01"]}, 1, "novel_classes_1 holds 'n01'; give class indices"),
        (OFFICIAL | {"base_classes_1": [-1]}, 1, "base_classes_1 holds -1"),
    ],
)
def test_files_that_are_no_setup(tmp_path: Path, content: Any, part: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_setup(write(tmp_path / "odd.json", content), part)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*missing\.json"):
        read_setup(tmp_path / "missing.json")
    with pytest.raises(InputError, match="is a folder"):
        read_setup(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_setup(tmp_path / "a\0b")
    for name, content in {"text": b"base: a", "bytes": b"\xff\xfe\x00\xd8", "deep": b"[" * 100_000}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} (is not|cannot be read as) JSON"):
            read_setup(tmp_path / name)


def test_the_official_file() -> None:
    path = shared_file("imagenet-lowshot", "label_idx.json")
    validation, final = read_setup(path, part=1), read_setup(path, part=2)
    assert (len(validation.base), len(validation.novel)) == (193, 300)
    assert (len(final.base), len(final.novel)) == (196, 311)
    indices = [*validation.base, *validation.novel, *final.base, *final.novel]
    assert sorted(indices, key=int) == list(range(1000))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "sizes"), [("clinc150", (80, 40)), ("tiny-imagenet", (40, 56))])
def test_development_files(name: str, sizes: tuple[int, int]) -> None:
    setup = read_setup(shared_file("features", f"{name}-setup.json"))
    assert (len(setup.base), len(setup.novel)) == sizes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"base": ["a"], "novel": ["c"], "all_base": ["a", "c"]}, "both base and novel: 'c'; a class can be one"),
        ({"base": ["a"], "novel": ["c"], "all_base": ["b"]}, "all_base lacks the base classes 'a'"),
        ({"base": ["a"], "novel": ["c"], "all_base": ["a", "a"]}, "has 'a' more than once"),
        ({"label_names": ["a", "b"], "base_classes": [0], "novel_classes_1": [0, 1]}, "novel: 'a'"),
        ({"label_names": ["a", "a"], "base_classes": [0], "novel_classes_1": []}, "has 'a' more than once"),
        ({"label_names": ["a", "b"], "base_classes": [7], "novel_classes_1": []}, "base_classes holds 7"),
        ({"label_names": ["a", "b"], "base_classes": [], "novel_classes_1": []}, "is empty; give at least one"),
    ],
)
def test_classes_to_train_on_are_checked(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    (tmp_path / "setup.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_image_classes(tmp_path / "setup.json")


def test_classes_to_train_on_are_those_of_all_parts(tmp_path: Path) -> None:
    official = {"label_names": ["n2", "n1", "n3"], "base_classes": [0, 1], "novel_classes_1": [2]}
    (tmp_path / "label_idx.json").write_text(json.dumps(official))
    assert read_image_classes(tmp_path / "label_idx.json") == ImageClasses(("n2", "n1"), ("n2", "n1", "n3"))
