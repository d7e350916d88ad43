from dataclasses import asdict

import pytest
import torch

from cpaan.errors import InputError
from cpaan.gan.objective import find_variant
from cpaan.gan.recipe import PAPER, make_recipe
from cpaan.training.progress import History, learning_rate_at


def test_the_recipe_paper_has_the_papers_numbers() -> None:
    printed = {
        "episodes": 100_000,
        "learning_rate": 1e-4,
        "halve_every": 20_000,
        "novel_per_episode": 20,
        "shots_per_episode": 10,
        "batch_size": 1000,
        "adversarial_weight": 1.0,
        "cycle_weight": 5.0,
        "covariance_weight": 0.5,
        "ky_fan_rank": 10,
        "width": 512,
        "negative_slope": 0.1,
        "noise_dimension": 100,
        "noise_components": 50,
        "within_distance": 0.163,
        "temperature": 1.0,
        "neighborhood": "soft",
        "pairing": "all",
        "generator": "plain",
    }
    assert {name: asdict(PAPER)[name] for name in printed} == printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 0}, "episodes must be a whole number of at least 1"),
        ({"episodes": 1.5}, "episodes must be a whole number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
        ({"cycle_weight": -1}, "cycle_weight must be a number of at least 0"),
        ({"temperature": "hot"}, "temperature must be a positive number, or 'calibrated'"),
        ({"covariance_pairs": "some"}, "covariance_pairs must be a whole number of at least 1, or 'all'"),
        ({"neighborhood": "near"}, "neighborhood must be one of 'soft', 'hard', 'uniform'"),
        ({"perplexity": 1.0}, "perplexity must be above 1"),
        ({"batch_size": 50}, "batch_size"),
        ({"shots_per_episode": 0}, "shots_per_episode"),
        ({"epochs": 3}, "a recipe has no epochs; it has episodes"),
    ],
)
def test_wrong_numbers_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_recipe("quick", **changes)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError, match="paper, quick"):
        make_recipe("slow")
    with pytest.raises(InputError, match="c-gan, ccyc-gan, cdeli-gan, ccov-gan"):
        find_variant("gan")


def test_the_learning_rate_is_halved_stepwise() -> None:
    rates = [learning_rate_at(episode, 1e-4, 20_000) for episode in (0, 19_999, 20_000, 99_999)]
    assert rates == [1e-4, 1e-4, 5e-5, 1e-4 / 16]


def test_history_keeps_means_between_logging_steps() -> None:
    history = History()
    for value in (1.0, 2.0, 6.0):
        history.add({"a": torch.tensor(value), "b": torch.tensor(-value)})
    assert history.log(3) == {"a": 3.0, "b": -3.0}
    history.add({"a": torch.tensor(5.0), "b": torch.tensor(0.0)})
    history.log(4)
    assert history.episodes == [3, 4]
    assert history.losses == {"a": [3.0, 5.0], "b": [-3.0, 0.0]}
