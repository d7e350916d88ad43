"""How long an episode of cCov-GAN takes, beside its matrix products alone and a straightforward implementation.

Usage: python benchmarks/training.py [--size quick|drawn|paper …] [--device cpu|cuda] [--without-svd]
           [--bank features.npz --setup setup.json] [--agreement EPISODES] [--whole [EPISODES]] [--output training.json]

Sizes: `drawn` is the paper's (196 base classes, 512 features, 20 meta-novel classes of 10 shots, 1,000 examples) with
pairs drawn by similarity and the 80 class pairs of largest weight, base covariances of rank 64; `paper` is the literal
recipe, where every base example goes to every meta-novel class and all 3,520 class pairs count; `quick` is the recipe
of that name on 80 classes of 384 features. Classes are Gaussian with a decaying spectrum.

Versions: this package's training, on a GPU captured as one graph with layers in half precision; there also the same
step by step and in single precision; the same with `torch.linalg.svd` of every covariance difference and its own
derivative; and the floor, the matrix products of this package's step done again with nothing between them, captured
as well. All are timed in turns in one run, so that the ratios hold on a busy machine too.

With a bank the recipe quick is also trained to its end on the bank's base classes. `--agreement` compares the losses of
the last tenth of so many episodes, a GPU's precision against single precision step by step, three seeds each.
`--whole` trains `drawn` for as many episodes as the paper, 100,000, or as many as it says.
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
from cpaan.data.class_split import read_setup
from cpaan.data.files import read_bank
from cpaan.gan.cuda_graph import CudaGraph, DrawnAhead
from cpaan.gan.episodes import Episode, EpisodicSampler, PairPlan
from cpaan.gan.networks import Architecture, build_networks
from cpaan.gan.objective import Pairs, TrainingStep, find_variant
from cpaan.gan.recipe import Recipe, make_recipe
from cpaan.math.covariance import deviation_factor
from cpaan.math.ky_fan_cuda import fast_products
from cpaan.math.losses import heaviest_pairs
from cpaan.math.neighborhood import SoftNeighborhood
from cpaan.reporting.tables import markdown_table
from cpaan.training.bank import ClassBank
from cpaan.training.device import layer_precision
from cpaan.training.progress import History
from measure import alternating_seconds, machine, matrix_products, seconds, write_record

PER_CLASS = 60
IN_A_ROW = 50  # episodes on a GPU, which are asked for faster than they are done
SEEDS = 3
WHOLE = 100_000


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

    novel_classes: int | None = None  # that are looked at; all, unless said otherwise

    def _covariance_loss(self, episode: Episode, pairs: Pairs) -> Tensor:
        number = self.recipe.covariance_pairs
        wanted = len(episode.base_classes) if isinstance(number, str) else number
        weights, classes = heaviest_pairs(episode.class_weights, wanted)
        made = deviation_factor(pairs.to_novel)
        loss = weights.new_zeros(())
        for n, (row, chosen) in enumerate(zip(weights, episode.base_classes[classes], strict=True)):
            if n == self.novel_classes:
                break
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


def make_step(
    kind: type[TrainingStep], size: Size, factors: Tensor, precision: torch.dtype = torch.float32, seed: int = 0
) -> TrainingStep:
    """Build networks and the step that trains them."""
    recipe, variant = size.recipe, find_variant("ccov-gan")
    gain = (2 * size.dimension) ** 0.5 / recipe.within_distance if recipe.standardize else 1.0
    shape = Architecture(
        dimension=size.dimension,
        width=recipe.width,
        noise_dimension=recipe.noise_dimension,
        noise_components=recipe.noise_components,
        cycle=True,
        residual=recipe.generator == "residual",
        gain=gain,
        negative_slope=recipe.negative_slope,
    )
    return kind(build_networks(shape, seed).to(factors.device), variant, recipe, factors, precision)


def make_sampler(size: Size, bank: ClassBank) -> EpisodicSampler:
    """Choose how episodes are drawn, as training does."""
    recipe = size.recipe
    examples = recipe.batch_size - recipe.novel_per_episode * recipe.shots_per_episode
    if recipe.pairing == "drawn":
        examples //= recipe.novel_per_episode
    neighborhood = SoftNeighborhood(1.0 if isinstance(recipe.temperature, str) else recipe.temperature)
    plan = PairPlan(neighborhood, examples, recipe.pairing, recipe.base_draw, recipe.loss_weights)
    return EpisodicSampler(bank, plan, recipe.novel_per_episode, recipe.shots_per_episode)


class StraightforwardShare(StraightforwardStep):
    """The same for one novel class, where all would take minutes."""

    novel_classes = 1


class Trial:
    """A bank of one size, and everything that is done on it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.size, self.device = SIZES[name], device
        bank, self.factors = gaussian_bank(self.size, device)
        self.sampler = make_sampler(self.size, bank)

    def one_by_one(self, kind: type[TrainingStep], precision: torch.dtype, seed: int = 0) -> "Run":
        """Train step by step."""
        step = make_step(kind, self.size, self.factors, precision, seed)
        generator, history = torch.Generator(self.device).manual_seed(seed), History()

        def episode() -> None:
            history.add(step(self.sampler.draw(generator), generator))

        return Run(episode, history)

    def as_package(self, seed: int = 0) -> "Run":
        """Train as the package does."""
        if self.device.type != "cuda":
            return self.one_by_one(TrainingStep, torch.float32, seed)
        step = make_step(TrainingStep, self.size, self.factors, layer_precision(self.device), seed)
        generator, history = torch.Generator(self.device).manual_seed(seed), History()
        return Run(CudaGraph(DrawnAhead(step, self.sampler, generator, history), generator), history)


@dataclass(frozen=True)
class Run:
    """What does an episode, and where its losses go."""

    episode: Callable[[], None]
    history: History


def measure(name: str, device: torch.device, *, with_svd: bool) -> dict[str, Any]:
    """Time one episode of every version."""
    trial = Trial(name, device)
    on_gpu = device.type == "cuda"
    by_step = trial.one_by_one(TrainingStep, layer_precision(device)).episode
    products = matrix_products(by_step)
    actions: dict[str, Callable[[], Any]] = {"this package": trial.as_package().episode}
    if on_gpu:
        actions["the same, step by step"] = by_step
        actions["in single precision, step by step"] = trial.one_by_one(TrainingStep, torch.float32).episode
        products = CudaGraph(products, torch.Generator(device))
    actions["matrix products alone"] = products
    row = IN_A_ROW if on_gpu else 1
    rounds, repeats = (3, 1) if on_gpu else (10, 3)
    in_a_row = {key: partial(repeat, action, row) for key, action in actions.items()}
    found = alternating_seconds(in_a_row, device, rounds=rounds, repeats=repeats)
    found = {key: each / row for key, each in found.items()}
    if with_svd:
        share = StraightforwardShare if name == "paper" else StraightforwardStep
        label = "with torch.linalg.svd" + (", 20 times one novel class" if name == "paper" else "")
        straightforward = trial.one_by_one(share, torch.float32).episode
        times = trial.size.recipe.novel_per_episode if name == "paper" else 1
        found[label] = times * seconds(straightforward, device, repeats=1, warm_up=0)
    return {"size": name, "device": machine(device), "milliseconds": {key: 1e3 * each for key, each in found.items()}}


def repeat(action: Callable[[], Any], times: int) -> None:
    """Do something so many times."""
    for _ in range(times):
        action()


def agreement(name: str, device: torch.device, episodes: int) -> dict[str, Any]:
    """Compare the losses at the end of training between a GPU's precision and single precision, step by step."""
    trial = Trial(name, device)
    half = trial.as_package if device.type == "cuda" else partial(trial.one_by_one, TrainingStep, torch.bfloat16)
    ways: dict[str, Callable[[int], Run]] = {
        "layers in half precision": half,
        "single precision": partial(trial.one_by_one, TrainingStep, torch.float32),
    }
    found: dict[str, list[dict[str, float]]] = {}
    for way, start in ways.items():
        found[way] = []
        for seed in range(SEEDS):
            run = start(seed)
            repeat(run.episode, episodes - episodes // 10)
            run.history.log(0)
            repeat(run.episode, episodes // 10)
            found[way].append(run.history.log(episodes))
    return {"size": name, "episodes": episodes, "losses": found}


def whole(device: torch.device, episodes: int) -> dict[str, Any]:
    """Train for many episodes, as the paper does."""
    run = Trial("drawn", device).as_package()
    taken = seconds(partial(repeat, run.episode, episodes), device, repeats=1, warm_up=0)
    return {"episodes": episodes, "seconds": taken, "losses": run.history.log(episodes)}


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


def show_agreement(record: dict[str, Any]) -> str:
    """Lay losses out as a table: the mean over seeds and the range of them."""
    ways = list(record["losses"])
    rows = []
    for term in record["losses"][ways[0]][0]:
        values = [[losses[term] for losses in record["losses"][way]] for way in ways]
        rows.append([term, *(f"{sum(each) / len(each):.4f} ({min(each):.4f} to {max(each):.4f})" for each in values)])
    return markdown_table([f"{record['size']}, after {record['episodes']} episodes", *ways], rows) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=["quick", "drawn"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-svd", action="store_true")
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--setup", type=Path)
    parser.add_argument("--agreement", type=int)
    parser.add_argument("--whole", type=int, nargs="?", const=WHOLE)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    record: dict[str, Any] = {"episodes": []}
    with fast_products():
        for name in options.size:
            record["episodes"].append(measure(name, device, with_svd=not options.without_svd))
            print(show(record["episodes"][-1]), flush=True)
            if options.agreement:
                record.setdefault("agreement", []).append(agreement(name, device, options.agreement))
                print(show_agreement(record["agreement"][-1]), flush=True)
        if options.whole:
            record["whole"] = whole(device, options.whole)
            print(f"{options.whole:,} episodes of drawn: {record['whole']['seconds']:.1f} s", flush=True)
    if options.bank and options.setup:
        record["quick"] = trained = train_quick(options.bank, options.setup, options.device)
        print(f"recipe quick on {trained['bank']}: {trained['seconds']:.1f} s, {machine(device)}")
    write_record(options.output, record)


if __name__ == "__main__":
    main()
