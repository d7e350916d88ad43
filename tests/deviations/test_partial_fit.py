from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpaan import CPAAN, InputError
from cpaan.centers import Calibrated
from cpaan.deviations.summary import BaseSummary, Moments, pooled
from cpaan.gan.loop import TrainingEvent
from cpaan.methods import set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


TINY: dict[str, Any] = {
    "recipe": "quick",
    "episodes": 6,
    "width": 16,
    "noise_dimension": 4,
    "novel_per_episode": 3,
    "rounds": 1,
    "random_state": 0,
    "device": "cpu",
}
rng = np.random.default_rng(0)
X = (3 * rng.normal(size=(12, 1, 6)) + rng.normal(size=(12, 20, 6))).reshape(-1, 6)
y = np.repeat([f"c{i:02}" for i in range(12)], 20)
FIRST, SECOND = slice(0, 160), slice(160, 240)  # eight classes, and four


def covariances(base: BaseSummary) -> torch.Tensor:
    factors = base.factors.float()
    return factors.mT @ factors + base.tails.view(-1, 1, 1) * torch.eye(factors.shape[-1])


def test_without_a_fit_before_it_is_fit() -> None:
    first, second = cpaan(**TINY).partial_fit(X, y), cpaan(**TINY).fit(X, y)
    assert np.array_equal(first.augment(X[:2] + 1, ["a", "b"])[0], second.augment(X[:2] + 1, ["a", "b"])[0])


@pytest.mark.parametrize("reservoir", [100, 7, 0])
def test_further_classes_join_and_the_first_ones_are_not_needed_again(reservoir: int) -> None:
    augmenter = cpaan(reservoir=reservoir, **TINY).fit(X[FIRST], y[FIRST])
    before, scaling = augmenter.model_, augmenter.units_
    assert augmenter.partial_fit(X[SECOND], y[SECOND], episodes=4) is augmenter
    after = augmenter.model_
    assert augmenter.classes_ == tuple(f"c{i:02}" for i in range(12))
    assert torch.equal(augmenter.units_.origin, scaling.origin)
    assert augmenter.units_.factor == scaling.factor
    assert torch.equal(after.base.prototypes[:8], before.base.prototypes)
    means = np.stack([X[y == name].mean(0) for name in augmenter.classes_])
    expected = scaling.apply(torch.tensor(means)).float()
    torch.testing.assert_close(after.base.prototypes, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(covariances(after.base)[:8], covariances(before.base))
    assert after.base.counts.tolist() == [20] * 12
    kept = after.base.reservoir
    assert (kept is None) == (reservoir == 0)
    if kept is not None:
        assert kept.counts.tolist() == [min(reservoir, 20)] * 12
    assert isinstance(augmenter.center_, Calibrated)
    assert len(augmenter.center_.base_means_) == 12
    assert augmenter.history_["episode"] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(augmenter.history_["covariance"]) == 10
    made, _ = augmenter.augment(X[:1] + 1, ["new"])
    assert made.shape == (19, 6)
    assert np.isfinite(made).all()


def test_networks_go_on_from_where_they_were_at_the_last_learning_rate() -> None:
    rates: list[float] = []

    def look(event: TrainingEvent) -> None:
        rates.append(float(event.run.step.learning_rate))

    numbers = {**TINY, "halve_every": 2, "learning_rate": 1e-3}
    augmenter = cpaan(callbacks=[look], **numbers).fit(X[FIRST], y[FIRST])
    start = {name: value.clone() for name, value in augmenter.model_.networks.state_dict().items()}
    augmenter.partial_fit(X[SECOND], y[SECOND], episodes=1)
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 2.5e-4])
    moved = [float((value - start[name]).abs().max()) for name, value in augmenter.model_.networks.state_dict().items()]
    assert 0 < max(moved) <= 2.6e-4  # Adam's first step is its rate
    assert augmenter.model_.recipe.episodes == 6  # the recipe is that of the first fit, again and again
    assert not any(parameter.requires_grad for parameter in augmenter.generator_.parameters())


def test_an_interruption_leaves_the_model_as_it_was() -> None:
    augmenter = cpaan(**TINY).fit(X[FIRST], y[FIRST])
    before = augmenter.augment(X[:1] + 1, ["new"])[0]

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    augmenter.tell = interrupt
    with pytest.raises(KeyboardInterrupt):
        augmenter.partial_fit(X[SECOND], y[SECOND])
    assert np.array_equal(augmenter.augment(X[:1] + 1, ["new"])[0], before)
    assert len(augmenter.classes_) == 8


def test_further_examples_of_a_known_class_count_with_those_before() -> None:
    even = np.arange(len(y)) % 2 == 0
    at_once = cpaan(covariance_rank="full", **TINY).fit(X, y)
    whole, unit = at_once.model_.base, at_once.units_
    augmenter = cpaan(covariance_rank="full", **TINY).fit(X[even], y[even])
    found = augmenter.partial_fit(X[~even], y[~even], episodes=1).model_.base
    assert augmenter.classes_ == at_once.classes_
    assert found.counts.tolist() == [20] * 12
    assert augmenter.average_size_ == 20
    ratio = unit.factor / augmenter.units_.factor
    expected = unit.undo(whole.prototypes.double())
    torch.testing.assert_close(augmenter.units_.undo(found.prototypes.double()), expected, rtol=1e-5, atol=1e-5)
    # Half precision has three digits.
    torch.testing.assert_close(covariances(found) * ratio**2, covariances(whole), rtol=1e-2, atol=5e-3)
    assert found.reservoir is not None
    assert found.reservoir.counts.tolist() == [20] * 12


def test_of_a_class_of_which_a_part_was_kept_as_large_a_part_is_taken() -> None:
    augmenter = cpaan(reservoir=4, **TINY).fit(X, y)
    augmenter.reservoir = 100
    augmenter.partial_fit(X[:10], y[:10], episodes=1)
    assert augmenter.model_.base.reservoir is not None
    # Four of twenty were kept, and so two of ten are taken.
    assert augmenter.model_.base.reservoir.counts.tolist() == [6] + [4] * 11


def test_pooled_moments_of_limited_rank_keep_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, 5, generator=generator) + n for n in (8, 3)]
    both = torch.cat(parts)
    moments = []
    for part in parts:
        deviations = (part - part.mean(0)) / len(part) ** 0.5
        _, values, axes = torch.linalg.svd(deviations, full_matrices=False)
        factor = values[:2].unsqueeze(1) * axes[:2]
        tail = (deviations.square().sum() - factor.square().sum()) / 5
        moments.append(Moments(len(part), part.mean(0), factor, tail))
    found = pooled(*moments)
    assert found.count == 11
    assert found.factor.shape == (2, 5)
    torch.testing.assert_close(found.mean, both.mean(0))
    total = found.factor.square().sum() + 5 * found.tail
    torch.testing.assert_close(total, both.var(0, correction=0).sum())


def test_a_saved_model_can_be_trained_further_and_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    augmenter = cpaan(**TINY).fit(X[FIRST], y[FIRST])
    augmenter.save(tmp_path / "model")
    loaded = CPAAN.load(tmp_path / "model", device="cpu")
    made = [it.partial_fit(X[SECOND], y[SECOND], episodes=3).augment(X[:1] + 1, ["n"])[0] for it in (augmenter, loaded)]
    assert np.array_equal(*made)


def test_only_new_classes_are_held_out() -> None:
    held: list[set[int]] = []

    def look(event: TrainingEvent) -> None:
        rest = event.run._score.rest.tolist()  # type: ignore[union-attr]
        held.append(set(range(12)) - set(rest))

    augmenter = cpaan(**TINY).fit(X[FIRST], y[FIRST])
    augmenter.set_params(callbacks=[look], held_out=0.5)
    augmenter.partial_fit(X[SECOND], y[SECOND], episodes=1)
    assert len(held[0]) == 2
    assert held[0] <= {8, 9, 10, 11}


def test_what_does_not_fit_is_refused() -> None:
    augmenter = cpaan(**TINY).fit(X[FIRST], y[FIRST])
    with pytest.raises(InputError, match="X has 5 features, but CPAAN is expecting 6 features as input"):
        augmenter.partial_fit(X[SECOND, :5], y[SECOND])
    with pytest.raises(InputError, match="episodes must be a whole number of at least 1, not 0"):
        augmenter.partial_fit(X[SECOND], y[SECOND], episodes=0)
    with pytest.raises(InputError, match=r"held_out=0\.9 would hold out 7 of 8 base classes"):
        cpaan(held_out=0.9, **TINY).fit(X[FIRST], y[FIRST])
    with pytest.raises(InputError, match="held_out must be a share"):
        cpaan(held_out=2, **TINY).fit(X[FIRST], y[FIRST])
