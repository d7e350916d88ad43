from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cpaan.errors import InputError
from cpaan.evaluation.ablations import AS_IT_IS, GROUPS, chosen_variations, folder_name, run_ablations
from cpaan.evaluation.benchmark import Plan
from cpaan.gan.recipe import PAPER, QUICK, Recipe
from cpaan.methods import Settings, make_augmenter

# What a run is given to spend is no departure, and the draws of an episode are few because it is short.
SPENT = {"episodes", "halve_every", "novel_per_episode", "shots_per_episode", "batch_size", "perplexity"}


def test_every_departure_from_the_paper_is_taken_back_in_some_run() -> None:
    differing = {field.name for field in fields(Recipe) if getattr(PAPER, field.name) != getattr(QUICK, field.name)}
    departures = GROUPS["departures"].values()
    taken_back = {name for numbers in departures for name in numbers}
    assert differing - SPENT - {"name"} == taken_back - {"center", "residual_covariance", "noise"}
    numbers = {name: value for numbers in departures for name, value in numbers.items()}
    assert all(value == getattr(PAPER, name) for name, value in numbers.items() if hasattr(PAPER, name))


def test_every_variation_differs_and_has_a_folder_of_its_own() -> None:
    variations = chosen_variations([*GROUPS])
    assert len(variations) == 1 + sum(map(len, GROUPS.values()))
    assert next(iter(variations)) == AS_IT_IS
    made: list[Any] = [make_augmenter("ccov-gan", Settings(numbers=dict(each))) for each in variations.values()]
    own, *others = (repr(augmenter.get_params()) for augmenter in made)
    assert own not in others
    assert len(set(map(folder_name, variations))) == len(variations)


def test_runs_differ_in_what_is_varied_alone(tmp_path: Path) -> None:
    plans: dict[Path, Plan] = {}

    def run(plan: Plan, folder: Path) -> Sequence[dict[str, Any]]:
        plans[folder] = plan
        return [{"method": "ccov-gan", "top1": 50.0}]

    plan = Plan(methods=("ccov-gan",), settings={"recipe": "quick", "episodes": 7})
    rows = [row for found in run_ablations(plan, chosen_variations(["losses"]), tmp_path, run) for row in found]
    assert [row["method"] for row in rows] == [AS_IT_IS, *GROUPS["losses"]]
    assert plans[tmp_path / "as-it-is"] == plan
    without = plans[tmp_path / "without-the-cycle"]
    assert dict(without.settings or {}) == {"recipe": "quick", "episodes": 7, "cycle_weight": 0}
    assert without.methods == plan.methods


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(InputError, match="unknown ablation colours; choose from neighborhood, losses"):
        chosen_variations(["losses", "colours"])
    with pytest.raises(InputError, match="none"):
        chosen_variations([])
