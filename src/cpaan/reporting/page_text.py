"""Text of strangers on a page: what cannot be seen is made visible."""

import math
import unicodedata
from typing import Any, TypeVar

# Characters that change the direction of what follows them, up to the end of the line if they are not closed.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_PLAIN = frozenset("\n\t")
Value = TypeVar("Value")


def readable(value: Value) -> Value:
    r"""Show control characters in all texts of nested data by their number; all that JSON has stays as it is.

    >>> readable({"name": "ab\u202ecd"})
    {'name': 'ab⟨U+202E⟩cd'}
    """
    # What is given comes back with other letters: of the same kind, which mypy cannot see through the recursion.
    return _readable(value)  # type: ignore[no-any-return]


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(f"⟨U+{ord(letter):04X}⟩" if _is_hidden(letter) else letter for letter in value)
    if isinstance(value, dict):
        return {_readable(key): _readable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def _is_hidden(letter: str) -> bool:
    return letter in _DIRECTIONS or (unicodedata.category(letter) in ("Cc", "Cs") and letter not in _PLAIN)
