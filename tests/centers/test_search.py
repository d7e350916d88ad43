"""The choice of constants on held-out base classes, and what it promises."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.centers.calibrated import (
    LENGTHS,
    RIDGES,
    Calibrated,
    Constants,
    choose_constants,
    held_out_gains,
    posterior_means,
)
from cpaan.centers.cross_validation import class_sample, corrected_interval, usable_shots
from cpaan.math.linear_gaussian import class_posterior, diagonalize
from cpaan.training.bank import ClassBank

DIMENSION = 24


def bank_of(n_classes: int = 24, per_class: int = 40, separation: float = 1.0, seed: int = 0) -> ClassBank:
    rng = np.random.default_rng(seed)
    # Classes differ in a few directions, and examples in all: what base classes can teach.
    centers = separation * rng.normal(size=(n_classes, 1, DIMENSION)) * (np.arange(DIMENSION) < 8)
    X = (centers + 0.7 * rng.normal(size=(n_classes, per_class, DIMENSION))).reshape(-1, DIMENSION)
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    return ClassBank.from_examples(torch.tensor(X, dtype=torch.float32), labels, n_classes)


def sample_of(bank: ClassBank) -> tuple[Tensor, ...]:
    return class_sample(bank, torch.Generator().manual_seed(0))


def test_the_same_seed_gives_the_same_bits() -> None:
    bank = bank_of()
    torch.manual_seed(1)
    one = Calibrated(rounds=1).fit(bank, seed=3)
    torch.manual_seed(2)
    two = Calibrated(rounds=1).fit(bank, seed=3)
    assert one.constants_ == two.constants_
    assert one.expected_gain_ == two.expected_gain_
    assert Calibrated(rounds=1).fit(bank, seed=4).expected_gain_ != one.expected_gain_


def test_constants_are_among_those_tried() -> None:
    model = Calibrated(rounds=2).fit(bank_of())
    constants, gain = model.constants_, model.expected_gain_
    assert gain is not None
    assert constants.ridge in RIDGES
    assert constants.shots == gain["shots"] == (1, 2, 5, 10, 20)
    assert (np.diff(constants.lengths) >= 0).all()
    assert float(LENGTHS.min()) <= min(constants.lengths) <= max(constants.lengths) <= float(LENGTHS.max())
    assert (np.diff(constants.posterior_lengths) > 0).all()
    gains = held_out_gains(sample_of(bank_of()), constants, 2, torch.Generator().manual_seed(0))
    assert all(len(of_k) == 8 for of_k in gains.values())


def test_what_base_classes_teach_is_found_and_shrinks_with_the_shots() -> None:
    expected = Calibrated(rounds=2).fit(bank_of()).expected_gain_
    assert expected is not None
    (first, half), (last, _) = expected["lsl"][0], expected["lsl"][-1]
    assert first - half > 0
    assert abs(last) < first / 4


@pytest.mark.parametrize(("n_classes", "per_class"), [(5, 40), (24, 5), (2, 1), (24, 1)])
def test_too_little_to_hold_out_gives_plain_constants(n_classes: int, per_class: int) -> None:
    model = Calibrated(rounds=2).fit(bank_of(n_classes, per_class))
    assert model.constants_ == Constants()
    assert model.expected_gain_ is None


def test_shots_that_base_classes_cannot_spare_are_left_out() -> None:
    assert usable_shots(sample_of(bank_of(per_class=12))) == (1, 2, 5)
    assert Calibrated(rounds=1).fit(bank_of(per_class=12)).constants_.shots == (1, 2, 5)


def test_classes_that_do_not_differ_are_no_error() -> None:
    same = ClassBank.from_examples(torch.ones(80, 3), torch.arange(8).repeat_interleave(10), 8)
    model = Calibrated(rounds=1).fit(same)
    assert (model.constants_, model.expected_gain_) == (Constants(), None)
    noise = Calibrated(rounds=1).fit(bank_of(separation=0.0)).expected_gain_
    assert noise is not None
    assert np.isfinite(noise["lsl"]).all()


def test_other_base_classes_get_the_same_constants() -> None:
    model = Calibrated(rounds=1).fit(bank_of())
    other = model.refit(bank_of(n_classes=10, seed=1))
    assert other.constants_ is model.constants_
    assert (len(model.base_means_), len(other.base_means_)) == (24, 10)


def test_posterior_means_are_those_of_the_model() -> None:
    generator = torch.Generator().manual_seed(0)
    B, W, x = (torch.randn(5, 5, generator=generator).double() for _ in range(3))
    between, within = B @ B.T, W @ W.T
    eye = torch.eye(5).double()
    model = diagonalize(
        torch.zeros(5).double(),
        between + 3 * between.diagonal().mean() * eye,
        within + 3 * within.diagonal().mean() * eye,
    )
    expected = class_posterior(model, x, torch.full((5,), 4))[0]
    torch.testing.assert_close(posterior_means(between, within, 3.0, x, 4), expected)


def test_overlapping_folds_widen_the_interval() -> None:
    values = [1.0, 2.0, 4.0, 3.0]
    assert corrected_interval(values)[1] > corrected_interval(values, ratio=0.0)[1]
    assert corrected_interval([1.0]) == (1.0, float("inf"))


def test_constants_that_harm_are_seen_to_harm() -> None:
    """A gain that is measured, not assumed: centres of a wrong length lose on all classes."""
    sample = sample_of(bank_of())
    wrong = Constants(1.0, (1,), (0.05,), (1.0,))
    gains = held_out_gains(sample, wrong, 1, torch.Generator().manual_seed(0))
    assert np.mean([fold[1] for fold in gains[20]]) < -5
    right = choose_constants(sample, 1, torch.Generator().manual_seed(0))
    assert np.mean([fold[1] for fold in held_out_gains(sample, right, 1, torch.Generator().manual_seed(1))[20]]) > -1
