"""Options that commands share, how they are parsed, and exit codes."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cpaan.errors import InputError

USAGE_ERROR = 2
STOPPED = 130  # what a shell reports after Ctrl-C
NORMALIZATION_SUFFIXES = ("l2", "center-l2")  # what a method may ask for after a plus

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device: TypeAlias = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Decides every random draw.")]
SeedButShots: TypeAlias = Annotated[int, typer.Option(help="Decides every random draw but the shots.")]
Part: TypeAlias = Annotated[int | None, typer.Option(help="1 or 2: the part of the official label_idx.json.")]
Setup: TypeAlias = Annotated[Path, typer.Option(help="JSON with the base and the novel classes.")]
Bank: TypeAlias = Annotated[Path, typer.Argument(help="Features of all classes (.npz, .h5, .safetensors or .parquet).")]
PrintedMeasure: TypeAlias = Annotated[str, typer.Option(help="top5 or top1, in the printed tables.")]
Reference: TypeAlias = Annotated[str | None, typer.Option(help="Method to take differences to; the first by default.")]
Model: TypeAlias = Annotated[Path, typer.Argument(help="Folder of a model.")]
Shots: TypeAlias = Annotated[str, typer.Option(help="Numbers of shots, separated by commas.")]


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
    return (method, suffix) if suffix in NORMALIZATION_SUFFIXES else (name, "")


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
