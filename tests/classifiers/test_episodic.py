"""Episodic training: which examples count, and when to stop."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from cpaan.classifiers.episodic import EpisodicTraining, draw_counting, plain_support
from cpaan.classifiers.meta import MetaRecipe
from cpaan.classifiers.prototypical import PrototypicalScores
from cpaan.training.bank import ClassBank
from cpaan.training.progress import Progress

RECIPE = MetaRecipe(episodes=60, ways=20, shots=(1, 3), queries=2, learning_rate=1e-2, halve_every=100)


def bank(signal: int, noise: int, n_classes: int = 20) -> ClassBank:
    """Classes that differ in the first coordinates and vary in the others."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.cat(
        [3 * torch.randn(n_classes, 1, signal, generator=generator), torch.zeros(n_classes, 1, noise)], 2
    )
    spread = torch.cat([torch.full((signal,), 0.3), torch.full((noise,), 3.0)])
    examples = centers + spread * torch.randn(n_classes, 15, signal + noise, generator=generator)
    labels = torch.arange(n_classes).repeat_interleave(15)
    return ClassBank.from_examples(examples.flatten(0, 1), labels, n_classes)


def training(network: Any, held_out: float, recipe: MetaRecipe = RECIPE) -> EpisodicTraining:
    return EpisodicTraining(network, network, plain_support, recipe, held_out)


def build(dimension: int) -> PrototypicalScores:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PrototypicalScores(dimension, 32, directions=False)


def test_each_class_of_a_task_has_a_number_of_shots_of_its_own() -> None:
    counting = draw_counting(300, (1, 2, 5), torch.Generator().manual_seed(0))
    numbers = counting.sum(1)
    assert counting.shape == (300, 5)
    assert counting[:, 0].all()
    assert (counting.int().diff(dim=1) <= 0).all()  # the first ones count
    assert all(70 < int((numbers == number).sum()) < 130 for number in (1, 2, 5))


def test_training_goes_on_where_it_helps_classes_that_are_held_out() -> None:
    network = build(12)
    history = training(network, 0.2).train(bank(4, 8), torch.Generator().manual_seed(0))
    assert history.episodes[-1] > 30
    assert history.losses["loss"][-1] < 0.7 * history.losses["loss"][0]


def test_training_stops_at_once_where_it_only_learns_base_classes_by_heart() -> None:
    """Classes without anything in common: what tells some of them apart is of no use to the others."""
    examples = torch.eye(20).repeat_interleave(15, 0)
    examples = 4 * examples + 0.5 * torch.randn(examples.shape, generator=torch.Generator().manual_seed(0))
    apart = ClassBank.from_examples(examples, torch.arange(20).repeat_interleave(15), 20)
    recipe = MetaRecipe(episodes=100, ways=20, shots=(1, 3), queries=2, learning_rate=3e-2, halve_every=100)
    network, start = build(20), build(20)
    history = training(network, 0.2, recipe).train(apart, torch.Generator().manual_seed(0))
    assert history.episodes[-1] <= 25
    before = dict(start.named_parameters())
    whole = build(20)
    training(whole, 0.0, recipe).train(apart, torch.Generator().manual_seed(0))

    def moved(other: nn.Module) -> float:
        return sum(float((p - before[name]).detach().norm()) for name, p in other.named_parameters())

    assert moved(network) < 0.5 * moved(whole)


def test_few_classes_are_all_trained_on_for_all_episodes() -> None:
    history = training(build(5), 0.2).train(bank(2, 3, n_classes=9), torch.Generator().manual_seed(0))
    assert history.episodes[-1] == 60


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_progress_runs_forward_and_the_same_seed_trains_the_same(held_out: float) -> None:
    told: list[Progress] = []
    networks = [build(5), build(5)]
    for network in networks:
        training(network, held_out, replace(RECIPE, episodes=20)).train(
            bank(2, 3), torch.Generator().manual_seed(0), told.append
        )
    first = told[: len(told) // 2]
    episodes = [progress.episode for progress in first]
    assert episodes == sorted(set(episodes))
    assert first[-1].episode == first[-1].episodes
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.equal(a, b)
