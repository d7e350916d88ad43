"""How long the mining of analogies takes, and what the approximate search misses.

Usage: python benchmarks/analogies.py [--classes 12] [--centroids 40] [--dimensions 512] [--per-class 200] [--full]
           [--device cpu] [--bank features.npz] [--output analogies.json]

The data are Gaussian classes with a shared covariance of decaying spectrum and a few directions of their own, cut off
below like the features of a network, or a file of features. Small sets are also mined as published, by the products of
all ordered differences of two classes at a time, and the seconds of the others are given as a share of that.
`--full` means 389 classes of 500 examples in 512 dimensions with 100 centroids each, where the search on a GPU is exact
and on a CPU approximate. What is found is held against brute force on a sample of pairs, in differences themselves.

Seconds of the processor stand beside those of the clock: on a busy machine only they can be compared.
Recall is the share of pairs (A, B) whose partner has the best cosine, or 0.99 or 0.95 of it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.augmenters.analogies import Analogies, mine_analogies
from cpaan.math.kmeans import Clusters, cluster_classes
from cpaan.reporting.tables import markdown_table

FULL = {"classes": 389, "centroids": 100, "dimensions": 512, "per_class": 500}
OWN_DIRECTIONS = 8
MOST_AS_PUBLISHED = 10**9  # products of differences
SHORT = 5.0  # seconds


def bank_classes(path: Path, wanted: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Read training examples of the first classes of a file."""
    with np.load(path, allow_pickle=False) as bank:
        features, labels = bank["features"], bank["labels"]
        training = ~bank["is_test"] if "is_test" in bank else np.ones(len(labels), dtype=bool)
    rows = training & (labels < wanted)
    return torch.tensor(features[rows]).float().to(device), torch.tensor(labels[rows]).long().to(device)


def gaussian_classes(options: argparse.Namespace, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw examples."""
    generator = torch.Generator().manual_seed(0)
    dimensions, per_class = options.dimensions, options.per_class
    deviations = (4 / (torch.arange(dimensions) + 4)).sqrt()
    rotation = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=generator)).Q
    parts = []
    for _ in range(options.classes):
        mean = 0.4 * torch.randn(dimensions, generator=generator)
        own = 0.5 * torch.randn(OWN_DIRECTIONS, dimensions, generator=generator)
        shared = torch.randn(per_class, dimensions, generator=generator)
        special = torch.randn(per_class, OWN_DIRECTIONS, generator=generator) @ own
        parts.append((((mean + shared + special) * deviations) @ rotation + 0.5).clamp_min(0))
    labels = torch.arange(options.classes).repeat_interleave(per_class)
    return torch.cat(parts).to(device), labels.to(device)


def timed(action: Callable[[], Any], device: torch.device) -> tuple[Any, dict[str, float]]:
    """Give what an action gives, and the seconds that it takes, the least of three times where it is short."""
    found, fewest = None, {"seconds": float("inf")}
    for _ in range(3):
        start, processor = time.perf_counter(), time.process_time()
        found = action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - processor}
        fewest = min(fewest, taken, key=lambda each: each["seconds"])
        if fewest["seconds"] > SHORT:
            break
    return found, fewest


def directions(points: Tensor) -> Tensor:
    """Give the differences of all ordered pairs of centroids at unit length, (k², D)."""
    differences = (points.unsqueeze(1) - points.unsqueeze(0)).flatten(0, 1)
    lengths: Tensor = differences.norm(dim=1, keepdim=True)
    return differences / (lengths + 1e-5)


def mine_as_published(centroids: Tensor) -> Tensor:
    """Give the best cosine of each ordered pair, (classes, k²), by the published code's loops over classes."""
    best = centroids.new_zeros(len(centroids), centroids.shape[1] ** 2)
    for i, own in enumerate(centroids):
        ours = directions(own)
        for j, other in enumerate(centroids):
            if i != j:
                found, _ = (ours @ directions(other).T).max(1)
                best[i] = torch.maximum(best[i], found)
    return best


def recall(centroids: Tensor, found: Analogies, sample: int) -> dict[str, float]:
    """Hold a sample of what was found against brute force."""
    k = centroids.shape[1]
    drawn = torch.randperm(len(found.cosines), generator=torch.Generator().manual_seed(1))[:sample]
    drawn = drawn.to(centroids.device)
    points = centroids.flatten(0, 1).double()
    A, B, C, D = points[found.quadruplets[drawn].T]
    ours, partner = A - B, C - D
    ours = ours / ours.norm(dim=1, keepdim=True)
    reached = (ours * partner).sum(1) / partner.norm(dim=1)
    owners = found.quadruplets[drawn, 0] // k
    best = torch.zeros_like(reached)
    for number, other in enumerate(centroids):
        cosines = (ours.float() @ directions(other).T).amax(1).double()
        best = torch.where(owners == number, best, best.maximum(cosines))
    share = {f"recall_{level}": float((reached >= level * best).double().mean()) for level in (0.99, 0.95)}
    return {"recall": float((reached >= best - 1e-4).double().mean()), **share}


def cluster(features: Tensor, labels: Tensor, k: int) -> Clusters:
    """Cluster every class."""
    generator = torch.Generator(features.device).manual_seed(0)
    return cluster_classes(features, labels, int(labels.max()) + 1, k, iterations=20, generator=generator)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Cluster, mine in every way that is feasible, and compare."""
    device = torch.device(options.device)
    if options.bank:
        features, labels = bank_classes(options.bank, options.classes, device)
    else:
        features, labels = gaussian_classes(options, device)
    clusters, seconds = timed(partial(cluster, features, labels, options.centroids), device)
    centroids = clusters.centroids
    n_classes = len(centroids)
    record: dict[str, Any] = {
        "shape": [n_classes, *centroids.shape[1:]],
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "data": str(options.bank) if options.bank else "Gaussian classes",
        "clustering": seconds,
        "searches": {},
    }
    if (n_classes * options.centroids**2) ** 2 <= MOST_AS_PUBLISHED:
        _, seconds = timed(lambda: mine_as_published(centroids), device)
        record["searches"]["as published"] = seconds
    for search in options.searches:
        tell = show_progress if options.full else None
        found, seconds = timed(partial(mine_analogies, centroids, search=search, tell=tell), device)
        record["searches"][search] = {
            **seconds,
            "analogies": len(found.cosines),
            "mean_cosine": float(found.cosines.mean()),
            **recall(centroids, found, options.sample),
        }
    return record


def show_progress(done: int, total: int) -> None:
    """Tell how far a long search is, on standard error."""
    if done % 20 == 0:
        sys.stderr.write(f"{done} of {total} classes\n")


def table(record: dict[str, Any]) -> str:
    """Lay out what was measured."""
    searches = record["searches"]
    slowest = searches.get("as published", next(iter(searches.values())))["seconds"]
    rows = []
    for name, found in searches.items():
        shares = (f"{100 * found[key]:.1f}" if key in found else "" for key in ("recall", "recall_0.99", "recall_0.95"))
        cosine = f"{found['mean_cosine']:.4f}" if "mean_cosine" in found else ""
        times = f"{found['seconds']:.2f}", f"{found['processor_seconds']:.2f}", f"{slowest / found['seconds']:.1f}"
        rows.append([name, *times, cosine, *shares])
    classes, k, dimensions = record["shape"]
    headline = (
        f"{classes} classes × {k} centroids × {dimensions} dimensions ({record['data']}), {record['device']}; "
        f"k-means {record['clustering']['seconds']:.1f} s"
    )
    columns = ["search", "seconds", "of processor", "times as fast", "mean cosine", "recall (%)", "of 0.99", "of 0.95"]
    return f"{headline}\n\n{markdown_table(columns, rows)}\n"


def main() -> None:
    """Measure at one size; print a table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--centroids", type=int)
    parser.add_argument("--dimensions", type=int)
    parser.add_argument("--per-class", type=int)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--searches", nargs="*", choices=("exact", "approximate"))
    parser.add_argument("--sample", type=int, default=256)
    parser.add_argument("--threads", type=int, help="by default one for small sets, all for the full size")
    parser.add_argument("--output", type=Path, default=Path("analogies.json"))
    options = parser.parse_args()
    small = {"classes": 10**9 if options.bank else 12, "centroids": 40, "dimensions": 512, "per_class": 200}
    for name, value in (FULL if options.full else small).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.searches is None:
        large = "exact" if options.device.startswith("cuda") else "approximate"
        options.searches = [large] if options.full else ["exact", "approximate"]
    if options.threads or not options.full:
        torch.set_num_threads(options.threads or 1)
    record = measure(options)
    options.output.write_text(json.dumps(record, indent=1))
    sys.stdout.write(table(record))


if __name__ == "__main__":
    main()
