"""How time and memory of `CPAAN.fit` grow with base classes, examples and dimensions.

Usage: python benchmarks/growth.py [--full] [--episodes 30] [--output growth.json] [--figures FOLDER]
           [--from growth.json]

Every bank is written to a temporary file in half precision and trained from a memory map, each in a process of its
own, whose peak of resident memory is the system's own figure. One of three sizes varies, the others are those of the
middle: 1,000 classes of 100 examples in 256 dimensions. `--full` means one bank instead: 10,000 classes of 1,000
examples in 768 dimensions, 15.4 GB, for 200 episodes unless told otherwise.

Slopes are of straight lines through logarithms: 1 is linear growth. That of memory counts what lies above a process
that has only imported the library. Seconds of work are those of all processors together, from which the slopes of time
are taken: on a machine that others use as well they say more than seconds on the clock.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.reporting.tables import markdown_table

Record = dict[str, Any]
MIDDLE = {"classes": 1000, "examples": 100, "dimensions": 256}
SWEEPS: dict[str, tuple[int, ...]] = {
    "classes": (100, 300, 1000, 3000, 10_000),
    "examples": (10, 100, 1000, 4000),
    "dimensions": (64, 128, 256, 512, 1024, 2048),
}
FULL = {"classes": 10_000, "examples": 1000, "dimensions": 768}
EPISODES, EPISODES_OF_FULL = 30, 200
POOL = 8192
GIGABYTE = 1e9


def gaussian_classes(classes: int, examples: int, dimensions: int) -> Iterator[npt.NDArray[np.float16]]:
    """Draw classes one after another: a centre, and deviations of decaying spectrum with a scale of the class's own."""
    generator = np.random.default_rng(0)
    spectrum = 1 / np.sqrt(np.arange(dimensions) + 1)
    rotation = np.linalg.qr(generator.normal(size=(dimensions, dimensions)))[0]
    pool = ((generator.normal(size=(POOL, dimensions)) * spectrum) @ rotation).astype(np.float32)
    for _ in range(classes):
        center = (2 * spectrum * generator.normal(size=dimensions)) @ rotation
        scale = generator.uniform(0.5, 1.5, dimensions).astype(np.float32)
        chosen = pool[generator.integers(POOL, size=examples)]
        yield (chosen * scale + center.astype(np.float32)).astype(np.float16)


def write_bank(path: Path, classes: int, examples: int, dimensions: int) -> None:
    """Write a bank as .npy, one class at a time."""
    header = {"descr": "<f2", "fortran_order": False, "shape": (classes * examples, dimensions)}
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in gaussian_classes(classes, examples, dimensions):
            file.write(block.data)


def resident(peak: bool) -> float:
    """Give this process's resident memory, now or at most, in gigabytes."""
    field = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / GIGABYTE
    raise SystemExit("this system does not tell the resident memory of a process")


def train(path: Path, examples: int, episodes: int) -> Record:
    """Train on a bank; give seconds and gigabytes."""
    from cpaan import CPAAN

    features = np.load(path, mmap_mode="r")
    labels = np.repeat(np.arange(len(features) // examples), examples)
    imported, told = resident(peak=False), [clocks()]
    augmenter = CPAAN(
        recipe="quick", episodes=episodes, random_state=0, device="cpu", tell=lambda _: told.append(clocks())
    )
    augmenter.fit(features, labels)
    ended = clocks()
    told_every = max(1, episodes // 100)
    between = np.median(np.diff(told[1:], axis=0), axis=0)
    prepared = told[1] - told[0] - between
    return {
        "preparation_seconds": prepared[0],
        "preparation_work": prepared[1],
        "episode_seconds": between[0] / told_every,
        "episode_work": between[1] / told_every,
        "summary_seconds": ended[0] - told[-1][0],
        "imported_gigabytes": imported,
        "peak_gigabytes": resident(peak=True),
    }


def clocks() -> npt.NDArray[np.float64]:
    """Give the time of the clock, and that of all processors that worked for this process."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(size: dict[str, int], episodes: int) -> Record:
    """Write a bank and train on it in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.npy"
        write_bank(path, **size)
        sys.stderr.write(f"training on {size}\n")
        command = [sys.executable, __file__, "--bank", str(path), "--of-class", str(size["examples"])]
        child = subprocess.run([*command, "--episodes", str(episodes)], check=True, stdout=subprocess.PIPE, text=True)
        found: Record = json.loads(child.stdout)
        return {**size, "file_gigabytes": path.stat().st_size / GIGABYTE, "episodes": episodes, **found}


def slope(sizes: list[float], values: list[float]) -> float:
    """Give the slope of a straight line through logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def slopes(records: list[Record], name: str) -> dict[str, float]:
    """Give how fast memory and times grow with a size."""
    sizes = [record[name] for record in records]
    return {
        "memory": slope(sizes, [record["peak_gigabytes"] - record["imported_gigabytes"] for record in records]),
        "preparation": slope(sizes, [record["preparation_work"] for record in records]),
        "episode": slope(sizes, [record["episode_work"] for record in records]),
    }


def table(records: list[Record]) -> str:
    """Lay out what was measured."""
    names = [*MIDDLE, "bank, GB", "preparation, s", "of work", "episode, ms", "of work", "peak, GB"]
    rows = [
        [
            *(f"{record[name]:,}" for name in MIDDLE),
            f"{record['file_gigabytes']:.3f}",
            f"{record['preparation_seconds']:.1f}",
            f"{record['preparation_work']:.1f}",
            f"{1000 * record['episode_seconds']:.0f}",
            f"{1000 * record['episode_work']:.0f}",
            f"{record['peak_gigabytes']:.2f}",
        ]
        for record in records
    ]
    return markdown_table(names, rows)


def draw(records: list[Record], name: str, folder: Path) -> Path:
    """Plot memory and times against a size."""
    from cpaan.reporting.figure import BLUE, GREEN, ORANGE, VERMILLION, new_figure, write_figure

    figure = new_figure(8, 3)
    memory, times = figure.subplots(1, 2)
    sizes, grown = [record[name] for record in records], slopes(records, name)
    for axes, key, label, colour, mark in (
        (memory, "peak_gigabytes", f"peak (growth {grown['memory']:.2f})", BLUE, "o-"),
        (memory, "file_gigabytes", "the bank on disk", ORANGE, "s--"),
        (times, "preparation_work", f"preparation (growth {grown['preparation']:.2f})", GREEN, "o-"),
        (times, "episode_work", f"one episode (growth {grown['episode']:.2f})", VERMILLION, "s--"),
    ):
        axes.loglog(sizes, [record[key] for record in records], mark, color=colour, label=label)
        axes.set_xlabel({"examples": "examples of each class", "classes": "base classes"}.get(name, name))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    memory.set_ylabel("resident memory, GB")
    times.set_ylabel("seconds of work")
    return write_figure(figure, folder / f"growth-{name}.png", resolution=110)


def sweep(episodes: int) -> dict[str, list[Record]]:
    """Vary one size after another."""
    return {name: [measure({**MIDDLE, name: size}, episodes) for size in sizes] for name, sizes in SWEEPS.items()}


def report(found: dict[str, list[Record]], figures: Path | None) -> str:
    """Lay out all tables with their slopes, and draw the figures."""
    parts = []
    for name, records in found.items():
        grown = ", ".join(f"{what} {value:.2f}" for what, value in slopes(records, name).items())
        parts.append(f"{table(records)}\n\nGrowth with {name}: {grown}\n")
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            draw(records, name, figures)
    return "\n".join(parts)


def main() -> None:
    """Measure, print tables, write figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the largest bank alone")
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--figures", type=Path, help="folder for plots")
    parser.add_argument("--from", dest="earlier", type=Path, help="lay out what an earlier run wrote")
    parser.add_argument("--bank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--of-class", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bank is not None:
        sys.stdout.write(json.dumps(train(options.bank, options.of_class, options.episodes)))
        return
    if options.full:
        record = measure(FULL, options.episodes or EPISODES_OF_FULL)
        sys.stdout.write(table([record]) + "\n")
        found: Any = record
    else:
        found = json.loads(options.earlier.read_text()) if options.earlier else sweep(options.episodes or EPISODES)
        sys.stdout.write(report(found, options.figures))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
