"""Markdown tables of runs in the paper's layout, differences to a reference, and text by strangers made readable."""

import math
import unicodedata
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from cpaan.errors import InputError
from cpaan.evaluation.run_folder import (
    PUBLISHED,
    SHOTS,
    Entry,
    Interval,
    Key,
    RunFolder,
    paired_differences,
    summarize_rows,
)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Lay out a table with its columns aligned: the first, or the first few, to the left, all others to the right.

    >>> print(markdown_table(["method", "top-1"], [["none", "50.0"], ["cCov-GAN", "61.5"]]))
    | method   | top-1 |
    | :------- | ----: |
    | none     |  50.0 |
    | cCov-GAN |  61.5 |
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < names else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    dashes = ["-" * (width - 1) for width in widths]
    rule = [f":{dash}" if i < names else f"{dash}:" for i, dash in enumerate(dashes)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


SETTINGS = ("LSL", "GLSL")


def benchmark_table(rows: Sequence[dict[str, Any]], measure: str = "top5") -> str:
    """Lay out mean accuracies with intervals; **best** and _second best_ of a column are marked."""
    return _table(summarize_rows(rows, measure), _entries(rows), mark=True)


def difference_table(rows: Sequence[dict[str, Any]], reference: str, measure: str = "top5") -> str:
    """Lay out the paired differences of every method to a reference, in points."""
    entries = [entry for entry in _entries(rows) if entry[0] != reference]
    return _table(paired_differences(rows, reference, measure), entries, mark=False, signed=True)


def diversity_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay out how much the examples of each method differ within a class, beside real ones."""
    known = [row for row in rows if row["setting"] == SETTINGS[0] and row.get("diversity") is not None]
    shots, methods = sorted({row["shots"] for row in known}), list(dict.fromkeys(row["method"] for row in known))

    def mean(name: str, wanted: Sequence[dict[str, Any]]) -> str:
        values = [row[name] for row in wanted if row[name] is not None]
        return f"{np.mean(values):.3f}" if values else "–"

    body = [
        [method, *(mean("diversity", [r for r in known if r["method"] == method and r["shots"] == k]) for k in shots)]
        for method in methods
    ]
    body.append(["real examples", *(mean("real_diversity", [r for r in known if r["shots"] == k]) for k in shots)])
    return markdown_table(["method", *(f"K={k}" for k in shots)], body)


def published_table() -> str:
    """Lay out the table of the paper."""
    header = ["method", "representation", "generation"]
    header += [f"{setting} K={k}" for setting in SETTINGS for k in SHOTS]
    columns = list(zip(*((*lsl, *glsl) for _, _, _, lsl, glsl in PUBLISHED), strict=True))
    marked = list(zip(*(_marked(list(column), 1) for column in columns), strict=True))
    rows = [[*names, *cells] for (*names, _, _), cells in zip(PUBLISHED, marked, strict=True)]
    return markdown_table(header, [[str(cell) for cell in row] for row in rows])


def _entries(rows: Sequence[dict[str, Any]]) -> list[Entry]:
    return list(dict.fromkeys((row["method"], row["representation"]) for row in rows))


def _table(found: dict[Key, Interval], entries: Sequence[Entry], *, mark: bool, signed: bool = False) -> str:
    shots = sorted({k for _, _, k in found})
    columns = [(setting, k) for setting in SETTINGS for k in shots]
    cells = []
    for setting, k in columns:
        intervals = [found.get((entry, setting, k)) for entry in entries]
        texts = [_text(interval, signed) for interval in intervals]
        if mark:
            stars = _marks([None if interval is None else interval.mean for interval in intervals])
            texts = [f"{star}{text}{star}" for star, text in zip(stars, texts, strict=True)]
        cells.append(texts)
    # The representation is a column, as in the paper, where there is more than one.
    names = ("method", "representation")[: 1 + (len({representation for _, representation in entries}) > 1)]
    body = [[*entry[: len(names)], *(column[i] for column in cells)] for i, entry in enumerate(entries)]
    return markdown_table([*names, *(f"{setting} K={k}" for setting, k in columns)], body, names=len(names))


def _text(interval: Interval | None, signed: bool) -> str:
    if interval is None:
        return "–"
    return f"{'+' if signed and interval.mean >= 0 else ''}{interval}"


def _marked(values: list[float | None], digits: int) -> list[str]:
    stars = _marks(values)
    texts = ["–" if value is None else f"{value:.{digits}f}" for value in values]
    return [f"{star}{text}{star}" for star, text in zip(stars, texts, strict=True)]


def _marks(values: Sequence[float | None]) -> list[str]:
    """Give ``**`` for the best value, ``_`` for the second best, and nothing for the others."""
    ranked = sorted({round(value, 1) for value in values if value is not None}, reverse=True)
    if len(values) < len(SETTINGS):  # one method alone is no contest
        return [""] * len(values)
    marks = dict(zip(ranked, ("**", "_"), strict=False))
    return ["" if value is None else marks.get(round(value, 1), "") for value in values]


def run_tables(runs: Sequence[RunFolder], reference: str | None, measure: str) -> str:
    """Give the table of accuracies of one or more runs, and that of the differences to a reference method."""
    configs = [_config(run) for run in runs]
    rows = [row for run, config in zip(runs, configs, strict=True) for row in _sorted_rows(run, config)]
    if not rows:
        return f"{runs[0].path}: no cell is finished yet"
    text = f"{_title(configs, measure)}\n\n{benchmark_table(rows, measure)}"
    found = {row["method"] for row in rows}
    reference = reference or configs[0]["methods"][0]
    if len(found) > 1 and reference in found:
        text += f"\n\nDifference to {reference} in points, paired over trials\n\n"
        text += difference_table(rows, reference, measure)
    return text


def _config(run: RunFolder) -> dict[str, Any]:
    config = run.config()
    if config is None:
        raise InputError(f"{run.path} holds no benchmark run")
    return config


def _sorted_rows(run: RunFolder, config: dict[str, Any]) -> list[dict[str, Any]]:
    methods = list(config["methods"])
    return sorted(run.rows(), key=lambda row: methods.index(row["method"]))


def _title(configs: Sequence[dict[str, Any]], measure: str) -> str:
    def each(name: str) -> str:
        return " or ".join(dict.fromkeys(str(config[name]) for config in configs))

    return (
        f"Ours: top-{measure.removeprefix('top')} accuracy in percent, mean over {each('trials')} trials ± 95 % "
        f"interval, on {each('representation')}, normalization {each('normalize')}, classifier {each('classifier')} "
        "after generation; **best** and _second best_"
    )


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
