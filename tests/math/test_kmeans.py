"""k-means of many classes at once, against scikit-learn's and against what k-means must do."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from cpaan.math import kmeans
from cpaan.math.kmeans import Clusters, cluster_classes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(n_classes: int, per_class: int, dimension: int = 6, groups: int = 5) -> tuple[Tensor, Tensor]:
    source = generator(1)
    centers = 4 * torch.randn(n_classes, groups, dimension, generator=source)
    chosen = torch.randint(groups, (n_classes, per_class), generator=source)
    examples = centers.gather(1, chosen.unsqueeze(2).expand(-1, -1, dimension))
    examples = examples + torch.randn(examples.shape, generator=source)
    order = torch.randperm(n_classes * per_class, generator=source)
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    return examples.flatten(0, 1)[order], labels[order]


def cluster(features: Tensor, labels: Tensor, k: int, iterations: int = 30) -> Clusters:
    return cluster_classes(features, labels, int(labels.max()) + 1, k, iterations=iterations, generator=generator())


def test_inertia_and_sizes_are_those_of_the_nearest_centroids() -> None:
    features, labels = blobs(4, 50)
    found = cluster(features, labels, 7)
    for label in range(4):
        squares = torch.cdist(features[labels == label], found.centroids[label]).square()
        assert float(found.inertia[label]) == pytest.approx(float(squares.amin(1).sum()), rel=1e-4)
        assert found.sizes[label].tolist() == torch.bincount(squares.argmin(1), minlength=7).tolist()


def test_centroids_are_the_means_of_their_examples_once_nothing_changes() -> None:
    features, labels = blobs(3, 60)
    found = cluster(features, labels, 5, iterations=200)
    for label in range(3):
        examples = features[labels == label]
        nearest = torch.cdist(examples, found.centroids[label]).argmin(1)
        means = torch.stack([examples[nearest == number].mean(0) for number in range(5)])
        torch.testing.assert_close(found.centroids[label], means, rtol=1e-4, atol=1e-4)


def test_every_iteration_lowers_the_objective_or_keeps_it() -> None:
    features, labels = blobs(5, 80)
    inertia = torch.stack([cluster(features, labels, 12, iterations=i).inertia for i in range(1, 12)])
    assert (inertia[1:] <= inertia[:-1] * (1 + 1e-5)).all()
    assert float(inertia[-1].sum()) < 0.99 * float(inertia[0].sum())


@pytest.mark.parametrize("k", [20, 40])
def test_the_objective_is_as_low_as_scikit_learns(k: int) -> None:
    features, labels = blobs(8, 120)
    ours = cluster(features, labels, k).inertia.sum()
    theirs = sum(
        KMeans(k, n_init=1, random_state=0).fit(features[labels == label].numpy()).inertia_ for label in range(8)
    )
    assert float(ours) < 1.06 * theirs


def test_classes_with_few_or_equal_examples_repeat_their_first_centroid() -> None:
    features = torch.tensor([[1.0, 1.0], [5.0, 5.0], [5.0, 5.0], [2.0, 2.0], [3.0, 3.0], [9.0, 9.0], [7.0, 7.0]])
    found = cluster(features, torch.tensor([0, 1, 1, 2, 2, 2, 2]), 3)
    assert found.sizes[0].tolist() == [1, 0, 0]
    assert found.sizes[1].tolist() == [2, 0, 0]
    assert int(found.sizes[2].sum()) == 4
    assert (found.sizes[2] > 0).all()
    assert torch.equal(found.centroids[:2], features[[0, 1]].unsqueeze(1).expand(2, 3, 2))


def test_an_empty_centroid_goes_where_it_is_needed() -> None:
    """Two seeds in one place: the one that loses all its examples must take over the far group."""
    examples = torch.tensor([[[0.0], [0.1], [10.0], [10.1]]])
    present = torch.ones(1, 4, dtype=torch.bool)
    centroids = torch.tensor([[[0.05], [0.05]]])
    nearest, distances = kmeans._assign(examples, present, centroids)
    moved = kmeans._means(examples, present, centroids, nearest, distances)
    torch.testing.assert_close(moved[0, 1], torch.tensor([10.1]))


def test_far_from_the_origin_the_clusters_are_the_same() -> None:
    features, labels = blobs(3, 40)
    near, far = (cluster(features.double() + shift, labels, 4) for shift in (0.0, 1e6))
    torch.testing.assert_close(far.centroids - 1e6, near.centroids, rtol=0, atol=1e-6)


def test_groups_of_classes_do_not_change_the_result_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Well separated groups have one best clustering, whatever the seeds and the classes beside."""
    rng = np.random.default_rng(0)
    centers = torch.tensor(rng.permutation(30).reshape(5, 6) * 100.0)
    features = (centers.unsqueeze(2) + torch.tensor(rng.normal(size=(5, 6, 4)))).flatten().unsqueeze(1)
    labels = torch.arange(5).repeat_interleave(24)
    keep = torch.tensor(rng.random(120) < 0.8)
    whole = cluster(features[keep], labels[keep], 6)
    monkeypatch.setattr(kmeans, "ELEMENTS_AT_ONCE", 200)
    parts = cluster(features[keep], labels[keep], 6)
    torch.testing.assert_close(parts.centroids.sort(1).values, whole.centroids.sort(1).values)
    torch.testing.assert_close(parts.inertia, whole.inertia)


@pytest.mark.parametrize("limit", [1, 100, 1000, 5000, 10**6])
def test_groups_of_classes_are_all_classes_once_and_as_few_as_can_be_held(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmeans, "ELEMENTS_AT_ONCE", limit)
    counts, width = torch.tensor([1, 9, 1, 2, 60, 1, 2, 1, 9, 3]), 10
    by_size = torch.argsort(counts, stable=True)
    groups = kmeans._groups(by_size, counts, width)
    assert torch.equal(torch.cat(groups), by_size)

    def held(classes: Tensor) -> int:
        return len(classes) * int(counts[classes].max()) * width

    assert all(len(classes) == 1 or held(classes) <= limit for classes in groups)
    assert all(held(torch.cat((group, after[:1]))) > limit for group, after in pairwise(groups))


def test_two_groups_that_fill_what_can_be_held_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "ELEMENTS_AT_ONCE", 4 * 5 * 3)
    assert len(kmeans._groups(torch.arange(4), torch.full((4,), 5), 3)) == 1


def test_places_left_over_repeat_the_first_centroid_though_others_were_tried() -> None:
    features = torch.tensor([[2.0, 2.0], [9.0, 9.0]]).repeat(30, 1)
    found = cluster(features, torch.arange(30).repeat_interleave(2), 5)
    assert found.sizes.tolist() == [[1, 1, 0, 0, 0]] * 30
    assert torch.equal(found.centroids[:, 2:], found.centroids[:, :1].expand(-1, 3, -1))
    assert torch.equal(found.centroids[:, :2].sort(1).values, features.reshape(30, 2, 2))


def test_a_single_example_is_every_centroid() -> None:
    found = cluster(torch.tensor([[3.0, 4.0]]), torch.tensor([0]), 4)
    assert torch.equal(found.centroids, torch.tensor([[[3.0, 4.0]] * 4]))
    assert found.sizes.tolist() == [[1, 0, 0, 0]]


def test_empty_centroids_go_to_the_farthest_examples_in_turn() -> None:
    examples = torch.tensor([[[0.1], [0.4], [0.2]]])
    present, centroids = torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 5, 1)
    nearest, distances = kmeans._assign(examples, present, centroids)
    assert (nearest == 0).all()
    moved = kmeans._means(examples, present, centroids, nearest, distances)
    torch.testing.assert_close(moved.flatten(), torch.tensor([0.7 / 3, 0.4, 0.2, 0.1, 0.1]))


def test_a_centroid_of_one_example_moves_to_it() -> None:
    examples, present = torch.tensor([[[0.0], [1.0], [10.0]]]), torch.ones(1, 3, dtype=torch.bool)
    centroids = torch.tensor([[[0.2], [8.0]]])
    moved = kmeans._means(examples, present, centroids, *kmeans._assign(examples, present, centroids))
    torch.testing.assert_close(moved.flatten(), torch.tensor([0.5, 10.0]))


def test_in_single_precision_too_a_class_is_clustered_about_its_own_mean() -> None:
    features, labels = blobs(3, 40)
    offset = 1000.0 * (labels + 1).unsqueeze(1)
    near, far = cluster(features, labels, 4), cluster(features + offset, labels, 4)
    torch.testing.assert_close(far.inertia, near.inertia, rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_a_class_of_any_unit_is_clustered_beside_one_of_another(scale: float) -> None:
    features, labels = blobs(2, 60)
    expected = cluster(features, labels, 8)
    units = torch.tensor([scale, 1 / scale])
    found = cluster(features * units[labels].unsqueeze(1), labels, 8)
    torch.testing.assert_close(found.inertia / units**2, expected.inertia, rtol=1e-3, atol=0)


def test_the_first_seed_is_any_example_alike() -> None:
    """A greedy choice would favour the middle one."""
    examples = torch.tensor([0.0, 1.0, 10.0]).view(1, 3, 1).repeat(6000, 1, 1)
    seeds = kmeans._seeds(examples, torch.ones(6000, 3, dtype=torch.bool), 1, generator())
    shares = torch.stack([(seeds == value).double().mean() for value in (0.0, 1.0, 10.0)])
    assert (shares - 1 / 3).abs().max() < 0.03


def test_an_example_that_is_a_seed_is_none_again_while_others_are_not() -> None:
    distinct = torch.tensor([-1000.0, -999.99, -999.98, 1000.0, 1000.01])
    examples = distinct.repeat(8).view(1, 40, 1).repeat(20, 1, 1)
    seeds = kmeans._seeds(examples, torch.ones(20, 40, dtype=torch.bool), 5, generator())
    assert torch.equal(seeds.squeeze(2).sort(1).values, distinct.expand(20, 5))
