"""How large novel classes are made."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan import CPAAN
from cpaan.augmenters import size_search
from cpaan.augmenters.size_search import choose_size
from cpaan.centers.calibrated import Calibrated, Constants
from cpaan.centers.cross_validation import part_labels
from cpaan.classifiers.linear import LinearClassifier
from cpaan.methods import set_numbers
from cpaan.training.bank import ClassBank


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


CONSTANTS = Constants(1.0, shots=(1, 5), lengths=(0.8, 0.9), posterior_lengths=(0.8, 0.9))


def sample_of(n_classes: int, size: int, separation: float) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [torch.tensor(separation * rng.normal(size=5) + rng.normal(size=(size, 5))) for _ in range(n_classes)]


def chosen(sample: Sequence[Tensor], constants: Constants = CONSTANTS, seed: int = 0) -> int:
    bank = ClassBank.from_examples(torch.cat(list(sample)), part_labels(sample), len(sample))
    return choose_size(bank, center_of(constants), factor=1.0, seed=seed)


def center_of(constants: Constants) -> Calibrated:
    center = Calibrated()
    center.constants_ = constants
    return center


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ({1: [50, 60, 50], 2: [50.2, 60.2, 50.2]}, 1),
        ({1: [50, 60, 50], 2: [49, 59, 49]}, 1),
        ({1: [50, 60, 50], 2: [50.3, 60.3, 50.3], 4: [50.4, 60.4, 50.4]}, 2),
        ({1: [50, 60, 50], 2: [51, 61, 51], 4: [52, 62, 52]}, 4),
        ({1: [50, 60, 50], 2: [53, 61, 50]}, 1),  # gains of 3, 1 and 0 are 1.3, and by chance 2.6
        ({1: [50, 60, 50], 2: [53, 62, 52], 4: [53, 62, 52]}, 2),  # 3, 2 and 2 are 2.3, and by chance 1.0
    ],
)
def test_classes_are_doubled_as_long_as_it_gains_by_more_than_chance(
    accuracies: dict[int, list[float]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_search, "_accuracies", lambda tasks, multiple, *rest: np.array(accuracies[multiple]))
    assert chosen(sample_of(20, 20, 2.0)) == expected


def test_with_few_classes_or_examples_or_no_centers_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_search, "_accuracies", lambda *_: pytest.fail("tried"))
    assert chosen(sample_of(19, 40, 2.0)) == 1
    assert chosen(sample_of(20, 19, 2.0)) == 1
    assert chosen(sample_of(20, 40, 2.0), Constants()) == 1
    monkeypatch.setattr(size_search, "affordable_rounds", lambda *_: 2)
    assert chosen(sample_of(20, 40, 2.0)) == 1


def test_a_search_is_the_same_with_the_same_seed_and_finds_nothing_to_gain_where_classes_are_far_apart() -> None:
    near, far = sample_of(20, 30, 0.8), sample_of(20, 30, 20.0)
    assert chosen(near, seed=3) == chosen(near, seed=3)
    assert chosen(far) == 1


def task_of(sample: Sequence[Tensor], k: int) -> size_search._Task:
    tasks = size_search._draw_tasks(sample, center_of(CONSTANTS), torch.Generator().manual_seed(0))
    return next(task for task in tasks if task.k == k)


def key(row: Tensor) -> tuple[float, ...]:
    return tuple(row.round(decimals=9).tolist())  # a mean was taken away and added again


@pytest.mark.parametrize("k", [1, 5])
def test_a_task_keeps_shots_queries_and_base_examples_apart(k: int) -> None:
    sample = sample_of(12, 30, 2.0)
    task = task_of(sample, k)
    assert (task.n_base, len(task.centers), task.size) == (9, 3, 15)
    assert task.labels.bincount().tolist() == [15] * 9 + [k] * 3
    assert task.query_labels.bincount().tolist() == [15] * 9 + [15 - k] * 3
    owner = {key(row): c for c, examples in enumerate(sample) for row in examples}
    known, asked = ([owner[key(row)] for row in rows] for rows in (task.features, task.queries))
    assert len({key(row) for row in torch.cat([task.features, task.queries])}) == len(known) + len(asked)
    # One class in the bank is one class in the task, for shots and queries alike.
    of_known = dict(zip(task.labels.tolist(), known, strict=True))
    assert all(of_known[label] == c for label, c in zip(task.query_labels.tolist(), asked, strict=True))
    assert len(set(of_known.values())) == 12


def test_deviations_are_those_of_the_remaining_classes() -> None:
    task = task_of(sample_of(12, 30, 2.0), 1)
    parts = [task.features[task.labels == c] for c in range(task.n_base)]
    torch.testing.assert_close(task.deviations, torch.cat([part - part.mean(0) for part in parts]))


def test_accuracy_is_the_mean_of_both_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    class Watched(LinearClassifier):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Watched":
            super().fit(X, y, sample_weight)
            seen.append((self, np.bincount(y)))
            return self

    monkeypatch.setattr(size_search, "LinearClassifier", Watched)
    task = task_of(sample_of(12, 30, 0.7), 1)
    found = size_search._accuracy(task, 29, 1e-3, torch.Generator().manual_seed(0))
    classifier, sizes = seen[0]
    assert sizes.tolist() == [15] * 9 + [30] * 3  # one shot, and 29 made
    scores, labels = classifier.decision_function(task.queries.numpy()), task.query_labels.numpy()
    glsl = np.mean([np.argmax(row) == label for row, label in zip(scores, labels, strict=True)])
    lsl = np.mean([9 + np.argmax(row[9:]) == label for row, label in zip(scores, labels, strict=True) if label >= 9])
    assert 0.2 < lsl < 1
    assert found == pytest.approx(50 * (lsl + glsl))


def test_the_unit_of_the_features_does_not_matter() -> None:
    def accuracy(unit: float) -> float:
        task = task_of([unit * examples for examples in sample_of(12, 30, 0.7)], 1)
        return size_search._accuracy(task, 29, 1e-3 * unit**2, torch.Generator().manual_seed(0))

    assert accuracy(1.0) == pytest.approx(accuracy(8.0))


def test_many_features_mean_fewer_classes() -> None:
    assert [size_search._most_classes(dimension) for dimension in (8, 512, 2048, 10**6)] == [80, 80, 40, 20]


def test_augmenters_make_classes_of_the_chosen_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.augmenters.anchored.choose_size", lambda *_, **__: 2)
    X, y = torch.cat(sample_of(8, 20, 2.0)).numpy(), np.repeat(np.arange(8), 20)
    augmenter = cpaan(episodes=2, novel_per_episode=4, random_state=0, device="cpu").fit(X, y)
    assert (augmenter.average_size_, augmenter.size_) == (20, 2)
    shots = np.zeros((3, 5))
    assert len(augmenter.augment(shots, ["new"] * 3)[0]) == 2 * 20 - 3
    assert len(augmenter.augment(shots, ["new"] * 3, per_class=7)[0]) == 7
