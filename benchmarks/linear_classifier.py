"""How long the linear classifier trains: against the matrix products of one pass, and against scikit-learn.

Usage: python benchmarks/linear_classifier.py [--classes 100] [--per-class 100] [--dimensions 128] [--full]
           [--features features.npz] [--output linear_classifier.json]

The data are Gaussian classes with a shared covariance of decaying spectrum and a few directions of their own, cut off
below like the features of a network, or a file of features. The floor is what one pass cannot do without: scores and
gradient, two matrix products in single precision. scikit-learn is left out above 10⁹ examples × dimensions × classes,
unless asked for, because it takes many minutes. `--full` means 500 classes of 500 examples in 512 dimensions.

Times of one run can be compared with each other and hardly with another run's; passes can.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from cpaan.classifiers.linear import LinearClassifier
from cpaan.data.files import read_bank
from cpaan.reporting.tables import markdown_table

Examples = tuple[npt.NDArray[Any], npt.NDArray[Any]]
FULL = {"classes": 500, "per_class": 500, "dimensions": 512}
TEST_PER_CLASS, OWN_DIRECTIONS = 40, 8
LARGEST_FOR_SCIKIT_LEARN = 10**9


def features_of(path: Path) -> tuple[Examples, Examples]:
    """Read training and test examples."""
    bank = read_bank(path)
    if bank.test is None:
        raise SystemExit(f"{path} has no rows for testing")
    training, test = ((part.features.astype(np.float32), part.names) for part in (bank.train, bank.test))
    return training, test


def gaussian_classes(options: argparse.Namespace) -> tuple[Examples, Examples]:
    """Draw training and test examples."""
    size = FULL if options.full else {name: getattr(options, name) for name in FULL}
    classes, per_class, dimensions = size.values()
    generator = np.random.default_rng(0)
    deviations = np.sqrt(4 / (np.arange(dimensions) + 4)).astype(np.float32)
    rotation = np.linalg.qr(generator.normal(size=(dimensions, dimensions)))[0].astype(np.float32)
    drawn: tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]] = ([], [])
    for _ in range(classes):
        mean = 0.4 * generator.standard_normal(dimensions, dtype=np.float32)
        own = 0.5 * generator.standard_normal((OWN_DIRECTIONS, dimensions), dtype=np.float32)
        for parts, count in zip(drawn, (per_class, TEST_PER_CLASS), strict=True):
            shared = generator.standard_normal((count, dimensions), dtype=np.float32)
            special = generator.standard_normal((count, OWN_DIRECTIONS), dtype=np.float32) @ own
            parts.append(np.maximum(((mean + shared + special) * deviations) @ rotation + 0.5, 0))
    training, test = ((np.concatenate(parts), np.repeat(np.arange(classes), len(parts[0]))) for parts in drawn)
    return training, test


def timed(action: Callable[[], Any]) -> float:
    """Give the seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def floor_seconds(X: npt.NDArray[Any], n_classes: int) -> float:
    """Time the two matrix products of a pass in single precision, the fastest of three."""
    weights, rows = np.ones((X.shape[1], n_classes), dtype=np.float32), 2048
    blocks = [X[start : start + rows].astype(np.float32) for start in range(0, len(X), rows)]
    return min(timed(lambda: [block.T @ (block @ weights) for block in blocks]) for _ in range(3))


def train(classifier: Any, training: Examples, test: Examples) -> dict[str, Any]:
    """Train a classifier; give time, passes and accuracy."""
    seconds = timed(lambda: classifier.fit(*training))
    # scikit-learn counts steps, each of which takes one pass or a few more.
    passes = classifier.n_passes_ if isinstance(classifier, LinearClassifier) else classifier.n_iter_.max()
    return {"seconds": seconds, "passes": int(passes), "accuracy": 100 * classifier.score(*test)}


def measure(training: Examples, test: Examples, options: argparse.Namespace) -> dict[str, Any]:
    """Train ours from nothing and from half of the examples, and scikit-learn's where that is feasible."""
    (X, y), n_classes = training, len(np.unique(training[1]))
    settings = {name: getattr(options, name) for name in ("weight_decay", "precision", "max_passes")}
    record: dict[str, Any] = {"shape": [*X.shape, n_classes], "weight_decay": options.weight_decay}
    record["floor_seconds"] = floor_seconds(X, n_classes)
    found = {"ours": train(LinearClassifier(**settings), training, test)}
    warm = LinearClassifier(**settings, warm_start=True).fit(X[::2], y[::2])
    found["ours, warm from half"] = train(warm, training, test)
    if options.with_scikit_learn or X.size * n_classes <= LARGEST_FOR_SCIKIT_LEARN:
        theirs: Any = LogisticRegression(C=1 / (len(y) * options.weight_decay), tol=1e-5, max_iter=500)
        found["scikit-learn"] = train(theirs, training, test)
    record["classifiers"] = found
    return record


def table(record: dict[str, Any]) -> str:
    """Lay out what was measured."""
    rows = []
    for name, found in record["classifiers"].items():
        multiple = found["seconds"] / record["floor_seconds"]
        figures = f"{found['seconds']:.2f}", f"{multiple:.1f}", str(found["passes"]), f"{found['accuracy']:.2f}"
        rows.append([name, *figures])
    n, dimensions, classes = record["shape"]
    headline = f"{n} × {dimensions}, {classes} classes; floor of a pass {record['floor_seconds']:.3f} s"
    columns = ["classifier", "seconds", "times the floor", "passes (scikit-learn: steps)", "test accuracy (%)"]
    return f"{headline}\n\n{markdown_table(columns, rows)}\n"


def main() -> None:
    """Measure at one size; print a table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--weight-decay", type=float, default=1e-3)
    parser.add_argument("--precision", default="single")
    parser.add_argument("--max-passes", type=int, default=20)
    parser.add_argument("--with-scikit-learn", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("linear_classifier.json"))
    options = parser.parse_args()
    training, test = features_of(options.features) if options.features else gaussian_classes(options)
    with warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        record = measure(training, test, options)
    options.output.write_text(json.dumps(record, indent=1))
    sys.stdout.write(table(record))


if __name__ == "__main__":
    main()
