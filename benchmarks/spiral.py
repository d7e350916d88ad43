"""How well each variant fills the unseen arms of the spiral: coverage and energy distance over seeds.

Usage: python benchmarks/spiral.py [--seeds 5] [--output spiral.json]

Coverage is the share of unseen real points of a novel arm with a synthetic point within a tenth of the spiral's radius;
energy distance is taken between the unseen arm and as many synthetic points.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from cpaan.data.toys import make_spiral
from cpaan.demo.spiral import fit_spiral
from cpaan.evaluation.realism import coverage, energy_distance
from cpaan.evaluation.run_folder import mean_interval
from cpaan.gan.objective import VARIANTS
from cpaan.reporting.tables import markdown_table

RADIUS = 0.1
POINTS = 496  # as many as there are unseen points in an arm


def measure(variant: str, seed: int) -> tuple[float, float]:
    """Train one variant on one spiral; give coverage and energy distance, averaged over the two arms."""
    torch.set_num_threads(1)
    split = make_spiral(random_state=seed)
    augmenter = fit_spiral(split, variant, seed)
    features, labels = augmenter.augment(split.shots.features, split.shots.names, per_class=POINTS)
    found = [
        (coverage(real, made, RADIUS), energy_distance(real, made))
        for real, made in ((split.unseen.of_class(arm), features[labels == arm]) for arm in split.novel_classes)
    ]
    covered, energy = np.mean(found, axis=0)
    return float(covered), float(energy)


def main() -> None:
    """Measure every variant on every seed; print a table and write the single figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("spiral.json"))
    options = parser.parse_args()
    cells = [(variant, seed) for variant in VARIANTS for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.jobs) as pool:
        results = list(pool.map(measure, *zip(*cells, strict=True)))
    rows, record = [], {}
    for variant in VARIANTS:
        found = [result for (name, _), result in zip(cells, results, strict=True) if name == variant]
        covered, energy = ([pair[i] for pair in found] for i in range(2))
        record[variant] = {"coverage": covered, "energy_distance": energy}
        intervals = mean_interval(covered), mean_interval(energy)
        rows.append([variant, *(f"{i.mean:.3f} ± {i.half_width:.3f}" for i in intervals)])
    options.output.write_text(json.dumps(record, indent=1))
    sys.stdout.write(markdown_table(["variant", "coverage", "energy distance"], rows) + "\n")


if __name__ == "__main__":
    main()
