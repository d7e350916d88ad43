"""How long it takes to make examples of novel classes, beside the generator's matrix products alone.

Usage: python benchmarks/generation.py [--classes 300] [--per-class 1300] [--device cpu] [--output generation.json]

The generator has the paper's size, 512 features and 512 units in each hidden layer, and translates the examples that
a model of 196 base classes keeps. Its weights are random: they do not change the time. Both are timed in turns.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from cpaan.deviations.summary import BaseSummary
from cpaan.deviations.translator import Translator
from cpaan.gan.networks import Architecture, build_networks
from cpaan.gan.recipe import PAPER
from cpaan.reporting.tables import markdown_table
from cpaan.training.bank import ClassBank
from measure import alternating_seconds, machine, matrix_products, write_record

BASE, KEPT, D = 196, 100, 512


def make_model(device: torch.device) -> Translator:
    """Put together a model of the paper's size."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(BASE).repeat_interleave(KEPT)
    kept = ClassBank.from_examples(torch.randn(BASE * KEPT, D, generator=generator).half(), labels, BASE)
    base = BaseSummary(
        counts=torch.full((BASE,), KEPT),
        prototypes=torch.randn(BASE, D, generator=generator),
        factors=torch.zeros(BASE, 1, D).half(),
        tails=torch.zeros(BASE),
        reservoir=kept,
    )
    shape = Architecture(
        dimension=D,
        width=PAPER.width,
        noise_dimension=PAPER.noise_dimension,
        noise_components=PAPER.noise_components,
        cycle=False,
        residual=False,
        gain=1.0,
        negative_slope=PAPER.negative_slope,
    )
    networks = build_networks(shape, 0).requires_grad_(False)
    return Translator(networks, base, PAPER, "ccov-gan", temperature=2.0 * D).to(device)


def measure(classes: int, per_class: int, device: torch.device) -> dict[str, Any]:
    """Time making the examples, and its products."""
    model, generator = make_model(device), torch.Generator(device).manual_seed(0)
    prototypes = torch.randn(classes, D, device=device)
    wanted = torch.full((classes,), per_class, device=device)

    def make() -> None:
        model.make(prototypes, wanted, generator)

    found = alternating_seconds({"made": make, "products": matrix_products(make)}, device, rounds=3, repeats=1)
    return {
        "shape": [classes, per_class, D],
        "device": machine(device),
        **found,
        "ratio": found["made"] / found["products"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--per-class", type=int, default=1300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    record = measure(options.classes, options.per_class, torch.device(options.device))
    title = f"{options.classes} × {options.per_class} examples of {D} features, {record['device']}"
    rows = [
        ["made", f"{record['made']:.3f}", f"{record['ratio']:.2f}"],
        ["matrix products alone", f"{record['products']:.3f}", "1.00"],
    ]
    print(markdown_table([title, "seconds", "÷ floor"], rows))
    write_record(options.output, record)


if __name__ == "__main__":
    main()
