"""Checks of untrusted files. Files may come from anywhere, so none is believed before it is checked.

Sizes are compared with limits before memory is taken, names from a file never lead out of its folder, and whatever
goes wrong while a file is read becomes an `InputError` that names it. Readers of each format add the checks that need
knowledge of the format, and end in `require_plausible`.
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

LONGEST_NAME = 200  # bytes in the name of a file, less than any file system takes
MOST_JSON_BYTES = 2**26  # in memory, JSON can take twenty times as much
DEEPEST_JSON = 50

# Features pack well where most are zero, but a file that unpacks to more than this was made to fill the memory.
_LARGEST_RATIO = 200
_ALWAYS_PLAUSIBLE = 2**26
_LONGEST_REASON = 300
_LARGEST_WHOLE = 2**53  # floating-point numbers hold integers up to it
_MARKS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)  # an escaped quote does not end a string


@contextmanager
def reading(path: str | os.PathLike[str], what: str = "is damaged or of another kind") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into an `InputError` that names the file."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    # Libraries raise nearly anything at files that are damaged, or made to do harm.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
        raise InputError(f"{path} {what}: {reason}") from error


def require_file(path: str | os.PathLike[str], ending: str = "") -> None:
    """Refuse a path that leads to no file, or to a device or pipe, which may have no end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise InputError(f"{path} is {found}; give the path of a file{f' ({ending})' if ending else ''}")


def require_plausible(path: str | os.PathLike[str], claimed: int) -> None:
    """Refuse a file that claims to take more than 64 MiB of memory and more than 200 times its length."""
    length = os.path.getsize(path)
    if claimed > max(_ALWAYS_PLAUSIBLE, _LARGEST_RATIO * length):
        raise InputError(
            f"{path} is damaged or made to do harm: it claims to hold {claimed / 2**20:.0f} MiB in {length} bytes; if "
            "you trust it, write it again without compression"
        )


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a file, unless it has more than `most` bytes."""
    require_file(path)
    try:
        with open(path, "rb") as file:
            # Room is taken at once for as much as is asked for.
            content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise InputError(f"{path} has more than {most / 2**20:.0f} MiB, the limit for such a file")
    return content


def plain_name(name: object, path: str | os.PathLike[str]) -> str:
    """Check the name of a file that the file `path` refers to: it must not lead out of the folder."""
    if not isinstance(name, str) or not name or name.startswith(".") or any(mark in name for mark in "/\\:\0"):
        raise InputError(f"{path}: {name!r:.100} is not a plain name and could lead out of its folder")
    if len(name.encode()) > LONGEST_NAME:
        raise InputError(f"{path}: {name!r:.100} is longer than the name of a file may be")
    return name


# Values out of a file


def require_arrays(values: Mapping[str, Any], forms: Mapping[str, str], **sizes: int) -> None:
    """Refuse arrays or tensors that are missing, have another type, or do not fit one another.

    A form has a letter for each dimension, and the beginning of the type; the same letter is the same size, and
    `sizes` gives those that are known.

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
    """Refuse numbers of rows that are negative or do not add up: they say how much memory is taken next."""
    numbers = counts.tolist()  # Python's integers, whose sum does not overflow
    if any(number < 0 for number in numbers) or sum(numbers) != total:
        raise InputError(f"{name} must not be negative and must add up to {total} rows")


def positive_number(value: object, name: str, *, or_zero: bool = False) -> float:
    """Check that a value is a finite number above zero, or at least zero."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    too_large = isinstance(number, int) and number > _LARGEST_WHOLE
    if too_large or not (0 < number < math.inf or (or_zero and number == 0)):
        raise InputError(f"{name} is {value!r:.100}; it must be a number {'from' if or_zero else 'above'} 0")
    return number


# JSON


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file of at most 64 MiB and 50 levels."""
    return parse_json(read_bytes(path, MOST_JSON_BYTES), f"{path}")


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse a JSON text of at most 64 MiB and 50 levels."""
    if len(text) > MOST_JSON_BYTES:
        raise InputError(f"{name} has more than {MOST_JSON_BYTES / 2**20:.0f} MiB, the limit for JSON")
    try:
        plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        require_shallow(plain, name)
        value = json.loads(plain)
    except InputError:
        raise
    except (ValueError, MemoryError) as error:
        raise InputError(f"{name} is not JSON, or is truncated or damaged: {error}") from error
    if not is_writable(value):
        raise InputError(f"{name} cannot be read as JSON: it holds half a character (a lone surrogate)")
    return value


def require_shallow(text: str, name: str) -> None:
    """Refuse a JSON text that is nested too deep before it is parsed: the parser takes minutes for a long one."""
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text):
        if mark[0] == '"':
            quoted = not quoted
        elif not quoted and mark[0] in "[{":
            depth += 1
            if depth > DEEPEST_JSON:
                raise InputError(f"{name} cannot be read as JSON: it is nested deeper than {DEEPEST_JSON}")
        elif not quoted and mark[0] in "]}":
            depth -= 1


def is_writable(value: Any) -> bool:
    """Tell whether all text of a value from JSON can be encoded: an escape can stand for half a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
