"""How a centre and deviations make examples, a few classes at a time."""

from typing import Any

import numpy as np
import pytest
import torch

from cpaan import CPAAN
from cpaan.deviations.base import CPU_ROWS, class_parts, moved_to, spread_out


@pytest.mark.parametrize("number", [[], [0], [3, 0, 5], [CPU_ROWS * 2, 1, 1], [1] * (3 * CPU_ROWS), [400, 0, 100, 300]])
def test_parts_are_whole_classes_and_cover_all_rows_once(number: list[int]) -> None:
    labels = torch.arange(len(number)).repeat_interleave(torch.tensor(number, dtype=torch.int64))
    found: list[torch.Tensor] = []
    for classes, rows, targets in class_parts(torch.tensor(number, dtype=torch.int64)):
        assert rows.start == sum(len(part) for part in found)
        assert rows.stop - rows.start == len(targets) <= max(CPU_ROWS, *number)
        found.append(classes.start + targets)
        assert len(range(len(number))[classes]) >= 1
    torch.testing.assert_close(torch.cat([labels[:0], *found]), labels)


def test_examples_are_moved_and_spread_class_by_class() -> None:
    generator = torch.Generator().manual_seed(0)
    examples, labels = torch.randn(12, 3, generator=generator).double(), torch.tensor([0] * 5 + [2] * 7)
    centers = torch.arange(9.0).double().reshape(3, 3)
    moved = moved_to(spread_out(examples, labels, 3.0), labels, centers)
    for label in (0, 2):
        own = examples[labels == label]
        torch.testing.assert_close(moved[labels == label], centers[label] + 3 * (own - own.mean(0)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_classes_of_all_parts_have_their_mean_where_it_belongs(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(8, 1, 5)) * 5 + rng.normal(size=(8, 20, 5))).reshape(-1, 5).astype(dtype)
    augmenter = CPAAN(episodes=3, random_state=0, device="cpu").fit(base, np.repeat(np.arange(8), 20))
    shots = rng.normal(size=(4, 5)).astype(dtype)
    # One shot each: with M examples, the mean of all M + 1 is the centre, whatever M.
    few, many = (augmenter.augment(shots, [8, 9, 10, 11], per_class=n)[0].reshape(4, n, 5) for n in (5, 600))
    assert many.dtype == dtype
    first, second = ((made.astype(np.float64).sum(1) + shots) / (made.shape[1] + 1) for made in (few, many))
    np.testing.assert_allclose(first, second, rtol=1e-9 if dtype == np.float64 else 1e-5)
    assert (np.abs(many - many.mean(1, keepdims=True)).mean((1, 2)) > 0.1).all()
