"""One cell of the benchmark: a method, a number of shots and a trial, evaluated in both settings."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.evaluation.fitted_methods import FittedMethods, augment
from cpaan.evaluation.realism import spread
from cpaan.evaluation.run_folder import Row
from cpaan.evaluation.scores import LowShotScores, evaluate_low_shot
from cpaan.threads import limited_threads

TOP = (1, 5)


@dataclass(frozen=True)
class Cell:
    """A method with its final classifier, the number of shots K, and the trial that draws them."""

    method: str
    classifier: str
    shots: int
    trial: int
    seed: int  # of the run


def run_cell(data: BenchmarkData, fitted: FittedMethods, cell: Cell) -> list[Row]:
    """Train and test the final classifier; returns a row for LSL and one for GLSL."""
    start = time.perf_counter()
    with limited_threads(1):
        shots = data.shots(cell.trial, cell.shots)
        made, made_labels = np.empty((0, shots.dimension), np.float32), np.empty(0, np.int64)
        augmenter = fitted.augmenters[cell.method]
        if augmenter is not None:
            made, made_labels = augment(augmenter, shots, cell_seed(cell.seed, cell.trial, cell.shots))
        classifier = fitted.classifier(cell.method, cell.classifier)
        scores = _score(data, shots, made, made_labels, classifier)
        realism = _realism(data, made, made_labels)
    seconds = round(time.perf_counter() - start, 3)
    return [
        {
            "method": cell.method,
            "setting": setting,
            "shots": cell.shots,
            "trial": cell.trial,
            **accuracies,
            "classifier": cell.classifier,
            "seed": cell.seed,
            **realism,
            "seconds": seconds,
        }
        for setting, accuracies in _accuracies(scores).items()
    ]


def cell_seed(seed: int, trial: int, shots: int) -> int:
    """Derive a seed per cell, independent of which cells ran before, and where."""
    return int(np.random.SeedSequence([seed, trial, shots]).generate_state(1)[0] >> 1)


def _score(
    data: BenchmarkData, shots: FeatureSet, made: NDArray[Any], made_labels: NDArray[np.int64], classifier: Any
) -> LowShotScores:
    """Test on numbered classes, base first: class names may be of types that do not sort together."""
    n_base = data.base_train.n_classes
    X = np.concatenate([data.base_train.features, shots.features, made.astype(np.float32, copy=False)])
    y = np.concatenate([data.base_train.labels, n_base + shots.labels, n_base + made_labels])
    X_test = np.concatenate([data.base_test.features, data.novel_test.features])
    y_test = np.concatenate([data.base_test.labels, n_base + data.novel_test.labels])
    return evaluate_low_shot(classifier.fit(X, y), X_test, y_test, n_base + np.arange(shots.n_classes), TOP)


def _realism(data: BenchmarkData, made: NDArray[Any], made_labels: NDArray[np.int64]) -> dict[str, float | None]:
    if not len(made):
        return {"diversity": None, "real_diversity": None, "covariance_distance": None}
    return asdict(spread(made, made_labels, data.novel_test.features, data.novel_test.labels))


def _accuracies(scores: LowShotScores) -> dict[str, dict[str, float | None]]:
    """Name the accuracies of each setting; LSL has no parts."""
    parts = {"base": scores.glsl_base, "novel": scores.glsl_novel, "harmonic": scores.glsl_harmonic}
    of_parts = {f"{part}_top{k}": values[k] for part, values in parts.items() for k in TOP}
    return {
        "LSL": {**{f"top{k}": scores.lsl[k] for k in TOP}, **dict.fromkeys(of_parts)},
        "GLSL": {**{f"top{k}": scores.glsl[k] for k in TOP}, **of_parts},
    }
