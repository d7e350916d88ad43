import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from cpaan.math import prototypes as distances
from cpaan.math.prototypes import class_counts, mean_within_class_distance, prototypes, squared_distances


def test_prototypes_are_the_means_of_each_class_in_turn() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(50, 3)), rng.permutation(np.repeat(np.arange(4), [1, 9, 20, 20]))
    found = prototypes(torch.tensor(features), torch.tensor(labels), 4)
    for label in range(4):
        np.testing.assert_allclose(found[label], features[labels == label].mean(0))
    assert class_counts(torch.tensor(labels), 4).tolist() == [1, 9, 20, 20]


def test_squared_distances_equal_the_sum_of_squared_differences() -> None:
    left, right = torch.randn(2, 7, 3, dtype=torch.double), torch.randn(2, 5, 3, dtype=torch.double)
    slow = (left.unsqueeze(2) - right.unsqueeze(1)).square().sum(-1)
    torch.testing.assert_close(squared_distances(left, right), slow)


def test_squared_distances_survive_a_large_offset() -> None:
    left, right = torch.rand(4, 3), torch.rand(5, 3)
    near = squared_distances(left, right)
    for offset in (torch.tensor(1000.0), torch.tensor([1000.0, -1000.0, 500.0])):
        far = squared_distances(left + offset, right + offset)
        torch.testing.assert_close(far, near, rtol=0, atol=2e-3)


def test_within_class_distance_averages_pairs_then_classes() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(30, 4)), np.repeat([0, 1, 2], [20, 9, 1])
    per_class = []
    for label in range(2):  # the third class has one example: no pair
        x = features[labels == label]
        pairs = [np.linalg.norm(x[i] - x[j]) for i in range(len(x)) for j in range(i)]
        per_class.append(np.mean(pairs))
    found = mean_within_class_distance(torch.tensor(features), torch.tensor(labels), 3)
    np.testing.assert_allclose(found, np.mean(per_class))


def test_within_class_distance_without_any_pair_is_zero() -> None:
    assert mean_within_class_distance(torch.eye(3), torch.arange(3), 3) == 0.0


def test_large_banks_are_thinned_evenly_from_their_first_class_and_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "MOST_CLASSES", 3)
    monkeypatch.setattr(distances, "MOST_EXAMPLES", 4)
    rng = np.random.default_rng(2)
    labels = rng.permutation(np.repeat(np.arange(8), [9, 5, 5, 4, 5, 5, 12, 5]))
    features = rng.normal(size=(50, 3))
    of_class = [features[labels == label] for label in (0, 3, 6)]
    kept = [of_class[0][[0, 3, 6]], of_class[1], of_class[2][[0, 3, 6, 9]]]
    expected = np.mean([pdist(x).mean() for x in kept])
    assert mean_within_class_distance(torch.tensor(features), torch.tensor(labels), 8) == pytest.approx(expected)
