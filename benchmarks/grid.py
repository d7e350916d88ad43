"""Time the whole grid of the benchmark on a bank of features, and compare it with a plain implementation.

Usage: python benchmarks/grid.py bank.npz --setup setup.json [--methods none,empirical-bayes,ccov-gan]
           [--classifiers nearest-prototype,linear] [--normalize l2] [--jobs 2] [--output grid.json]

For every method and final classifier, `cpaan bench` runs in its own process, from start to table: it reads the bank and
evaluates 5 numbers of shots × 5 trials, each in both settings. `none` is the classifier without augmentation. Trained
methods run twice, the second time with the networks of the first: the second run is the time of the grid, the
difference that of training.

The plain implementation of the linear classifier trains to the end, on all examples, in double precision. Both do each
cell of the first trial in turn, in one process and on one thread; the table shows the ratio of their processor seconds
and the largest difference of an accuracy, in points.

Wall-clock seconds depend on the load of the machine; processor seconds of all processes depend on it less.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cpaan.data.benchmark import BenchmarkData, load_benchmark
from cpaan.evaluation.benchmark import Plan, normalize
from cpaan.evaluation.cell import Cell, run_cell
from cpaan.evaluation.fitted_methods import FittedMethods, fit_methods
from cpaan.evaluation.run_folder import MODELS, SHOTS, Row
from cpaan.methods import Settings, make_augmenter
from cpaan.reporting.tables import markdown_table

TRIALS = 5
MEASURES = ("top1", "top5")


def method_name(method: str, classifier: str) -> str:
    """Name a method as `cpaan bench` does: without augmentation, by its classifier."""
    return classifier if method == "none" else method


def is_trained(method: str) -> bool:
    """Check whether a method has a training recipe; others fit in a moment, if at all."""
    return method != "none" and "recipe" in make_augmenter(method, Settings()).get_params(deep=False)  # type: ignore[no-untyped-call]


def run_grid(options: argparse.Namespace, method: str, classifier: str, folder: Path) -> dict[str, float]:
    """Run the command; return wall-clock and processor seconds."""
    command = [sys.executable, "-m", "cpaan", "bench", str(options.bank), "--setup", str(options.setup)]
    command += ["--methods", method_name(method, classifier), "--classifier", classifier, "-o", str(folder)]
    command += ["--normalize", options.normalize, "--jobs", str(options.jobs), "--device", "cpu"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def forget_results(folder: Path) -> None:
    """Keep only the trained models of a run, as if it had been interrupted before the first cell."""
    for name in ("results.jsonl", "results.csv", "DONE"):
        (folder / name).unlink()


def measure_grid(options: argparse.Namespace, method: str, classifier: str, folder: Path) -> dict[str, Any]:
    """Time the grid, and training separately."""
    first = run_grid(options, method, classifier, folder)
    if not is_trained(method):
        return {**first, "training": None}
    forget_results(folder)
    second = run_grid(options, method, classifier, folder)
    return {**second, "training": {name: first[name] - second[name] for name in first}}


def timed_cell(data: BenchmarkData, fitted: FittedMethods, cell: Cell) -> tuple[float, list[Row]]:
    """Evaluate a cell; return its processor seconds and its rows."""
    start = time.process_time()
    rows = run_cell(data, fitted, cell)
    return time.process_time() - start, rows


def compare(options: argparse.Namespace, method: str, data: BenchmarkData, models: Path) -> dict[str, float]:
    """Run the linear cells of the first trial both ways, in turn."""
    name = method_name(method, "linear")
    plan, plain_plan = (
        Plan((name,), trials=1, classifier="linear", settings={"device": "cpu", **settings})
        for settings in ({}, {"precision": "double"})
    )
    fast, plain = (
        fit_methods({name: "linear"}, data.base_train, each.method_settings(), models, None)
        for each in (plan, plain_plan)
    )
    totals, worst = [0.0, 0.0], 0.0
    for cell in plan.cells():
        (fast_seconds, rows), (plain_seconds, plain_rows) = (timed_cell(data, each, cell) for each in (fast, plain))
        totals = [totals[0] + fast_seconds, totals[1] + plain_seconds]
        differences = [abs(a[k] - b[k]) for a, b in zip(rows, plain_rows, strict=True) for k in MEASURES]
        worst = max(worst, *differences)
    n = len(plan.cells())
    return {"cell": totals[0] / n, "plain_cell": totals[1] / n, "ratio": totals[1] / totals[0], "difference": worst}


def table(record: dict[str, Any]) -> str:
    """Lay out the measurements."""
    rows, cells = [], len(SHOTS) * TRIALS
    for found in record["grids"]:
        training, plain = found["training"], found.get("plain")
        rows.append(
            [
                found["method"],
                found["classifier"],
                f"{found['seconds']:.1f}",
                f"{found['processor']:.1f}",
                f"{found['processor'] / cells:.2f}",
                "–" if training is None else f"{training['seconds']:.1f} ({training['processor']:.1f})",
                "–" if plain is None else f"{plain['plain_cell']:.2f} : {plain['cell']:.2f} = {plain['ratio']:.1f}",
                "–" if plain is None else f"{plain['difference']:.2f}",
            ]
        )
    columns = [
        "method",
        "final classifier",
        "grid, s",
        "processor, s",
        "processor, s per cell",
        "training, s (processor)",
    ]
    columns += ["plain cell : cell, processor s", "largest difference in points"]
    headline = f"{record['bank']}, {record['normalize']}, {record['jobs']} processes; load before {record['load']:.1f}"
    return f"{headline}\n\n{markdown_table(columns, rows)}\n"


def main() -> None:
    """Measure every method with every classifier; print a table and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--setup", type=Path, required=True)
    parser.add_argument("--methods", default="none,empirical-bayes,ccov-gan")
    parser.add_argument("--classifiers", default="nearest-prototype,linear")
    parser.add_argument("--normalize", default="l2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--without-plain", action="store_true", help="skip the plain implementation")
    parser.add_argument("--output", type=Path, default=Path("grid.json"))
    options = parser.parse_args()
    record: dict[str, Any] = {
        "bank": options.bank.stem,
        "normalize": options.normalize,
        "jobs": options.jobs,
        "load": os.getloadavg()[0],
        "grids": [],
    }
    data = normalize(load_benchmark(options.bank, options.setup), options.normalize)
    for method in options.methods.split(","):
        for classifier in options.classifiers.split(","):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "run"
                found = measure_grid(options, method, classifier, folder)
                if classifier == "linear" and not options.without_plain:
                    found["plain"] = compare(options, method, data, folder / MODELS)
            record["grids"].append({"method": method, "classifier": classifier, **found})
            options.output.write_text(json.dumps(record, indent=1))
    sys.stdout.write(table(record))


if __name__ == "__main__":
    main()
