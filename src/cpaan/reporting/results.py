"""The figures of several runs, ready to be laid out: accuracies, differences, ranks and diversity."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cpaan.errors import InputError
from cpaan.evaluation.intervals import Interval
from cpaan.evaluation.summary import Entry, Key, paired_differences, summarize_rows
from cpaan.reporting.runs import RunRecord

SETTINGS = ("LSL", "GLSL")
MEASURES = ("top5", "top1")


@dataclass(frozen=True)
class Diversity:
    """How much the examples that a method made differ, beside real ones, in the unit of the features."""

    made: float
    real: float


@dataclass(frozen=True)
class Results:
    """Figures of runs, by method and run.

    Attributes
    ----------
    runs : read from their folders
    reference : method that differences are taken to, within each run
    """

    runs: Sequence[RunRecord]
    reference: str

    @classmethod
    def of(cls, runs: Sequence[RunRecord], reference: str | None = None) -> "Results":
        """Take the first method of the first run as reference, or the one that is asked for."""
        known = list(dict.fromkeys(method for run in runs for method in run.methods))
        if reference is not None and reference not in known:
            raise InputError(f"the reference {reference!r} is not one of the methods {', '.join(known)}")
        return cls(runs, reference or known[0])

    @cached_property
    def entries(self) -> list[Entry]:
        """Methods with the label of their run: the rows of the table."""
        return [(method, run.label) for run in self.runs for method in run.methods]

    @cached_property
    def shots(self) -> list[int]:
        """Numbers of shots, from the fewest."""
        return sorted({row["shots"] for run in self.runs for row in run.rows})

    @cached_property
    def columns(self) -> list[tuple[str, int]]:
        """Settings with numbers of shots: the columns of the table."""
        return [(setting, k) for setting in SETTINGS for k in self.shots]

    def accuracy(self, measure: str) -> dict[Key, Interval]:
        """Give mean accuracies with intervals."""
        return summarize_rows(self._rows, measure)

    def differences(self, measure: str) -> dict[Key, Interval]:
        """Give differences to the reference, paired over trials."""
        return paired_differences(self._rows, self.reference, measure)

    def diversity(self) -> dict[tuple[Entry, int], Diversity]:
        """Give the mean diversity over trials of every method that makes examples."""
        found: dict[tuple[Entry, int], list[tuple[float, float]]] = {}
        for row in self._rows:
            if row["setting"] == SETTINGS[0] and row.get("diversity") is not None:
                key = ((row["method"], row["representation"]), row["shots"])
                found.setdefault(key, []).append((row["diversity"], row["real_diversity"]))
        means = {key: np.mean(values, axis=0) for key, values in found.items()}
        return {key: Diversity(*map(float, mean)) for key, mean in means.items() if np.isfinite(mean).all()}

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row for run in self.runs for row in run.rows]


def ranks(values: Sequence[float | None]) -> list[int]:
    """Give 1 to the best of several values as they are shown, 2 to the second best and 0 to the others.

    >>> ranks([50.04, None, 61.2, 50.01, 3.0])
    [2, 0, 1, 2, 0]
    """
    shown = [None if value is None else round(value, 1) for value in values]
    ranked = sorted({value for value in shown if value is not None}, reverse=True)
    if len(ranked) < 2:  # noqa: PLR2004  # one alone is no contest
        return [0] * len(shown)
    places = {ranked[0]: 1, ranked[1]: 2}
    return [0 if value is None else places.get(value, 0) for value in shown]
