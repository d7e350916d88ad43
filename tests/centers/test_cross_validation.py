"""Held-out base classes: their moments, how they are moved, and what is counted on them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.centers import cross_validation
from cpaan.centers.cross_validation import Shift, class_sample, draw_folds, draw_trial
from cpaan.training.bank import ClassBank

DIMENSION = 6


def sample_of(sizes: list[int], separation: float = 1.0) -> tuple[Tensor, ...]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    X = separation * rng.normal(size=(len(sizes), DIMENSION))[labels] + rng.normal(size=(len(labels), DIMENSION))
    bank = ClassBank.from_examples(torch.tensor(X), torch.tensor(labels), len(sizes))
    return class_sample(bank, torch.Generator().manual_seed(0))


def test_moments_of_a_fold_are_those_of_the_classes_that_remain() -> None:
    sample = sample_of([15] * 8)
    fold = next(draw_folds(sample, 1, torch.Generator().manual_seed(0)))
    held = {float(examples.sum()) for examples in fold.held_out}
    rest = [examples for examples in sample if not any(abs(float(examples.sum()) - h) < 1e-6 for h in held)]
    assert len(rest) == len(fold.moments.means) == 6
    deviations = torch.cat([examples - examples.mean(0) for examples in rest])
    torch.testing.assert_close(fold.moments.within, deviations.T @ deviations / (6 * 15 - 6))


def test_a_shift_pulls_means_and_keeps_deviations() -> None:
    sample = sample_of([15] * 8)
    plain, pulled = (
        next(draw_folds(sample, 1, torch.Generator().manual_seed(0), shift)) for shift in (Shift(), Shift(0.5, 0.25))
    )
    for before, after in zip(plain.held_out, pulled.held_out, strict=True):
        torch.testing.assert_close(after.mean(0) - plain.mean, (before.mean(0) - plain.mean) / 2)
        torch.testing.assert_close(after - after.mean(0), before - before.mean(0))
    moved = plain.queries - 0.75 * (plain.moments.means - plain.mean)[plain.query_labels]
    torch.testing.assert_close(pulled.queries, moved)


def test_accuracies_are_those_of_nearest_prototypes() -> None:
    generator = torch.Generator().manual_seed(0)
    fold = next(draw_folds(sample_of([15] * 8, separation=0.4), 1, generator))
    trial = draw_trial(fold, 2, generator)
    assert trial is not None
    centers, n = trial.shots.mean(1), len(trial.labels)
    everything = torch.cat([centers, fold.moments.means - fold.mean])
    labels = torch.cat([trial.labels, fold.query_labels + len(centers)])
    lsl = (torch.cdist(trial.queries[:n], centers).argmin(1) == trial.labels).double().mean()
    glsl = (torch.cdist(trial.queries, everything).argmin(1) == labels).double().mean()
    torch.testing.assert_close(trial.of_centers(centers), 100 * torch.stack([lsl, glsl]))


def test_large_banks_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_validation, "MOST_CLASSES", 3)
    monkeypatch.setattr(cross_validation, "MOST_NUMBERS", 3 * 4 * DIMENSION)
    assert [examples.shape for examples in sample_of([15] * 8)] == [(4, DIMENSION)] * 3


def test_classes_without_queries_are_left_out_of_a_trial() -> None:
    generator = torch.Generator().manual_seed(0)
    for fold in draw_folds(sample_of([15] * 6 + [3] * 6), 1, generator):
        enough = sum(len(examples) == 15 for examples in fold.held_out)
        trial = draw_trial(fold, 2, generator)
        assert (trial is None) == (enough < 2)
        assert trial is None or len(trial.shots) == enough
