"""What runs found, in a sentence or two."""

from cpaan.evaluation.intervals import Interval
from cpaan.reporting.results import SETTINGS, Results
from cpaan.reporting.runs import RunRecord

_SPACES = {"LSL": "among novel classes", "GLSL": "among all classes"}


def headline(results: Results, measure: str = "top5") -> list[str]:
    """Give a sentence or two: the best method with the fewest shots and what it gains, or the best of several runs.

    Parameters
    ----------
    results : of one or more runs
    measure : ``"top5"`` or ``"top1"``
    """
    if len(results.runs) == 1:
        return [_of_run(results, results.runs[0], measure)]
    return [_of_several(results, measure)]


def _of_several(results: Results, measure: str) -> str:
    """Name the best of all runs, for readers who will look into the table for the rest."""
    accuracy, shots = results.accuracy(measure), results.shots[0]
    parts = []
    for setting in SETTINGS:
        found = {entry: accuracy[key] for entry in results.entries if (key := (entry, setting, shots)) in accuracy}
        if found:
            method, label = max(found, key=lambda entry: found[entry].mean)
            parts.append(f"{_SPACES[setting]} it is {method} on {label} with {found[method, label]} %")
    waiting = sum(not run.finished for run in results.runs)
    unfinished = f" {waiting} of the runs not finished yet." if waiting else ""
    return (
        f"{len(results.runs)} runs are compared. The highest top-{measure.removeprefix('top')} accuracy with {shots} "
        f"example{'s' if shots > 1 else ''} of each novel class: {'; '.join(parts)}.{unfinished}"
    )


def _of_run(results: Results, run: RunRecord, measure: str) -> str:
    shots = min(row["shots"] for row in run.rows)
    accuracy, differences = results.accuracy(measure), results.differences(measure)
    parts = []
    for setting in SETTINGS:
        keys = {method: ((method, run.label), setting, shots) for method in run.methods}
        found = {method: accuracy[key] for method, key in keys.items() if key in accuracy}
        if not found:
            continue
        best = max(found, key=lambda method: found[method].mean)
        gain = differences.get(((best, run.label), setting, shots))
        parts.append(f"{_SPACES[setting]} {best} reaches {found[best]} %{_gain(gain, results.reference)}")
    unfinished = "" if run.finished else " The run is not finished: some cells are missing."
    known = f"With {shots} example{'s' if shots > 1 else ''} of each novel class on {run.label}"
    return f"{known}, {'; '.join(parts)} (top-{measure.removeprefix('top')}, {_trials(run)}).{unfinished}"


def _gain(gain: Interval | None, reference: str) -> str:
    if gain is None:
        return ""
    if not abs(gain.mean) > gain.half_width:  # also for a single trial, whose interval is not known
        return f", not told apart from {reference} ({gain.mean:+.1f} points)"
    return f", {abs(gain.mean):.1f} points {'above' if gain.mean > 0 else 'below'} {reference}"


def _trials(run: RunRecord) -> str:
    trials = run.config["trials"]
    return f"mean of {trials} trials with 95 % intervals" if trials > 1 else "one trial"
