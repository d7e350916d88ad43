"""From which size of the work a second thread pays, on a quiet machine and on a busy one.

Usage: python benchmarks/threads.py [--busy 4] [--only TEXT] [--rounds 7] [--output threads.json]

Every row is one kind of work at one size, done with one thread and with two in turns: products of square matrices by
torch (single precision) and by NumPy (double); an episode of training with a recipe on so many features (`default` has
episodes like those of `quick`, and `drawn` is as in `benchmarks/training.py`); the factors and products of the centre
search; the linear classifier; and empirical Bayes. "Multiplications" are what the package passes to
`cpaan.threads.threads_for`. "Two threads" says how many times faster two are than one, below 1 slower: by the best of
all rounds, and by the median, which on a busy machine is what one sees. The package's own choice is switched off.

With `--busy N` all is measured again while N other processes do nothing but compute. The load is printed: on a machine
that has other work already, the first part is not quiet either.
"""

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import cpaan.threads
from cpaan import EmpiricalBayes, LinearClassifier
from cpaan.centers.calibrated import RIDGES, posterior_means, search_multiplications
from cpaan.gan.loop import episode_multiplications
from cpaan.gan.objective import TrainingStep
from cpaan.reporting.tables import markdown_table
from cpaan.threads import limited_threads, of_covariance
from measure import seconds, write_record
from training import SIZES, gaussian_bank, make_sampler, make_step

CPU = torch.device("cpu")
Work: TypeAlias = tuple[Callable[[], Any], float]  # what to time, and its multiplications
SIDES = (64, 128, 256, 384, 512, 768, 1024)
EPISODES = (("quick", 384), ("quick", 512), ("quick", 576), ("drawn", 384), ("drawn", 576), ("paper", 512))
SEARCHES = (64, 256, 384, 576, 1024)
LINEAR = ((600, 64, 20), (1_000, 384, 50), (5_000, 384, 100), (20_000, 512, 100))
BAYES = ((600, 64), (600, 576), (5_000, 384), (20_000, 512))
CLASSES = 50
NUMBERS = (1, 2)


def torch_product(side: int) -> Work:
    """Multiply in single precision."""
    a, b = torch.randn(2, side, side)
    return lambda: [a @ b for _ in range(10)], side**3


def numpy_product(side: int) -> Work:
    """Multiply in double precision."""
    a, b = np.random.default_rng(0).normal(size=(2, side, side))
    return lambda: [a @ b for _ in range(10)], side**3


def episode(recipe: str, dimension: int) -> Work:
    """Train on one episode."""
    size = replace(SIZES[recipe], dimension=dimension, classes=80)
    bank, factors = gaussian_bank(size, CPU)
    step, sampler = make_step(TrainingStep, size, factors), make_sampler(size, bank)
    generator = torch.Generator().manual_seed(0)
    return lambda: step(sampler.draw(generator), generator), episode_multiplications(step)


def center_search(dimension: int) -> Work:
    """Compute the posterior means of a fold with every ridge."""
    rng = np.random.default_rng(0)
    between, within = (torch.as_tensor(np.cov(rng.normal(size=(dimension, 2 * dimension)))) for _ in range(2))
    centroids = torch.as_tensor(rng.normal(size=(CLASSES, dimension)))
    action = partial(_with_every_ridge, between, within, centroids)
    return action, search_multiplications(dimension)


def _with_every_ridge(between: torch.Tensor, within: torch.Tensor, centroids: torch.Tensor) -> None:
    for ridge in RIDGES:
        posterior_means(between, within, ridge, centroids, 1)


def linear(n: int, dimension: int, classes: int) -> Work:
    """Fit the linear classifier, a few steps."""
    classifier = LinearClassifier(max_iterations=20, max_passes=10)
    return partial(classifier.fit, *labelled(n, dimension, classes)), n * dimension * classes


def bayes(n: int, dimension: int) -> Work:
    """Fit empirical Bayes."""
    return partial(EmpiricalBayes().fit, *labelled(n, dimension, CLASSES)), of_covariance(n, dimension)


def labelled(n: int, dimension: int, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw Gaussian classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    return rng.normal(size=(classes, dimension))[labels] + 2 * rng.normal(size=(n, dimension)), labels


def all_work() -> dict[str, Callable[[], Work]]:
    """Name what is timed."""
    return {
        **{f"torch product, {side}³": partial(torch_product, side) for side in SIDES},
        **{f"NumPy product, {side}³": partial(numpy_product, side) for side in SIDES},
        **{f"episode, {name}, D = {dimension}": partial(episode, name, dimension) for name, dimension in EPISODES},
        **{f"centre search, D = {dimension}": partial(center_search, dimension) for dimension in SEARCHES},
        **{f"linear classifier, {n:,} × {d} × {c}": partial(linear, n, d, c) for n, d, c in LINEAR},
        **{f"empirical Bayes, {n:,} × {d}": partial(bayes, n, d) for n, d in BAYES},
    }


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep so many processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(name: str, work: Work, rounds: int) -> dict[str, Any]:
    """Time one kind of work with one thread and with two, in turns."""
    action, multiplications = work
    taken: dict[int, list[float]] = {number: [] for number in NUMBERS}
    for turn in range(rounds):
        for number, of_number in taken.items():
            with limited_threads(number):
                of_number.append(seconds(action, CPU, repeats=1, warm_up=int(turn == 0)))
    one, two = taken.values()
    return {
        "work": name,
        "multiplications": multiplications,
        "milliseconds": [1e3 * min(one), 1e3 * min(two)],
        "best": min(one) / min(two),
        "median": median(one) / median(two),
    }


def table(part: dict[str, Any]) -> str:
    """Lay out what was measured, smallest first."""
    headline = f"{part['busy']} busy processes beside; load before {part['load']:.1f}"
    columns = ["work", "multiplications", "one thread, ms", "two, ms", "two threads, best", "median"]
    rows = [
        [
            row["work"],
            f"{row['multiplications']:.1e}",
            *(f"{milliseconds:.2f}" for milliseconds in row["milliseconds"]),
            f"{row['best']:.2f}",
            f"{row['median']:.2f}",
        ]
        for row in sorted(part["rows"], key=lambda row: float(row["multiplications"]))
    ]
    return f"{headline}\n\n{markdown_table(columns, rows)}\n\n{pays_from(part['rows'])}\n\n"


def pays_from(rows: list[dict[str, Any]]) -> str:
    """Say from which size on a second thread pays in every row: by a tenth at least, in the best of all rounds."""
    size = max((row["multiplications"] for row in rows if row["best"] < 1.1), default=0)
    larger = [row["multiplications"] for row in rows if row["multiplications"] > size]
    return f"a second thread pays in every row from {min(larger):.1e} on" if larger else "it never pays in every row"


def main() -> None:
    """Measure all, quiet and busy; print tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside, in a second part")
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if torch.get_num_threads() < max(NUMBERS):
        parser.error("two threads are needed, and torch has one; unset OMP_NUM_THREADS")
    cpaan.threads.ENOUGH_TO_SHARE = 0
    warnings.simplefilter("ignore", ConvergenceWarning)
    record: dict[str, Any] = {"cores": os.cpu_count(), "parts": []}
    for number in dict.fromkeys((0, options.busy)):
        part: dict[str, Any] = {"busy": number, "load": os.getloadavg()[0], "rows": []}
        record["parts"].append(part)
        with busy(number):
            for name, prepare in all_work().items():
                if options.only in name:
                    part["rows"].append(measure(name, prepare(), options.rounds))
        sys.stdout.write(table(part))
        write_record(options.output, record)


if __name__ == "__main__":
    main()
