"""Neighbourhood batch sampling against none: what runs gain that differ in it alone (the paper's Figure 5a)."""

from collections.abc import Sequence
from typing import Any

from cpaan.evaluation.intervals import mean_interval
from cpaan.reporting.results import SETTINGS
from cpaan.reporting.runs import RunRecord
from cpaan.training.variant import VARIANTS

NEIGHBORHOOD, NEIGHBORS = "neighborhood", "neighbors"
WITHOUT = "uniform"
_TITLES = {"soft": "NBS-S, soft", "hard": "NBS-H, hard"}
Gain = dict[str, Any]


def neighborhood_gains(runs: Sequence[RunRecord], measure: str) -> list[Gain]:
    """Give the gain of every neighbourhood over the uniform one, paired over trials.

    Parameters
    ----------
    runs : those that differ in nothing but ``neighborhood`` and ``neighbors`` from a uniform one are compared to it
    measure : ``"top5"`` or ``"top1"``

    Returns
    -------
    list of dict
        With representation, method, strategy, setting, shots, measure, and mean and half_width of the gain; empty where
        there is nothing to compare.
    """
    gains = []
    for reference in (run for run in runs if _kind(run) == WITHOUT):
        for run in runs:
            if run is not reference and _without_kind(run) == _without_kind(reference):
                gains += _between(run, reference, measure)
    return gains


def strategy(run: RunRecord) -> str:
    """Name the neighbourhood of a run, as the paper does."""
    kind, neighbors = _kind(run), _settings(run).get(NEIGHBORS)
    return _TITLES.get(kind, kind) + (f", k = {neighbors}" if kind == "hard" and neighbors is not None else "")


def _between(run: RunRecord, reference: RunRecord, measure: str) -> list[Gain]:
    there = _by_trial(reference, measure)
    pairs: dict[tuple[str, str, int], list[float]] = {}
    for (method, setting, shots, trial), value in _by_trial(run, measure).items():
        if (method, setting, shots, trial) in there:
            gain = value - there[method, setting, shots, trial]
            pairs.setdefault((method, setting, shots), []).append(gain)
    return [
        {
            "representation": run.config["representation"],
            "method": method,
            "strategy": strategy(run),
            "setting": setting,
            "shots": shots,
            "measure": measure,
            "mean": mean_interval(values).mean,
            "half_width": mean_interval(values).half_width if len(values) > 1 else None,
        }
        for (method, setting, shots), values in sorted(pairs.items(), key=lambda item: _order(item[0]))
        if method in VARIANTS  # others have no neighbourhood
    ]


def _order(key: tuple[str, str, int]) -> tuple[str, int, int]:
    return key[0], SETTINGS.index(key[1]), key[2]


def _by_trial(run: RunRecord, measure: str) -> dict[tuple[str, str, int, int], float]:
    return {
        (row["method"], row["setting"], row["shots"], row["trial"]): row[measure]
        for row in run.rows
        if row[measure] is not None
    }


def _settings(run: RunRecord) -> dict[str, Any]:
    return dict(run.config.get("settings") or {})


def _kind(run: RunRecord) -> str:
    return str(_settings(run).get(NEIGHBORHOOD, "soft"))


def _without_kind(run: RunRecord) -> dict[str, Any]:
    # Runs may have different methods, shots and trials: what both have is compared.
    kept = {key: value for key, value in run.config.items() if key not in ("methods", "shots", "trials", "settings")}
    others = {key: value for key, value in _settings(run).items() if key not in (NEIGHBORHOOD, NEIGHBORS)}
    return {**kept, "settings": others}
