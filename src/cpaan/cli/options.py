"""Exit codes, and the parsing of options that commands share."""

from typing import Any

from cpaan.errors import InputError

USAGE_ERROR = 2
STOPPED = 130  # what a shell reports after Ctrl-C


def parse_methods(text: str) -> tuple[tuple[str, ...], str | None]:
    """Split a list of methods, and find the normalisation that suffixes ask for.

    >>> parse_methods("linear,ccov-gan")
    (('linear', 'ccov-gan'), None)
    >>> parse_methods("nearest-prototype+l2")
    (('nearest-prototype',), 'l2')
    """
    parts = [part.strip().partition("+") for part in text.split(",") if part.strip()]
    suffixes = sorted({suffix for _, plus, suffix in parts if plus})
    if len(suffixes) > 1:
        raise InputError(f"methods ask for {' and '.join('+' + s for s in suffixes)}; a run has one normalization")
    return tuple(name for name, _, _ in parts), suffixes[0] if suffixes else None


def parse_shots(text: str) -> tuple[int, ...]:
    """Read numbers of shots.

    >>> parse_shots("1,5,20")
    (1, 5, 20)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--shots takes whole numbers separated by commas, such as 1,5,20, not {text!r}") from error


_WORDS = {"true": True, "false": False}


def parse_numbers(items: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE items; values are whole numbers, numbers, true, false or words.

    >>> parse_numbers(["episodes=10", "cycle_weight=2.5", "pairing=all", "center=true"])
    {'episodes': 10, 'cycle_weight': 2.5, 'pairing': 'all', 'center': True}
    """
    numbers: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(f"--set takes NAME=VALUE, such as cycle_weight=2, not {item!r}")
        numbers[name.strip().replace("-", "_")] = _parse(value.strip())
    return numbers


def _parse(value: str) -> Any:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    try:
        return float(value) if set(value) & set(".eEnN") else int(value)
    except ValueError:
        return value
