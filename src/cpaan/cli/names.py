"""Lists given as one word: methods and numbers of shots."""

from cpaan.errors import InputError

SUFFIXES = ("l2", "center-l2")  # normalisations that a method may ask for after a plus


def parse_methods(text: str) -> tuple[tuple[str, ...], str | None]:
    """Split a list of methods, and find the normalisation that suffixes ask for.

    >>> parse_methods("linear,ccov-gan")
    (('linear', 'ccov-gan'), None)
    >>> parse_methods("calibrated+transfer+l2")
    (('calibrated+transfer',), 'l2')
    """
    parts = [_without_suffix(part.strip()) for part in text.split(",") if part.strip()]
    suffixes = sorted({suffix for _, suffix in parts if suffix})
    if len(suffixes) > 1:
        raise InputError(f"methods ask for {' and '.join('+' + s for s in suffixes)}; a run has one normalization")
    return tuple(name for name, _ in parts), suffixes[0] if suffixes else None


def _without_suffix(name: str) -> tuple[str, str]:
    method, _, suffix = name.rpartition("+")
    return (method, suffix) if suffix in SUFFIXES else (name, "")


def parse_shots(text: str) -> tuple[int, ...]:
    """Read numbers of shots.

    >>> parse_shots("1,5,20")
    (1, 5, 20)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--shots takes whole numbers separated by commas, such as 1,5,20, not {text!r}") from error
