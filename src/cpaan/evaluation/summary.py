"""From the rows of a run to the figures of a table."""

from collections.abc import Iterable, Sequence
from typing import Any

from cpaan.errors import InputError
from cpaan.evaluation.intervals import Interval, mean_interval

Entry = tuple[str, str]  # method and representation: a row of the table
Key = tuple[Entry, str, int]  # with the setting and the shots: a cell of the table


def summarize_rows(rows: Iterable[dict[str, Any]], measure: str = "top5") -> dict[Key, Interval]:
    """Average a measure over trials, for every method, representation, setting and number of shots.

    >>> same = {"method": "m", "representation": "r", "setting": "LSL", "shots": 1}
    >>> rows = [{**same, "trial": trial, "top5": 50.0 + trial} for trial in range(3)]
    >>> str(summarize_rows(rows)[("m", "r"), "LSL", 1])
    '51.0 ± 2.5'
    """
    return {key: mean_interval(list(trials.values())) for key, trials in _by_trial(rows, measure).items()}


def paired_differences(rows: Sequence[dict[str, Any]], reference: str, measure: str = "top5") -> dict[Key, Interval]:
    """Average the difference to a reference method on the same representation over the trials that both have.

    Shots are the same in a trial for all methods, so the interval of the differences is narrower than those of the
    two figures.

    >>> same = {"method": "m", "representation": "r", "setting": "LSL", "shots": 1}
    >>> ours = [{**same, "trial": trial, "top5": 50.0 + trial} for trial in range(3)]
    >>> theirs = [{**row, "method": "other", "top5": row["top5"] - 2} for row in ours]
    >>> str(paired_differences(ours + theirs, "other")[("m", "r"), "LSL", 1])
    '2.0 ± 0.0'
    """
    found = _by_trial(rows, measure)
    methods_found = {method for (method, _), _, _ in found}
    if reference not in methods_found:
        methods = ", ".join(sorted(methods_found))
        raise InputError(f"the reference method {reference!r} is not in the run, which has {methods}")
    differences = {}
    for ((method, representation), setting, shots), trials in found.items():
        base = found.get(((reference, representation), setting, shots), {})
        pairs = [trials[trial] - base[trial] for trial in trials if trial in base]
        if method != reference and pairs:
            differences[(method, representation), setting, shots] = mean_interval(pairs)
    return differences


def _by_trial(rows: Iterable[dict[str, Any]], measure: str) -> dict[Key, dict[int, float]]:
    found: dict[Key, dict[int, float]] = {}
    for row in rows:
        if row[measure] is not None:
            entry = (row["method"], row["representation"])
            found.setdefault((entry, row["setting"], row["shots"]), {})[row["trial"]] = row[measure]
    return found
