"""Ablations: runs that differ from a reference run in one respect.

The groups answer the paper's questions (which neighbourhood, which loss term, how much diversity) and one of ours: what
each departure of our recipes from the printed numbers contributes.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpaan.errors import InputError
from cpaan.evaluation.benchmark import Plan
from cpaan.evaluation.run_folder import Row
from cpaan.gan.recipe import PAPER

AS_IT_IS = "as it is"
Variations = dict[str, Mapping[str, Any]]  # numbers of the recipe to change, by the name in tables


def _as_printed(*numbers: str) -> dict[str, Any]:
    return {number: getattr(PAPER, number) for number in numbers}


GROUPS: dict[str, Variations] = {
    "neighborhood": {
        **{f"hard neighbourhood, k = {k}": {"neighborhood": "hard", "neighbors": k} for k in (1, 3, 5, 10, 20)},
        "no neighbourhood": {"neighborhood": "uniform"},
    },
    "losses": {
        "without the adversarial loss": {"adversarial_weight": 0},
        "without the cycle": {"cycle_weight": 0},
        "without the covariance": {"covariance_weight": 0},
    },
    "departures": {
        "anchored at the mean of the shots": {"center": "shots"},
        "examples not completed": {"residual_covariance": False},
        "no noise about centres": {"noise": 0.0},
        "every example to every class": _as_printed("pairing", "base_draw"),
        "temperature as printed": _as_printed("temperature"),
        "loss weights as printed": _as_printed("cycle_weight", "covariance_weight"),
        "covariances of all pairs, in full": _as_printed("covariance_pairs", "covariance_rank"),
        "scale as printed": _as_printed("within_distance"),
        "features not centred": _as_printed("centered"),
        "networks see features as they are": _as_printed("standardize"),
        "width and learning rate as printed": _as_printed("width", "learning_rate"),
    },
    "spread": {f"deviations times {factor:g}": {"spread": factor} for factor in (0.0, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0)},
}


def chosen_variations(groups: Sequence[str]) -> Variations:
    """Collect the variations of groups, after the reference run.

    >>> list(chosen_variations(["losses"]))[:2]
    ['as it is', 'without the adversarial loss']
    """
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        raise InputError(f"unknown ablation {', '.join(unknown) or 'none'}; choose from {', '.join(GROUPS)}")
    return {AS_IT_IS: {}} | {name: numbers for group in groups for name, numbers in GROUPS[group].items()}


def run_ablations(
    plan: Plan, variations: Variations, folder: Path, run: Callable[[Plan, Path], Sequence[Row]]
) -> Iterator[list[Row]]:
    """Call `run` for each variation of a plan, in its own subfolder, and yield its rows under its name."""
    for name, numbers in variations.items():
        varied = replace(plan, settings={**(plan.settings or {}), **numbers})
        yield [{**row, "method": name} for row in run(varied, folder / folder_name(name))]


def folder_name(name: str) -> str:
    """Make a name fit for a folder.

    >>> folder_name("hard neighbourhood, k = 3")
    'hard-neighbourhood-k-3'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
