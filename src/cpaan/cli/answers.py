"""What a command prints: a line for people, or an object for programs."""

import json
import math
from typing import Annotated, Any, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print an object, for programs.")]


def answer(text: str, facts: Any, as_json: bool) -> None:
    """Print the line, or the same as JSON."""
    typer.echo(as_text(facts) if as_json else text)


def as_text(facts: Any) -> str:
    """Give JSON that any program can read: what is no number or no plain value is null or text.

    >>> print(as_text({"mean": 1.5, "half_width": float("nan")}))
    {
     "mean": 1.5,
     "half_width": null
    }
    """
    return json.dumps(_readable(facts), indent=1, ensure_ascii=False, default=str)


def _readable(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {name: _readable(value) for name, value in facts.items()}
    if isinstance(facts, (list, tuple)):
        return [_readable(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts
