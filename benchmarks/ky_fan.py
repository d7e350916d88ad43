"""How long Ky Fan norms of covariance differences take, forward and backward, beside torch.linalg.svd, and how exact.

Usage: python benchmarks/ky_fan.py --bank features.npz [--pairs 80 3520] [--device cpu] [--output ky_fan.json]

The covariances are those of a bank's classes: twenty stand for the meta-novel ones, by 40 of their examples each (the
most that a drawn episode of the paper's size has), the others for base classes. Without a bank they are Gaussian.

Ways: `torch.linalg.svd` of the difference and its derivative, on a few matrices; `ky_fan_norm` of the same matrices;
`covariance_distance` of factors, which never builds a matrix, with base covariances in full and of rank 64. Errors
are the largest over a sample of the pairs, against singular values in double precision: of the value, of the spectral
norm of the sub-gradient S above one, and how far ⟨S, M⟩ falls short of the norm.

Then the exact solver against the iterative one on a CPU, by the rows of the matrix that is decomposed: where exact
stops being faster, `cpaan.math.ky_fan.SMALL` ends. Last, what leaving out all but the heaviest pairs of each novel
class can change at most, as a share of the loss.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.math.covariance import deviation_factor, leading_rows
from cpaan.math.ky_fan import covariance_distance, eigenpairs_of_difference, ky_fan_norm
from cpaan.math.ky_fan_cuda import fast_products
from cpaan.math.losses import covariance_loss, left_out_bound
from cpaan.math.neighborhood import calibrated_temperature
from cpaan.math.prototypes import squared_distances
from cpaan.reporting.tables import markdown_table
from measure import alternating_seconds, machine, seconds, write_record

NOVEL, SHOTS, M = 20, 40, 10
RANK = 64
SAMPLE = 200  # pairs of 10 novel classes whose norms are held against exact ones
KEPT = (1, 2, 4, 8, 16, 32)
SIZES = (8, 16, 24, 32, 40, 48, 64)


def classes_of(path: Path | None, device: torch.device) -> list[Tensor]:
    """Give the training examples of each class of a bank, or of Gaussian classes with a decaying spectrum."""
    if path is None:
        generator = torch.Generator().manual_seed(0)
        deviations = (1 + torch.arange(512)) ** -0.5
        return [
            (2 * deviations * torch.randn(512, generator=generator) + _gaussian(deviations, generator)).to(device)
            for _ in range(96)
        ]
    with np.load(path, allow_pickle=False) as bank:
        features, labels = torch.tensor(bank["features"]).float(), torch.tensor(bank["labels"]).long()
        training = ~torch.tensor(bank["is_test"]) if "is_test" in bank else torch.ones(len(labels), dtype=torch.bool)
    features, labels = features[training].to(device), labels[training].to(device)
    return [features[labels == label] for label in range(int(labels.max()) + 1)]


def _gaussian(deviations: Tensor, generator: torch.Generator) -> Tensor:
    axes: Tensor = torch.linalg.qr(torch.randn(512, 512, generator=generator)).Q
    return (torch.randn(350, 512, generator=generator) * deviations) @ axes


def factors_of(classes: list[Tensor], rank: int) -> Tensor:
    """Give factors of covariances, (C, rank, D)."""
    rows = [leading_rows(deviation_factor(x), rank) for x in classes]
    return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, rank - len(row))) for row in rows])


def backward(norms: Tensor) -> None:
    """Propagate a derivative of one for each norm."""
    norms.sum().backward()


class Comparison:
    """The same pairs for every way; base (1, P, r, D) and samples (N, s, D)."""

    def __init__(self, classes: list[Tensor], pairs: int, device: torch.device) -> None:
        novel, base = classes[:NOVEL], classes[NOVEL:]
        per_novel = pairs // NOVEL
        chosen = [base[index % len(base)] for index in range(per_novel)]  # a bank may have too few: some stand twice
        full = min(max(len(x) for x in base), base[0].shape[1])
        self.device, self.pairs = device, pairs
        distinct = factors_of(base[: min(len(base), per_novel)], full)
        self.full = distinct[torch.arange(len(chosen)) % len(distinct)].unsqueeze(0)
        self.low = self.full[:, :, :RANK].contiguous()
        self.samples = torch.stack([deviation_factor(x[:SHOTS]) for x in novel])

    def matrices(self, number: int) -> Tensor:
        """Build the first covariance differences, of the first novel class and on."""
        per_novel = self.full.shape[1]
        index = torch.arange(number)
        factors, samples = self.full[0, index % per_novel], self.samples[index // per_novel]
        return factors.mT @ factors - samples.mT @ samples

    def with_svd(self, matrices: Tensor) -> None:
        """Take the whole decomposition apart and differentiate through it."""
        backward(torch.linalg.svd(matrices.clone().requires_grad_()).S[:, :M])

    def with_products(self, matrices: Tensor) -> None:
        """Find leading eigenvectors of given matrices."""
        backward(ky_fan_norm(matrices.clone().requires_grad_(), M, "iterative"))

    def with_factors(self, factors: Tensor) -> None:
        """Find leading eigenvectors from factors."""
        backward(covariance_distance(factors, self.samples.clone().requires_grad_(), M))

    def seconds_per_pair(self) -> dict[str, float]:
        """Time every way, those on few matrices in turns."""
        few = self.matrices(4 if self.device.type == "cpu" else 16)
        many = self.matrices(min(self.pairs, 16 if self.device.type == "cpu" else self.pairs))
        found = alternating_seconds(
            {
                "torch.linalg.svd": lambda: self.with_svd(few),
                "ky_fan_norm of matrices": lambda: self.with_products(many),
            },
            self.device,
            rounds=2,
        )
        sizes = {"torch.linalg.svd": len(few), "ky_fan_norm of matrices": len(many)}
        ways = {"factors in full": self.full, f"factors of rank {RANK}": self.low}
        for name, factors in ways.items():
            repeats = 3 if self.pairs > 10 * NOVEL else 9
            found[name] = seconds(partial(self.with_factors, factors), self.device, repeats=repeats)
            sizes[name] = self.pairs
        return {name: each / sizes[name] for name, each in found.items()}

    def errors(self, factors: Tensor) -> dict[str, float]:
        """Hold a sample of the pairs against exact singular values."""
        some, samples = factors[:, : SAMPLE // 10], self.samples[:10]
        found, (theta, U) = covariance_distance(some, samples, M), eigenpairs_of_difference(some, samples, M)
        some, samples, U = some.double(), samples.double(), U.double()
        matrices = some.mT @ some - (samples.mT @ samples).unsqueeze(1)
        exact = torch.linalg.eigvalsh(matrices).abs().sort(descending=True).values[..., :M].sum(-1)
        S = U.mT @ (theta.sign().unsqueeze(-1) * U)
        return {
            "value": float((found / exact - 1).abs().max()),
            "spectral norm": float(torch.linalg.matrix_norm(S, 2).max() - 1),
            "inner product": float((1 - (S * matrices).sum((-2, -1)) / exact).max()),
        }


def crossover() -> dict[int, float]:
    """Time the exact solver on 40 pairs of few features, in times of the iterative one."""
    found = {}
    for size in SIZES:
        generator = torch.Generator().manual_seed(0)
        base = torch.randn(10, 4, size, size, generator=generator) * (1 + torch.arange(size)).unsqueeze(1) ** -0.5
        samples = torch.randn(10, 24, size, generator=generator, requires_grad=True)
        ways = {
            solver: partial(lambda *given: backward(covariance_distance(*given)), base, samples, M, solver)
            for solver in ("exact", "iterative")
        }
        times = alternating_seconds(ways, torch.device("cpu"), rounds=5)
        found[size] = times["exact"] / times["iterative"]
    return found


def left_out(classes: list[Tensor]) -> dict[int, float]:
    """Bound what the pairs beyond the heaviest of each novel class can change, as a share of the loss of all."""
    novel, base = classes[:NOVEL], classes[NOVEL:]
    factors = factors_of(base, RANK)
    centers = torch.stack([x.mean(0) for x in base])
    shots = torch.stack([x[:SHOTS] for x in novel])
    weights = torch.softmax(-squared_distances(shots.mean(1), centers) / calibrated_temperature(centers, 5.0), dim=-1)
    counted = torch.ones_like(shots[..., 0])
    loss = float(covariance_loss(shots, counted, factors.unsqueeze(0), weights, M))
    return {k: float(left_out_bound(weights, k, factors, shots, M)) / loss for k in KEPT if k < len(base)}


def measure(classes: list[Tensor], pairs: int, device: torch.device) -> dict[str, Any]:
    """Time and check one number of pairs."""
    comparison = Comparison(classes, pairs, device)
    times = comparison.seconds_per_pair()
    ratios = {name: times["torch.linalg.svd"] / each for name, each in times.items()}
    errors = {"factors in full": comparison.errors(comparison.full)}
    errors[f"factors of rank {RANK}"] = comparison.errors(comparison.low)
    shape = [pairs, int(comparison.full.shape[-1])]
    return {"shape": shape, "device": machine(device), "seconds_per_pair": times, "faster": ratios, "errors": errors}


def show(record: dict[str, Any]) -> str:
    """Lay a record out as a table."""
    rows = []
    for name, each in record["seconds_per_pair"].items():
        errors = record["errors"].get(name, {})
        shown = [f"{errors[key]:.1e}" if key in errors else "" for key in ("value", "spectral norm", "inner product")]
        rows.append([name, f"{1e3 * each:.3f}", f"{record['faster'][name]:.0f}", *shown])
    pairs, dimension = record["shape"]
    title = f"{pairs} pairs of {dimension} × {dimension}, {record['device']}"
    return markdown_table([title, "ms a pair", "× faster", "value off", "norm above 1", "⟨S, M⟩ short"], rows) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[80, 3520])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    classes = classes_of(options.bank, device)
    records = []
    with fast_products():  # as in training
        for pairs in options.pairs:
            records.append(measure(classes, pairs, device))
            print(show(records[-1]), flush=True)
    exact = crossover()
    print(markdown_table(["rows", "exact, × iterative"], [[str(size), f"{each:.2f}"] for size, each in exact.items()]))
    bounds = left_out(classes)
    rows = [[str(k), f"{100 * share:.2f} %"] for k, share in bounds.items()]
    print(markdown_table(["base classes kept for a novel class", "change of the covariance loss, at most"], rows))
    write_record(
        options.output, {"data": str(options.bank or "Gaussian"), "pairs": records, "exact": exact, "left_out": bounds}
    )


if __name__ == "__main__":
    main()
