"""The covariance that generated examples lack, and how it is restored."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan import CPAAN
from cpaan.centers import Calibrated
from cpaan.deviations import Translated, translator
from cpaan.deviations.base import synthesize
from cpaan.deviations.translator import Translator, lacking
from cpaan.methods import set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


RNG = np.random.default_rng(0)
N_CLASSES, SIZE, DIMENSION = 10, 40, 12
MIXING = RNG.normal(size=(DIMENSION, DIMENSION)) / 3
BASE = 2 * RNG.normal(size=(N_CLASSES, 1, DIMENSION)) + RNG.normal(size=(N_CLASSES, SIZE, DIMENSION)) @ MIXING
LABELS = np.repeat(np.arange(N_CLASSES), SIZE)


def fitted(**numbers: Any) -> CPAAN:
    settings: dict[str, Any] = {"recipe": "quick", "episodes": 20, "width": 32, "novel_per_episode": 4, "device": "cpu"}
    return cpaan(random_state=0, **{**settings, **numbers}).fit(BASE.reshape(-1, DIMENSION), LABELS)


def random_covariance(seed: int) -> Tensor:
    root = torch.randn((DIMENSION, DIMENSION), generator=torch.Generator().manual_seed(seed)).double()
    return root @ root.T


@pytest.mark.parametrize("rank", [1, 4, DIMENSION, 50])
def test_what_lacks_is_the_nearest_covariance_to_the_difference(rank: int) -> None:
    wanted, made = random_covariance(0), random_covariance(1)
    found = lacking(wanted, made, rank)
    values, vectors = np.linalg.eigh((wanted - made).numpy())
    positive = sum(value * np.outer(v, v) for value, v in zip(values, vectors.T, strict=True) if value > 0)
    added = (found.factor.T @ found.factor).double().numpy() + found.tail * np.eye(DIMENSION)
    # Nothing of the variance is lost, whatever the rank; with all directions, it is the positive part itself.
    assert np.trace(added) == pytest.approx(np.trace(positive), rel=1e-5)
    assert np.linalg.matrix_rank(found.factor.numpy()) <= rank
    if rank >= DIMENSION:
        np.testing.assert_allclose(added, positive, atol=1e-4)
        assert found.tail == 0


def test_examples_that_vary_more_than_base_classes_lack_nothing() -> None:
    found = lacking(random_covariance(0), random_covariance(0) + 2 * torch.eye(DIMENSION), 4)
    assert float(found.factor.abs().max()) == found.tail == 0


def test_the_covariance_within_classes_is_found_without_its_ridge() -> None:
    augmenter = fitted()
    found = augmenter.center_.within_covariance()
    assert found is not None
    deviations = BASE - BASE.mean(1, keepdims=True)
    expected = np.einsum("csi,csj->ij", deviations, deviations) / (N_CLASSES * (SIZE - 1))
    np.testing.assert_allclose(found / augmenter.units_.factor**2, expected, rtol=1e-4, atol=1e-4)


def test_completed_examples_vary_as_base_classes_do() -> None:
    shots = RNG.normal(size=(5 * 20, DIMENSION))
    expected = (BASE - BASE.mean(1, keepdims=True)).var() * SIZE / (SIZE - 1)

    def variance(augmenter: CPAAN) -> float:
        made = augmenter.augment(shots, np.repeat(np.arange(100, 105), 20), per_class=400)[0].reshape(5, 400, -1)
        return float((made - made.mean(1, keepdims=True)).var())

    # With twenty shots there is no noise for an unknown centre. The networks are hardly trained, and vary too little.
    without, completed = variance(fitted(residual_covariance=False)), variance(fitted())
    assert without < 0.7 * expected
    assert completed == pytest.approx(expected, rel=0.1)


def test_the_noise_of_an_unknown_center_can_be_left_out() -> None:
    augmenter = fitted()
    little_known = copy.copy(augmenter.center_)
    assert isinstance(little_known, Calibrated)
    little_known.constants_ = replace(little_known.constants_, ridge=30.0)
    shot, number = torch.zeros((1, DIMENSION)).double(), torch.tensor([2000])

    def variance(noise: float) -> float:
        little_known.noise = noise
        generator = torch.Generator().manual_seed(0)
        parts = (little_known, augmenter.deviations_)
        (made,) = synthesize(*parts, shot, torch.tensor([0]), number, generator, joint_mean=True)
        return float((made - made.mean(0)).square().mean())

    none, once, twice = variance(0.0), variance(1.0), variance(2.0)
    assert twice - none == pytest.approx(4 * (once - none), rel=0.05)
    assert once > 1.5 * none


def test_a_base_class_does_not_lend_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted().model_
    seen: list[tuple[Tensor, Tensor]] = []
    original = Translator.make_from

    def watched(self: Translator, similarity: Tensor, prototypes: Tensor, *rest: Any) -> Tensor:
        seen.append((similarity, prototypes))
        return original(self, similarity, prototypes, *rest)

    monkeypatch.setattr(Translator, "make_from", watched)
    model.residual_covariance(torch.eye(DIMENSION).double(), torch.Generator().manual_seed(0))
    assert len(seen) == N_CLASSES
    for label, (similarity, prototype) in enumerate(seen):
        torch.testing.assert_close(prototype[0], model.base.prototypes[label])
        assert similarity[0, label] == 0
        assert float(similarity.sum()) == pytest.approx(1)


def test_of_many_base_classes_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model, original = fitted().model_, Translator.make_from
    asked: list[int] = []

    def counted(self: Translator, similarity: Tensor, prototypes: Tensor, number: Tensor, generator: Any) -> Tensor:
        asked.append(int(number.sum()))
        return original(self, similarity, prototypes, number, generator)

    monkeypatch.setattr(Translator, "make_from", counted)
    monkeypatch.setattr(translator, "MOST_CLASSES", 4)
    model.residual_covariance(torch.eye(DIMENSION).double(), torch.Generator().manual_seed(0))
    assert asked == [16 * DIMENSION // 4 + 1] * 4


@pytest.mark.parametrize(("center", "restored"), [("shots", False), ("posterior", True), ("calibrated", True)])
def test_covariance_is_restored_about_centers_that_have_estimated_it(center: str, restored: bool) -> None:
    deviations = fitted(center=center).deviations_
    assert isinstance(deviations, Translated)
    assert (deviations.residual_ is not None) == restored
