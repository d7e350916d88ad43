"""The order of images: every image once per epoch, and the same parts after an interruption."""

import numpy as np
import pytest

from cpaan.errors import InputError
from cpaan.representations.pixels import ShuffledOrder, TaskOrder


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_an_epoch_has_every_image_once_whatever_the_parts(parts: int) -> None:
    order = ShuffledOrder(n_images=27, batch_size=8, parts=parts, seed=3)
    assert order.steps_per_epoch == 3
    epochs = [
        np.concatenate([order.part(step, part).rows for step in range(start, start + 3) for part in range(parts)])
        for start in (0, 3)
    ]
    for rows in epochs:
        assert len(set(rows.tolist())) == 24
    assert not np.array_equal(epochs[0], epochs[1])
    whole = ShuffledOrder(n_images=27, batch_size=8, parts=1, seed=3)
    assert np.array_equal(whole.part(4, 0).rows, np.concatenate([order.part(4, part).rows for part in range(parts)]))


def test_parts_follow_from_seed_step_and_part_alone() -> None:
    labels = np.repeat(np.arange(6), 10)
    for first, again, other in (
        (ShuffledOrder(60, 12, 2, 0), ShuffledOrder(60, 12, 2, 0), ShuffledOrder(60, 12, 2, 1)),
        (TaskOrder(labels, 3, 1, 2, 2, 0), TaskOrder(labels, 3, 1, 2, 2, 0), TaskOrder(labels, 3, 1, 2, 2, 1)),
    ):
        first.part(0, 0)  # what was asked before must not matter
        wanted = first.part(7, 1)
        assert np.array_equal(wanted.rows, again.part(7, 1).rows)
        assert wanted.seed == again.part(7, 1).seed
        assert not np.array_equal(wanted.rows, other.part(7, 1).rows)
        assert len({first.part(step, part).seed for step in range(5) for part in range(2)}) == 10


def test_a_task_has_its_support_first_and_other_images_as_queries() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 9))
    order = TaskOrder(labels, ways=5, shots=2, queries=3, parts=1, seed=0)
    seen = set()
    for step in range(40):
        task = order.part(step, 0)
        assert task.n_support == 10
        assert len(set(task.rows.tolist())) == 25
        assert np.unique(labels[task.rows[:10]], return_counts=True)[1].tolist() == [2] * 5
        assert sorted(labels[task.rows[10:]]) == sorted(np.repeat(np.unique(labels[task.rows[:10]]), 3))
        seen |= set(task.rows.tolist())
    assert seen == set(range(72))


def test_impossible_orders_are_refused() -> None:
    with pytest.raises(InputError, match="10 images cannot be split into 4 equal parts"):
        ShuffledOrder(100, 10, 4, 0)
    with pytest.raises(InputError, match="5 training images, fewer than a batch of 8"):
        ShuffledOrder(5, 8, 1, 0)
    with pytest.raises(InputError, match="a task needs 4 classes, but there are only 3"):
        TaskOrder(np.array([0, 1, 2]), 4, 1, 1, 1, 0)
