"""The tables of a benchmark: the paper's layout, best and second best marked, and differences to a reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpaan.evaluation.intervals import Interval
from cpaan.evaluation.published import PUBLISHED, SHOTS
from cpaan.evaluation.summary import Entry, Key, paired_differences, summarize_rows
from cpaan.reporting.table import markdown_table

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
