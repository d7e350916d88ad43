"""Setups: which classes of a bank are base and which are novel.

A setup is a JSON file `{"base": […], "novel": […]}` with class names; it may have other keys. The official
`label_idx.json` of the ImageNet low-shot benchmark is read as it is.

Reference: B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
ICCV 2017, arXiv:1606.02819.
"""

import os
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from cpaan.data.feature_set import as_classes, show_names
from cpaan.data.low_shot import require_disjoint
from cpaan.data.untrusted import read_json
from cpaan.errors import InputError

_PARTS = (1, 2)
_PART_CURE = "give part=1 (validation) or part=2 (final results)"


@dataclass(frozen=True, slots=True)
class Setup:
    """The base and the novel classes of a low-shot problem, in the order to keep.

    >>> Setup(base=("oak", "elm"), novel=("yew",))
    Setup(base=('oak', 'elm'), novel=('yew',))
    """

    base: tuple[Hashable, ...]
    novel: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        for part in ("base", "novel"):
            object.__setattr__(self, part, as_classes(getattr(self, part), part))
        require_disjoint(self.base, self.novel)


def read_setup(path: str | os.PathLike[str], part: int | None = None) -> Setup:
    """Read which classes are base and which are novel.

    Parameters
    ----------
    path : str or path
        A JSON file with `base` and `novel`, or the official `label_idx.json`.
    part : {1, 2}, optional
        For `label_idx.json` alone: 1 gives `base_classes_1` and `novel_classes_1`, which are for validation, 2 those
        for final results. Class names are then the integer class indices of the benchmark, which its feature files
        have as labels, and not the entries of `label_names`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "setup.json")
    ...     _ = path.write_text('{"base": ["oak", "elm"], "novel": ["yew"], "note": "trees"}')
    ...     read_setup(path).novel
    ('yew',)
    """
    if part is not None and (isinstance(part, bool) or part not in _PARTS):
        raise InputError(f"part is {part!r}; {_PART_CURE}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f'{path} holds a {type(content).__name__}; a setup is an object with "base" and "novel"')
    if "base" in content and "novel" in content:
        if part is not None:
            raise InputError(f"part is {part}, but {path} has base and novel classes of one part only; leave part out")
        lists = {name: _as_list(content, name, path) for name in ("base", "novel")}
    elif any(name.startswith(("base_classes", "novel_classes")) for name in content):
        lists = _official_lists(content, part, path)
    else:
        found = show_names(list(content)) or "no keys"
        raise InputError(
            f'{path} is not a setup: it needs the keys "base" and "novel", or those of label_idx.json; it has {found}'
        )
    try:
        return Setup(tuple(lists["base"]), tuple(lists["novel"]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class ImageClasses:
    """Names of folders of images."""

    base: tuple[str, ...]  # classes that a backbone may be trained on: those of all parts of the setup
    everything: tuple[str, ...]  # all classes, in the order of the benchmark's class indices if it has them


def read_image_classes(path: str | os.PathLike[str]) -> ImageClasses:
    """Read which classes of images a backbone is trained on.

    The file is a JSON file with `base`, `novel` and, if `base` is a part of the base classes only, `all_base`; or the
    official `label_idx.json`, whose `label_names` are the names of the folders.
    """
    content = read_json(path)
    if isinstance(content, dict) and "label_names" in content:
        names = tuple(map(str, _as_list(content, "label_names", path)))
        indices = _as_list(content, "base_classes", path)
        wrong = [index for index in indices if type(index) is not int or not 0 <= index < len(names)]
        if wrong:
            raise InputError(f"{path}: base_classes holds {show_names(wrong)}; give indices into label_names")
        base = tuple(names[index] for index in indices)
        novel = [
            names[index]
            for key in content
            if key.startswith("novel_classes")
            for index in _as_list(content, key, path)
            if type(index) is int and 0 <= index < len(names)
        ]
        everything = names
    else:
        setup = read_setup(path)
        base = tuple(map(str, _as_list(content, "all_base", path) if "all_base" in content else setup.base))
        novel = [str(name) for name in setup.novel]
        missing = [name for name in map(str, setup.base) if name not in set(base)]
        if missing:
            raise InputError(f"{path}: all_base lacks the base classes {show_names(missing)}; add them")
        everything = tuple(sorted({*base, *novel}))
    _require_apart(base, novel, everything, path)
    return ImageClasses(base, everything)


def _require_apart(
    base: tuple[str, ...], novel: list[str], everything: tuple[str, ...], path: str | os.PathLike[str]
) -> None:
    for name, values in (("the base classes to train on", base), ("the class names", everything)):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice or not values:
            raise InputError(f"{path}: {name} are {'given twice: ' + show_names(twice) if twice else 'none'}")
    both = [name for name in base if name in set(novel)]
    if both:
        raise InputError(
            f"{path}: a backbone would be trained on classes that are novel: {show_names(both)}; a class can be one of "
            "the two only"
        )


def _official_lists(content: Mapping[str, Any], part: int | None, path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    if part is None:
        raise InputError(f"{path} is the benchmark's label_idx.json, which has two parts; {_PART_CURE}")
    lists = {name: _as_list(content, f"{name}_classes_{part}", path) for name in ("base", "novel")}
    for name, indices in lists.items():
        wrong = [index for index in indices if type(index) is not int or index < 0]
        if wrong:
            raise InputError(f"{path}: {name}_classes_{part} holds {show_names(wrong)}; give class indices from 0")
    return lists


def _as_list(content: Mapping[str, Any], name: str, path: str | os.PathLike[str]) -> list[Any]:
    if name not in content:
        raise InputError(f"{path} has no key {name!r}; keys in it: {show_names(list(content))}")
    value = content[name]
    if not isinstance(value, list):
        raise InputError(f"{path}: {name} is a {type(value).__name__}; give a list of classes")
    return value
