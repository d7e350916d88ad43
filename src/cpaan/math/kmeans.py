"""k-means of many classes at once, each by itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.math.prototypes import class_counts

ELEMENTS_AT_ONCE = 2**26  # padded examples, and examples × centroids, that are held at a time


@dataclass(frozen=True)
class Clusters:
    """Centroids of every class."""

    centroids: Tensor  # (classes, k, D); with fewer than k distinct examples, the last ones repeat the first centroid
    sizes: Tensor  # (classes, k), examples of each centroid, 0 for such a repetition
    inertia: Tensor  # (classes,), sum of the squared distances of the examples to their centroids


def cluster_classes(
    features: Tensor, labels: Tensor, n_classes: int, k: int, *, iterations: int, generator: torch.Generator
) -> Clusters:
    """Cluster the examples of each class into k groups, by Lloyd's iterations after greedy k-means++ seeding.

    A centroid that loses all its examples moves to the example that is farthest from its own centroid. Stops where
    nothing changes, or after so many iterations. The generator is on the device of the features, (n, D).
    """
    counts = class_counts(labels, n_classes)
    order = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    by_size = torch.argsort(counts, stable=True)
    centroids = features.new_empty(n_classes, k, features.shape[1])
    sizes, inertia = counts.new_empty(n_classes, k), features.new_empty(n_classes)
    for classes in _groups(by_size, counts, max(features.shape[1], k)):
        # Classes of about one size share a padded array.
        places = torch.arange(int(counts[classes].max()), device=labels.device)
        present = places < counts[classes].unsqueeze(1)
        rows = order[(starts[classes].unsqueeze(1) + places).clamp_max(len(order) - 1)]
        examples = features[rows] * present.unsqueeze(2)
        # Distances do not depend on the origin, but ‖x‖² − 2x·c + ‖c‖² loses its digits far away from it.
        means = examples.sum(1, keepdim=True) / counts[classes].view(-1, 1, 1)
        found = _lloyd((examples - means) * present.unsqueeze(2), present, k, iterations, generator)
        centroids[classes], sizes[classes], inertia[classes] = found.centroids + means, found.sizes, found.inertia
    return Clusters(centroids, sizes, inertia)


def _groups(by_size: Tensor, counts: Tensor, width: int) -> list[Tensor]:
    """Split classes into as few groups as memory allows, each padded to its last and largest class."""
    groups, first = [], 0
    for place, count in enumerate(counts[by_size].tolist()):
        if place > first and (place + 1 - first) * count * width > ELEMENTS_AT_ONCE:
            groups.append(by_size[first:place])
            first = place
    return [*groups, by_size[first:]]


def _lloyd(examples: Tensor, present: Tensor, k: int, iterations: int, generator: torch.Generator) -> Clusters:
    centroids = _seeds(examples, present, k, generator)
    nearest, distances = _assign(examples, present, centroids)
    for _ in range(iterations):
        centroids = _means(examples, present, centroids, nearest, distances)
        before = nearest
        nearest, distances = _assign(examples, present, centroids)
        if torch.equal(before, nearest):
            break
    sizes = _members(nearest, present, k, examples.dtype).sum(2).long()
    order = torch.argsort((sizes == 0).long(), dim=1, stable=True)
    centroids, sizes = centroids.gather(1, order.unsqueeze(2).expand_as(centroids)), sizes.gather(1, order)
    centroids = torch.where((sizes > 0).unsqueeze(2), centroids, centroids[:, :1])
    return Clusters(centroids, sizes, distances.sum(1))


def _seeds(examples: Tensor, present: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Seed by greedy k-means++: of a few examples drawn in proportion to distance², take the one that helps most."""
    rows = torch.arange(len(examples), device=examples.device)
    everywhere = present.to(examples.dtype)
    nearest = torch.full_like(everywhere, torch.inf)
    chances = everywhere  # the first one uniformly
    seeds = []
    for number in range(k):
        alone = chances.amax(1, keepdim=True) == 0  # fewer distinct examples than seeds: any of them, once more
        chances = torch.where(alone, everywhere, chances)
        trials = 2 + int(math.log(k)) if number else 1
        # Relative to the largest: torch.multinomial cannot tell tiny numbers from none.
        chances = chances / chances.amax(1, keepdim=True)
        candidates = examples[
            rows.unsqueeze(1), torch.multinomial(chances, trials, replacement=True, generator=generator)
        ]
        # Differences first, not ‖x‖² − 2x·c + ‖c‖²: an example's distance to itself is then zero without rounding.
        away = torch.cdist(examples, candidates, compute_mode="donot_use_mm_for_euclid_dist").square()
        left = nearest.unsqueeze(2).minimum(away) * present.unsqueeze(2)
        chosen = left.sum(1).argmin(1)
        seeds.append(candidates[rows, chosen])
        nearest = chances = left[rows, :, chosen]
    return torch.stack(seeds, dim=1)


def _assign(examples: Tensor, present: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Find the nearest centroid of each example and the squared distance to it, 0 for padding."""
    scores = torch.baddbmm(centroids.square().sum(2).unsqueeze(1), examples, centroids.mT, alpha=-2)
    found, nearest = scores.min(2)
    return nearest, (found + examples.square().sum(2)).clamp_min(0) * present


def _members(nearest: Tensor, present: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Mark which examples belong to which centroid, as zeros and ones of shape (classes, k, examples)."""
    numbers = torch.arange(k, device=nearest.device).view(1, -1, 1)
    return ((nearest.unsqueeze(1) == numbers) & present.unsqueeze(1)).to(dtype)


def _means(examples: Tensor, present: Tensor, centroids: Tensor, nearest: Tensor, distances: Tensor) -> Tensor:
    # A matrix product gives the same bits every time; adding up by index on a GPU does not.
    members = _members(nearest, present, centroids.shape[1], examples.dtype)
    sizes = members.sum(2, keepdim=True)
    means = members @ examples / sizes.clamp_min(1)
    return torch.where(sizes > 0, means, _farthest(examples, centroids, sizes.squeeze(2) == 0, distances))


def _farthest(examples: Tensor, centroids: Tensor, empty: Tensor, distances: Tensor) -> Tensor:
    """Move empty centroids to the farthest examples, the first of them to the very farthest; others stay."""
    far, places = distances.topk(min(centroids.shape[1], distances.shape[1]), dim=1)
    rank = (empty.long().cumsum(1) - 1).clamp(0, far.shape[1] - 1)
    moved = examples.gather(1, places.gather(1, rank).unsqueeze(2).expand_as(centroids))
    useful = empty & (far.gather(1, rank) > 0)
    return torch.where(useful.unsqueeze(2), moved, centroids)
