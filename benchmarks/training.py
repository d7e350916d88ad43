"""How long an episode of cCov-GAN takes, beside its matrix products alone and a straightforward implementation.

Usage: python benchmarks/training.py [--size quick|drawn|paper …] [--device cpu] [--without-svd]
           [--bank features.npz --setup setup.json] [--output training.json]

Sizes: `drawn` is the paper's (196 base classes, 512 features, 20 meta-novel classes of 10 shots, 1,000 examples) with
pairs drawn by similarity and the 80 class pairs of largest weight, base covariances of rank 64; `paper` is the literal
recipe, where every base example goes to every meta-novel class and all 3,520 class pairs count; `quick` is the recipe
of that name on 80 classes of 384 features. Classes are Gaussian with a decaying spectrum.

Versions: this package's step; the same step with `torch.linalg.svd` of every covariance difference and its own
derivative; and the floor, the matrix products of this package's step done again with nothing between them. All are
timed in turns in one run, so that the ratios hold on a busy machine as well.

With a bank the recipe quick is also trained to its end on the bank's base classes.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpaan import CPAAN
from cpaan.data.archive import read_bank
from cpaan.data.setup import read_setup
from cpaan.functional.covariance import deviation_factor
from cpaan.nn.networks import Architecture, build_networks
from cpaan.objectives.covariance import heaviest_pairs
from cpaan.reporting.table import markdown_table
from cpaan.sampling.bank import ClassBank
from cpaan.sampling.episodes import Episode, EpisodicSampler, PairPlan
from cpaan.sampling.neighborhood import SoftNeighborhood
from cpaan.training.recipe import Recipe, make_recipe
from cpaan.training.step import Pairs, TrainingStep
from cpaan.training.variant import find_variant
from measure import alternating_seconds, machine, matrix_products, seconds, write_record

PER_CLASS = 60
SLOW = 2.0  # seconds of a step, from which it is timed once


@dataclass(frozen=True)
class Size:
    """What is trained on, and how."""

    classes: int
    dimension: int
    recipe: Recipe


SIZES = {
    "quick": Size(80, 384, make_recipe("quick")),
    "drawn": Size(
        196,
        512,
        make_recipe("paper", pairing="drawn", base_draw="similarity", covariance_pairs=4, covariance_rank=64),
    ),
    "paper": Size(196, 512, make_recipe("paper")),
}


class StraightforwardStep(TrainingStep):
    """The step as one would first write it: a singular value decomposition of every covariance difference."""

    def _covariance_loss(self, episode: Episode, pairs: Pairs) -> Tensor:
        number = self.recipe.covariance_pairs
        wanted = len(episode.base_classes) if isinstance(number, str) else number
        weights, classes = heaviest_pairs(episode.class_weights, wanted)
        made = deviation_factor(pairs.to_novel)
        loss = weights.new_zeros(())
        for n, (row, chosen) in enumerate(zip(weights, episode.base_classes[classes], strict=True)):
            factors = self.base_factors[chosen]
            difference = factors.mT @ factors - made[n].mT @ made[n]
            singular = torch.linalg.svd(difference).S[:, : self.recipe.ky_fan_rank].sum(-1)
            loss = loss + (row * singular).sum() / len(weights)
        return loss


def gaussian_bank(size: Size, device: torch.device) -> tuple[ClassBank, Tensor]:
    """Draw examples in the recipe's units, and the factors of their classes' covariances."""
    generator = torch.Generator().manual_seed(0)
    rank = size.dimension if isinstance(size.recipe.covariance_rank, str) else size.recipe.covariance_rank
    deviations = (1 + torch.arange(size.dimension)) ** -0.5
    deviations = deviations * (size.recipe.within_distance / (2 * deviations.square().sum()).sqrt())
    axes = torch.linalg.qr(torch.randn(size.classes, size.dimension, size.dimension, generator=generator)).Q.mT
    factors = deviations.unsqueeze(-1) * axes
    centers = 2 * deviations * torch.randn(size.classes, 1, size.dimension, generator=generator)
    examples = centers + torch.randn(size.classes, PER_CLASS, size.dimension, generator=generator) @ factors
    labels = torch.arange(size.classes).repeat_interleave(PER_CLASS)
    bank = ClassBank.from_examples(examples.flatten(0, 1).to(device), labels.to(device), size.classes)
    return bank, factors[:, :rank].contiguous().to(device)


def make_step(kind: type[TrainingStep], size: Size, factors: Tensor) -> TrainingStep:
    """Build networks and the step that trains them."""
    recipe, variant = size.recipe, find_variant("ccov-gan")
    gain = (2 * size.dimension) ** 0.5 / recipe.within_distance if recipe.standardize else 1.0
    shape = Architecture(
        dimension=size.dimension,
        width=recipe.width,
        noise_dimension=recipe.noise_dimension,
        noise_components=recipe.noise_components,
        cycle=True,
        residual=False,
        gain=gain,
        negative_slope=recipe.negative_slope,
    )
    return kind(build_networks(shape, 0).to(factors.device), variant, recipe, factors)


def make_sampler(size: Size, bank: ClassBank) -> EpisodicSampler:
    """Choose how episodes are drawn, as training does."""
    recipe = size.recipe
    examples = recipe.batch_size - recipe.novel_per_episode * recipe.shots_per_episode
    if recipe.pairing == "drawn":
        examples //= recipe.novel_per_episode
    neighborhood = SoftNeighborhood(1.0 if isinstance(recipe.temperature, str) else recipe.temperature)
    plan = PairPlan(neighborhood, examples, recipe.pairing, recipe.base_draw, recipe.loss_weights)
    return EpisodicSampler(bank, plan, recipe.novel_per_episode, recipe.shots_per_episode)


def measure(name: str, device: torch.device, *, with_svd: bool) -> dict[str, Any]:
    """Time one episode of every version."""
    size = SIZES[name]
    bank, factors = gaussian_bank(size, device)
    sampler, generator = make_sampler(size, bank), torch.Generator(device).manual_seed(0)

    def episode(step: TrainingStep) -> None:
        step(sampler.draw(generator), generator)

    ours = partial(episode, make_step(TrainingStep, size, factors))
    actions: dict[str, Callable[[], Any]] = {"this package": ours, "matrix products alone": matrix_products(ours)}
    found = alternating_seconds(actions, device)
    if with_svd:
        straightforward = partial(episode, make_step(StraightforwardStep, size, factors))
        found["with torch.linalg.svd"] = seconds(straightforward, device, repeats=1, warm_up=0)
    return {"size": name, "device": machine(device), "milliseconds": {key: 1e3 * each for key, each in found.items()}}


def train_quick(bank: Path, setup: Path, device: str) -> dict[str, Any]:
    """Train the recipe quick on the base classes of a bank."""
    base = read_bank(bank).train.select(read_setup(setup).base)
    start = time.perf_counter()
    CPAAN(recipe="quick", random_state=0, device=device).fit(*base.to_numpy())
    return {"bank": bank.name, "examples": len(base), "classes": base.n_classes, "seconds": time.perf_counter() - start}


def show(record: dict[str, Any]) -> str:
    """Lay a record out as a table."""
    times = record["milliseconds"]
    floor, ours = times["matrix products alone"], times["this package"]
    rows = [[name, f"{each:.2f}", f"{each / floor:.2f}", f"{each / ours:.2f}"] for name, each in times.items()]
    table = markdown_table([f"{record['size']}, {record['device']}", "ms an episode", "÷ floor", "÷ ours"], rows)
    return table + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=["quick", "drawn"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-svd", action="store_true")
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--setup", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    records = []
    for name in options.size:
        records.append(measure(name, device, with_svd=not options.without_svd))
        print(show(records[-1]))
    record: dict[str, Any] = {"episodes": records}
    if options.bank and options.setup:
        record["quick"] = trained = train_quick(options.bank, options.setup, options.device)
        print(f"recipe quick on {trained['bank']}: {trained['seconds']:.1f} s, {record['episodes'][0]['device']}")
    write_record(options.output, record)


if __name__ == "__main__":
    main()
