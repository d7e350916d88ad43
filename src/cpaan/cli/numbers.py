"""Numbers given as NAME=VALUE."""

from typing import Any

from cpaan.errors import InputError

_WORDS = {"true": True, "false": False}


def parse_numbers(items: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE items; values are whole numbers, numbers, true, false or words.

    >>> parse_numbers(["episodes=10", "cycle_weight=2.5", "pairing=all", "standardize=true"])
    {'episodes': 10, 'cycle_weight': 2.5, 'pairing': 'all', 'standardize': True}
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
