"""Tasks for meta-training: which examples are drawn, and how many."""

import pytest
import torch

from cpaan.classifiers.meta import Task, TaskSampler
from cpaan.training.bank import ClassBank

COUNTS = [9, 12, 7, 9, 30, 8]


def make_bank(counts: list[int]) -> ClassBank:
    """Examples that tell their class and their number: [class, index]."""
    rows = torch.tensor([[float(c), float(i)] for c, n in enumerate(counts) for i in range(n)])
    return ClassBank.from_examples(rows, rows[:, 0].long(), len(counts))


def draws(sampler: TaskSampler, number: int, seed: int = 0) -> list[Task]:
    generator = torch.Generator().manual_seed(seed)
    return [sampler.draw(generator) for _ in range(number)]


def test_support_and_query_are_distinct_examples_of_distinct_classes() -> None:
    tasks = draws(TaskSampler(make_bank(COUNTS), ways=4, shots=(1, 3), queries=4), 50)
    assert {task.support.shape[1] for task in tasks} == {1, 3}
    for task in tasks:
        shots = task.support.shape[1]
        assert task.support.shape == (4, shots, 2)
        assert task.query.shape == (4, 4, 2)
        assert len(set(task.classes.tolist())) == 4
        for row, label in enumerate(task.classes.tolist()):
            support, query = (part[row].tolist() for part in (task.support, task.query))
            assert {example[0] for example in support + query} == {label}
            assert len({example[1] for example in support + query}) == shots + 4  # none twice, in either or both


def test_query_labels_are_places_within_the_task() -> None:
    (task,) = draws(TaskSampler(make_bank(COUNTS), ways=5, shots=(2,), queries=3), 1)
    own = task.classes[task.query_labels]
    assert torch.equal(own.float(), task.query.flatten(0, 1)[:, 0])


def test_every_number_of_shots_and_every_class_is_drawn_equally_often() -> None:
    tasks = draws(TaskSampler(make_bank(COUNTS), ways=2, shots=(1, 2, 5), queries=1), 900)
    shots = torch.tensor([task.support.shape[1] for task in tasks])
    for number in (1, 2, 5):
        assert float((shots == number).float().mean()) == pytest.approx(1 / 3, abs=0.06)
    classes = torch.bincount(torch.cat([task.classes for task in tasks]), minlength=6) / (2 * 900)
    torch.testing.assert_close(classes, torch.full((6,), 1 / 6), rtol=0, atol=0.04)


def test_the_same_seed_draws_the_same_tasks() -> None:
    sampler = TaskSampler(make_bank(COUNTS), ways=3, shots=(1, 2), queries=2)
    first, again, other = (draws(sampler, 8, seed) for seed in (0, 0, 1))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.classes, b.classes)
        assert torch.equal(a.support, b.support)
        assert torch.equal(a.query, b.query)
    assert any(not torch.equal(a.query, b.query) for a, b in zip(first, other, strict=True))


def test_too_many_ways_take_all_classes_and_too_few_examples_are_repeated() -> None:
    (task,) = draws(TaskSampler(make_bank([1, 3, 2]), ways=9, shots=(2,), queries=2), 1)
    assert sorted(task.classes.tolist()) == [0, 1, 2]
    for row, label in enumerate(task.classes.tolist()):
        drawn = {example[1] for part in (task.support, task.query) for example in part[row].tolist()}
        assert len(drawn) == (1, 3, 2)[label]
