"""What the recipes find on the base classes of a bank, and what noise about centres does to nearest neighbours.

Usage: python benchmarks/choices.py bank.npz --setup setup.json [--recipe quick] [--trials 2] [--per-class 100]

First what was found: the episodes that were trained, the size of novel classes, the ridge of the centres, and how
much of the variance within base classes the generator keeps by itself. Then the accuracy, on novel classes alone, of
nearest neighbours, which look at single examples: without augmentation, and with examples without and with noise.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from cpaan import CPAAN
from cpaan.centers import Calibrated
from cpaan.data.benchmark import BenchmarkData, load_benchmark
from cpaan.deviations import Translated
from cpaan.reporting.tables import markdown_table

NEIGHBORS = 5


def kept_variance(augmenter: CPAAN) -> float:
    """Give the share of the variance within base classes that made examples have before anything is added."""
    deviations, within = augmenter.deviations_, augmenter.center_.within_covariance()
    assert isinstance(deviations, Translated)
    residual = deviations.residual_
    assert residual is not None
    assert within is not None
    added = float(residual.factor.square().sum()) + residual.tail * residual.factor.shape[1]
    return 1 - added / float(within.diagonal().sum())


def accuracy(data: BenchmarkData, augmenter: CPAAN | None, noise: float, k: int, trial: int, per_class: int) -> float:
    """Give the accuracy of nearest neighbours, in percent, on novel classes alone."""
    shots = data.shots(trial, k)
    X, y = shots.features, shots.labels
    if augmenter is not None:
        augmenter.random_state = trial
        augmenter.center_.set_params(noise=noise)
        made, names = augmenter.augment(X, [("novel", int(label)) for label in y], per_class=per_class)
        X, y = np.concatenate([X, made]), np.concatenate([y, [name[1] for name in names]])
    neighbors = KNeighborsClassifier(NEIGHBORS if augmenter else min(NEIGHBORS, k))
    return 100 * float(neighbors.fit(X, y).score(data.novel_test.features, data.novel_test.labels))


def main() -> None:
    """Fit, tell what was found, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--setup", type=Path, required=True)
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--per-class", type=int, default=100)
    given = parser.parse_args()
    data = load_benchmark(given.bank, given.setup)
    base = data.base_train
    augmenter = CPAAN(recipe=given.recipe, random_state=0, device="cpu").fit(base.features, base.labels)
    center, episodes = augmenter.center_, augmenter.history_["episode"][-1]
    assert isinstance(center, Calibrated)
    print(
        f"{episodes} episodes, size {augmenter.size_}, ridge {center.constants_.ridge:g}; "
        f"{100 * kept_variance(augmenter):.0f} % of the variance kept\n",
        flush=True,
    )
    rows = []
    for k in (1, 5):
        for name, used, noise in (
            ("no augmentation", None, 0.0),
            ("without noise", augmenter, 0.0),
            ("with noise", augmenter, 1.0),
        ):
            found = [accuracy(data, used, noise, k, trial, given.per_class) for trial in range(given.trials)]
            rows.append([f"{k}", name, f"{np.mean(found):.1f}"])
    print(markdown_table(["shots", "examples", f"{NEIGHBORS} nearest neighbours"], rows))


if __name__ == "__main__":
    main()
