"""JSON files, which are read no longer and no deeper than anyone needs."""

import json
import os
import re
from typing import Any

from cpaan.data.limits import read_bytes
from cpaan.errors import InputError

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
