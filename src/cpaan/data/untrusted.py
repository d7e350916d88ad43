"""What a file may ask for. Files may come from anywhere, so none is believed before it is checked.

Sizes are held against limits before memory is taken, names from a file never lead out of its folder, and whatever goes
wrong while a file is read becomes an `InputError` that names it.

JSON files, which are read no longer and no deeper than anyone needs.
"""

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cpaan.errors import InputError

LONGEST_NAME = 200
"""Bytes of a name that files of a folder may be called by, less than any file system takes."""

# Features pack well where most are zero, but a file that unpacks to more than this is made to fill the memory.
_LARGEST_RATIO = 200
_ALWAYS_PLAUSIBLE = 2**26
_LONGEST_REASON = 300
_LARGEST_WHOLE = 2**53  # beyond it, whole numbers are no floating-point ones


@contextmanager
def reading(path: str | os.PathLike[str], what: str = "is damaged or of another kind") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into an `InputError` that names the file.

    Parameters
    ----------
    path : str or path
        The file, or the folder of a model.
    what : str
        What is then said of it.

    Examples
    --------
    >>> with reading("trees.npz"):
    ...     {}["features"]
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: trees.npz is damaged or of another kind: KeyError: 'features'
    """
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    # Libraries raise nearly anything at files that were damaged, or made to do harm.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
        raise InputError(f"{path} {what}: {reason}") from error


def require_file(path: str | os.PathLike[str], ending: str = "") -> None:
    """Refuse a path where there is no file, or a device or pipe, which may have no end.

    Parameters
    ----------
    path : str or path
        The path; a link is followed.
    ending : str
        How the names of such files end, for the message.

    Examples
    --------
    >>> require_file("missing.npz")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: there is no file missing.npz
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a folder; give the path of a file{f' ({ending})' if ending else ''}")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is a device or a pipe; give the path of a file{f' ({ending})' if ending else ''}")


def require_plausible(path: str | os.PathLike[str], claimed: int) -> None:
    """Refuse a file that would unpack to far more than its length, before memory is taken for it.

    Parameters
    ----------
    path : str or path
        The file.
    claimed : int
        Bytes that what it says it holds would take in memory.

    Raises
    ------
    InputError
        Where that is more than 64 MiB and more than 200 times the length of the file.
    """
    length = os.path.getsize(path)
    if claimed > max(_ALWAYS_PLAUSIBLE, _LARGEST_RATIO * length):
        raise InputError(
            f"{path} is damaged or made to do harm: it claims to hold {claimed / 2**20:.0f} MiB in {length} bytes; if "
            "you trust it, write it again without compression"
        )


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a file that has no more than so many bytes.

    Parameters
    ----------
    path : str or path
        The file.
    most : int
        Longer files are refused.

    Returns
    -------
    bytes
        All of it.

    Raises
    ------
    InputError
        Where the file is missing, longer, or cannot be read.
    """
    require_file(path)
    try:
        with open(path, "rb") as file:
            # Not for as much as it might have, since room is taken for that at once.
            content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise InputError(f"{path} has more than {most / 2**20:.0f} MiB, the most that is read of such a file")
    return content


def plain_name(name: object, path: str | os.PathLike[str]) -> str:
    """Give a name that a file says of another file beside it; refuse one that would lead out of the folder.

    Parameters
    ----------
    name : object
        What the file says.
    path : str or path
        The file, for the message.

    Returns
    -------
    str
        The name.

    Examples
    --------
    >>> plain_name("../secrets", "config.json")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: config.json: '../secrets' is no plain name, and could lead out of its folder
    """
    if not isinstance(name, str) or not name or name.startswith(".") or any(mark in name for mark in "/\\:\0"):
        raise InputError(f"{path}: {name!r:.100} is no plain name, and could lead out of its folder")
    if len(name.encode()) > LONGEST_NAME:
        raise InputError(f"{path}: {name!r:.100} is longer than the name of a file may be")
    return name


def require_arrays(values: Mapping[str, Any], forms: Mapping[str, str], **sizes: int) -> None:
    """Refuse arrays or tensors of other types, or that do not fit one another.

    Parameters
    ----------
    values : mapping of str to array or tensor
        What was read; more may be in it.
    forms : mapping of str to str
        For each that must be there a letter for each dimension and how its type begins, such as "CD float"; the same
        letter is the same size.
    **sizes : int
        Sizes of letters that are known.

    Raises
    ------
    InputError
        Where one is missing or has another shape or type.

    Examples
    --------
    >>> import numpy as np
    >>> require_arrays({"means": np.zeros((3, 2))}, {"means": "CD float"}, D=4)
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: means is float64 of shape (3, 2), which does not fit the rest
    """
    for name, form in forms.items():
        if name not in values:
            raise InputError(f"{name} is missing")
        letters, _, kind = form.rpartition(" ")
        shape, found = tuple(values[name].shape), str(values[name].dtype).removeprefix("torch.")
        fits = len(shape) == len(letters) and found.startswith(kind)
        if not fits or any(sizes.setdefault(key, size) != size for key, size in zip(letters, shape, strict=True)):
            raise InputError(f"{name} is {found} of shape {shape}, which does not fit the rest")


def require_counts(counts: Any, total: int, name: str) -> None:
    """Refuse counts that do not part so many rows: they say how much memory is taken next.

    Parameters
    ----------
    counts : array or tensor of int
        Rows of each class.
    total : int
        Rows of all classes.
    name : str
        What the message calls them.

    Examples
    --------
    >>> import numpy as np
    >>> require_counts(np.array([2, 10**12]), 5, "kept")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: kept does not part 5 rows
    """
    # With Python's integers, whose sum does not overflow.
    numbers = counts.tolist()
    if any(number < 0 for number in numbers) or sum(numbers) != total:
        raise InputError(f"{name} does not part {total} rows")


def positive_number(value: object, name: str, *, or_zero: bool = False) -> float:
    """Give a finite number above zero, or from zero.

    Parameters
    ----------
    value : object
        What a file has.
    name : str
        What the message calls it.
    or_zero : bool
        Whether it may be zero.

    Returns
    -------
    int or float
        The number as it was.

    Examples
    --------
    >>> positive_number(float("nan"), "scale")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: scale is nan; it must be a number above 0
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    too_large = isinstance(number, int) and number > _LARGEST_WHOLE
    if too_large or not (0 < number < math.inf or (or_zero and number == 0)):
        raise InputError(f"{name} is {value!r:.100}; it must be a number {'from' if or_zero else 'above'} 0")
    return number


MOST_JSON_BYTES = 2**26
"""The longest JSON text that is read: in memory it can take twenty times as much."""
DEEPEST_JSON = 50
"""Lists in lists beyond this depth are refused."""

_MARKS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)  # what a backslash hides is no end of a string


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    object
        What it holds.

    Raises
    ------
    InputError
        Where the file is missing, no JSON, longer than 64 MiB or nested deeper than 50.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "split.json").write_text("[[3, 1]]")
    ...     read_json(f"{folder}/split.json")
    [[3, 1]]
    """
    return parse_json(read_bytes(path, MOST_JSON_BYTES), f"{path}")


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse a JSON text that is not too long nor too deep.

    Parameters
    ----------
    text : str or bytes
        The text.
    name : str
        What messages call it.

    Returns
    -------
    object
        What it holds.

    Examples
    --------
    >>> parse_json("[" * 60 + "]" * 60, "split.json")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: split.json is no JSON file that can be read: it is nested deeper than 50
    """
    if len(text) > MOST_JSON_BYTES:
        raise InputError(f"{name} has more than {MOST_JSON_BYTES / 2**20:.0f} MiB, the most that is read of JSON")
    try:
        plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no JSON file, or it is damaged: {error}") from error
    require_shallow(plain, name)
    try:
        value = json.loads(plain)
    except (ValueError, MemoryError) as error:
        raise InputError(f"{name} is no JSON file, or it is truncated or damaged: {error}") from error
    if not is_writable(value):
        raise InputError(f"{name} is no JSON file that can be read: it holds half a character (a lone surrogate)")
    return value


def require_shallow(text: str, name: str) -> None:
    """Refuse a JSON text that is nested too deep, before it is parsed: the parser takes minutes for a long one.

    Parameters
    ----------
    text : str
        The text, which need not be JSON.
    name : str
        What the message calls it.

    Examples
    --------
    >>> require_shallow('["[[[[[[", []]', "split.json")
    """
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text):
        if mark[0] == '"':
            quoted = not quoted
        elif not quoted and mark[0] in "[{":
            depth += 1
            if depth > DEEPEST_JSON:
                raise InputError(f"{name} is no JSON file that can be read: it is nested deeper than {DEEPEST_JSON}")
        elif not quoted and mark[0] in "]}":
            depth -= 1


def is_writable(value: Any) -> bool:
    r"""Tell whether all text of a value out of JSON can be written again: an escape can stand for half a character.

    >>> is_writable({"oak": 3}), is_writable(["\ud83d"])
    (True, False)
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
