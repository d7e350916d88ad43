"""Whether memory stays flat while one process trains and augments over and over.

Usage: python benchmarks/soak.py [--minutes 30] [--warm-up 0.1] [--methods ccov-gan,smote] [--output soak.json]

Each round trains every method on base classes, augments novel classes, and throws both away. Resident memory is read
after each round. The first part of the time, and three rounds at least, is a warm-up in which libraries take what they
keep; after that the median of the last tenth of the rounds is compared with that of the first tenth. Exits with 1
where they differ by more than 2 %.
"""

import argparse
import gc
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.methods import METHODS, Settings
from cpaan.reporting.tables import markdown_table
from measure import write_record

CLASSES, EXAMPLES, SHOTS, DIMENSION = 20, 20, 3, 32
TRAINING: dict[str, Any] = {"episodes": 10, "iterations": 10, "centroids": 5, "batch_size": 100}
LEAST_ROUNDS = 3
ALLOWED = 0.02
MEGABYTE = 1e6


def resident() -> float:
    """Give this process's resident memory in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    raise SystemExit("this system does not tell the resident memory of a process")


def gaussian_classes(n: int, per_class: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    """Draw classes about centres of their own."""
    rng = np.random.default_rng(seed)
    features = 2 * rng.normal(size=(n, 1, DIMENSION)) + rng.normal(size=(n, per_class, DIMENSION))
    return features.reshape(-1, DIMENSION).astype(np.float32), np.repeat([f"{seed}-{c}" for c in range(n)], per_class)


def play_round(methods: list[str], number: int) -> int:
    """Train and augment with every method, on data of the round; gives how many examples were made."""
    base, novel = gaussian_classes(CLASSES, EXAMPLES, 2 * number), gaussian_classes(5, SHOTS, 2 * number + 1)
    made = 0
    for method in methods:
        make = METHODS[method].augmenter
        if make is None:
            raise SystemExit(f"{method} makes no examples")
        settings = Settings(recipe="quick", device="cpu", random_state=number, numbers=TRAINING)
        features, _ = make(settings).fit(*base).augment(*novel)
        if not np.isfinite(features).all():
            raise SystemExit(f"{method} made features that are not finite in round {number}")
        made += len(features)
    return made


def soak(methods: list[str], minutes: float, warm_up: float) -> dict[str, Any]:
    """Play rounds until the time is over; gives the memory after each of them."""
    start, made = time.monotonic(), 0
    memory: list[float] = []
    seconds: list[float] = []
    while not seconds or seconds[-1] < 60 * minutes or len(seconds) <= LEAST_ROUNDS:
        made += play_round(methods, len(memory))
        gc.collect()  # what only waits to be collected is no leak
        memory.append(resident())
        seconds.append(time.monotonic() - start)
    left_out = max(LEAST_ROUNDS, sum(second < 60 * minutes * warm_up for second in seconds))
    left_out = min(left_out, len(memory) - 1)
    kept = memory[left_out:]
    tenth = max(1, len(kept) // 10)
    first, last = statistics.median(kept[:tenth]), statistics.median(kept[-tenth:])
    return {
        "methods": methods,
        "minutes": seconds[-1] / 60,
        "rounds": len(memory),
        "rounds_of_warm_up": left_out,
        "examples": made,
        "first_megabytes": first,
        "last_megabytes": last,
        "largest_megabytes": max(kept),
        "growth": last / first - 1,
        "seconds": seconds,
        "megabytes": memory,
    }


def table(record: dict[str, Any]) -> str:
    """Lay out the memory after about a dozen of the rounds, and what follows from all."""
    places = sorted({round(place) for place in np.linspace(0, record["rounds"] - 1, 12)})
    rows = [[f"{n + 1}", f"{record['seconds'][n] / 60:.1f}", f"{record['megabytes'][n]:.1f}"] for n in places]
    shown = markdown_table(["round", "minutes", "resident, MB"], rows)
    return (
        f"{shown}\n\n{record['rounds']} rounds in {record['minutes']:.1f} minutes, {record['examples']:,} examples; "
        f"after {record['rounds_of_warm_up']} rounds of warm-up from {record['first_megabytes']:.1f} MB to "
        f"{record['last_megabytes']:.1f} MB: {100 * record['growth']:+.2f} %\n"
    )


def main() -> None:
    """Play, print, and tell by the exit status whether memory was flat."""
    every = [name for name, method in METHODS.items() if method.augmenter is not None]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=0.1, help="share of the time that is left out")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=every, help="by default all")
    parser.add_argument("--output", type=Path, help="write JSON here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # that an episode has fewer classes than asked for is known
    record = soak(options.methods, options.minutes, options.warm_up)
    sys.stdout.write(table(record))
    write_record(options.output, record)
    sys.exit(int(abs(record["growth"]) > ALLOWED))


if __name__ == "__main__":
    main()
