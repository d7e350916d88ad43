"""Ablations: runs that differ from one in a single respect, which shows what that respect is worth.

The groups are the paper's own questions (which neighbourhood, which loss term, how much diversity) and one of ours:
what each departure of our recipes from the printed numbers is worth.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpaan.errors import InputError
from cpaan.evaluation.benchmark import Plan
from cpaan.evaluation.cell import Row
from cpaan.gan.recipe import PAPER

AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Variation:
    """One respect in which a run differs.

    Attributes
    ----------
    name : what the table calls it
    numbers : of the recipe, that are changed
    """

    name: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def _as_printed(name: str, *numbers: str) -> Variation:
    return Variation(name, {number: getattr(PAPER, number) for number in numbers})


GROUPS: dict[str, tuple[Variation, ...]] = {
    "neighborhood": (
        *(
            Variation(f"hard neighbourhood, k = {k}", {"neighborhood": "hard", "neighbors": k})
            for k in (1, 3, 5, 10, 20)
        ),
        Variation("no neighbourhood", {"neighborhood": "uniform"}),
    ),
    "losses": (
        Variation("without the adversarial loss", {"adversarial_weight": 0}),
        Variation("without the cycle", {"cycle_weight": 0}),
        Variation("without the covariance", {"covariance_weight": 0}),
    ),
    "departures": (
        Variation("anchored at the mean of the shots", {"center": "shots"}),
        Variation("examples not completed", {"residual_covariance": False}),
        Variation("no noise about centres", {"noise": 0.0}),
        _as_printed("every example to every class", "pairing", "base_draw"),
        _as_printed("temperature as printed", "temperature"),
        _as_printed("loss weights as printed", "cycle_weight", "covariance_weight"),
        _as_printed("covariances of all pairs, in full", "covariance_pairs", "covariance_rank"),
        _as_printed("scale as printed", "within_distance"),
        _as_printed("features not centred", "centered"),
        _as_printed("networks see features as they are", "standardize"),
        _as_printed("width and learning rate as printed", "width", "learning_rate"),
    ),
    "spread": tuple(
        Variation(f"deviations times {factor:g}", {"spread": factor})
        for factor in (0.0, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0)
    ),
}


def chosen_variations(groups: Sequence[str]) -> list[Variation]:
    """Give the variations of groups, after the run that all are compared to.

    >>> [variation.name for variation in chosen_variations(["losses"])][:2]
    ['as it is', 'without the adversarial loss']
    """
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        raise InputError(f"unknown ablation {', '.join(unknown) or 'none'}; choose from {', '.join(GROUPS)}")
    return [Variation(AS_IT_IS), *(variation for group in dict.fromkeys(groups) for variation in GROUPS[group])]


def run_ablations(
    plan: Plan, variations: Sequence[Variation], folder: Path, run: Callable[[Plan, Path], Sequence[Row]]
) -> Iterator[list[Row]]:
    """Run variations one after another, each in a folder of its own, and give the rows of each under its name.

    Parameters
    ----------
    plan : of the run that is varied, with a method that has the numbers
    variations : see `chosen_variations`
    folder : of all runs
    run : does one run in a folder and gives its rows
    """
    for variation in variations:
        varied = replace(plan, settings={**(plan.settings or {}), **variation.numbers})
        rows = run(varied, folder / folder_name(variation.name))
        yield [{**row, "method": variation.name} for row in rows]


def folder_name(name: str) -> str:
    """Make a name fit for a folder.

    >>> folder_name("hard neighbourhood, k = 3")
    'hard-neighbourhood-k-3'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
