"""Setups: which classes of a bank are base and which are novel.

A setup is a JSON file `{"base": […], "novel": […]}` with class names; it may have other keys. The official
`label_idx.json` of the ImageNet low-shot benchmark is read as it is.

Reference: B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
ICCV 2017, arXiv:1606.02819.
"""

import math
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from cpaan.data.feature_set import as_classes, show_names
from cpaan.data.low_shot import require_disjoint
from cpaan.data.untrusted import read_json, reading
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
    with reading(path):
        return _as_setup(content, part)


def _as_setup(content: Any, part: int | None) -> Setup:
    if not isinstance(content, dict):
        raise InputError(f'this is a {type(content).__name__}; a setup is an object with "base" and "novel"')
    if "base" in content and "novel" in content:
        if part is not None:
            raise InputError(f"part is {part}, but the base and novel classes are of one part only; leave part out")
        return Setup(*(tuple(_as_list(content, name)) for name in ("base", "novel")))
    if not any(name.startswith(("base_classes", "novel_classes")) for name in content):
        found = show_names(list(content)) or "no keys"
        raise InputError(f'a setup needs the keys "base" and "novel", or those of label_idx.json; this has {found}')
    if part is None:
        raise InputError(f"this is the benchmark's label_idx.json, which has two parts; {_PART_CURE}")
    return Setup(*(tuple(_as_indices(content, f"{name}_classes_{part}")) for name in ("base", "novel")))


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
    with reading(path):
        if isinstance(content, dict) and "label_names" in content:
            names = [str(name) for name in _as_list(content, "label_names")]
            base = [names[index] for index in _as_indices(content, "base_classes", len(names))]
            keys = [key for key in content if key.startswith("novel_classes")]
            indices = [index for key in keys for index in _as_list(content, key)]
            novel = [names[index] for index in indices if type(index) is int and 0 <= index < len(names)]
        else:
            setup = _as_setup(content, None)
            base = list(map(str, _as_list(content, "all_base") if "all_base" in content else setup.base))
            novel = list(map(str, setup.novel))
            names = sorted({*base, *novel})
            missing = [name for name in map(str, setup.base) if name not in set(base)]
            if missing:
                raise InputError(f"all_base lacks the base classes {show_names(missing)}; add them")
        as_classes(base, "the list of base classes to train on")
        as_classes(names, "the list of class names")
        require_disjoint(tuple(base), tuple(novel))
        return ImageClasses(tuple(base), tuple(names))


def _as_indices(content: Mapping[str, Any], name: str, end: float = math.inf) -> list[int]:
    """Read a list of class indices from 0 to below `end`."""
    indices = _as_list(content, name)
    wrong = [index for index in indices if type(index) is not int or not 0 <= index < end]
    if wrong:
        limit = "" if end == math.inf else f" to {end - 1}"
        raise InputError(f"{name} holds {show_names(wrong)}; give class indices from 0{limit}")
    return indices


def _as_list(content: Mapping[str, Any], name: str) -> list[Any]:
    if name not in content:
        raise InputError(f"there is no key {name!r}; keys: {show_names(list(content))}")
    value = content[name]
    if not isinstance(value, list):
        raise InputError(f"{name} is a {type(value).__name__}; give a list of classes")
    return value
