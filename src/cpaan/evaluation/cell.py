"""One cell of the grid: a method, a number of shots and a trial, evaluated in both settings."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.evaluation.diversity import spread
from cpaan.evaluation.learned import Learned
from cpaan.evaluation.protocol import LowShotScores, evaluate_low_shot
from cpaan.threads import limited_threads

TOP = (1, 5)
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What to evaluate.

    Attributes
    ----------
    method : name, for the record
    classifier : name of the final classifier
    shots, trial : K, and which draw of the shots
    seed : of the run; with the trial it decides what is generated
    """

    method: str
    classifier: str
    shots: int
    trial: int
    seed: int


def run_cell(data: BenchmarkData, learned: Learned, cell: Cell) -> list[Row]:
    """Train the final classifier and test it; gives a row for LSL and one for GLSL."""
    start = time.perf_counter()
    with limited_threads(1):
        shots = data.shots(cell.trial, cell.shots)
        made, made_labels = _augment(learned.augmenters[cell.method], shots, cell)
        classifier = learned.classifier(cell.method, cell.classifier)
        scores = _score(data, shots, made, made_labels, classifier)
        figures = _spread(data, made, made_labels)
    common = {"classifier": cell.classifier, "seed": cell.seed, **figures}
    seconds = round(time.perf_counter() - start, 3)
    return [
        {
            "method": cell.method,
            "setting": setting,
            "shots": cell.shots,
            "trial": cell.trial,
            **accuracies,
            **common,
            "seconds": seconds,
        }
        for setting, accuracies in (("LSL", _lsl(scores)), ("GLSL", _glsl(scores)))
    ]


def cell_seed(seed: int, trial: int, shots: int) -> int:
    """Give one seed for each cell: not to depend on which cells were done before, and by whom."""
    return int(np.random.SeedSequence([seed, trial, shots]).generate_state(1)[0] >> 1)


def _augment(augmenter: BaseAugmenter | None, shots: FeatureSet, cell: Cell) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if augmenter is None:
        return np.empty((0, shots.dimension), np.float32), np.empty(0, np.int64)
    augmenter.random_state = cell_seed(cell.seed, cell.trial, cell.shots)
    names = [("novel", int(label)) for label in shots.labels]
    made, made_names = augmenter.augment(shots.features, names)
    return np.asarray(made), np.array([name[1] for name in made_names], dtype=np.int64)


def _score(
    data: BenchmarkData, shots: FeatureSet, made: NDArray[Any], made_labels: NDArray[np.int64], classifier: Any
) -> LowShotScores:
    """Test with numbered classes, base first: names may be of types that cannot be sorted together."""
    n_base = data.base_train.n_classes
    X = np.concatenate([data.base_train.features, shots.features, made.astype(np.float32, copy=False)])
    y = np.concatenate([data.base_train.labels, n_base + shots.labels, n_base + made_labels])
    X_test = np.concatenate([data.base_test.features, data.novel_test.features])
    y_test = np.concatenate([data.base_test.labels, n_base + data.novel_test.labels])
    return evaluate_low_shot(classifier.fit(X, y), X_test, y_test, n_base + np.arange(shots.n_classes), TOP)


def _spread(data: BenchmarkData, made: NDArray[Any], made_labels: NDArray[np.int64]) -> dict[str, float | None]:
    if not len(made):
        return {"diversity": None, "real_diversity": None, "covariance_distance": None}
    return asdict(spread(made, made_labels, data.novel_test.features, data.novel_test.labels))


def _lsl(scores: LowShotScores) -> dict[str, float | None]:
    parts = ("base", "novel", "harmonic")
    empty: dict[str, float | None] = {f"{part}_top{k}": None for part in parts for k in TOP}
    return {**{f"top{k}": scores.lsl[k] for k in TOP}, **empty}


def _glsl(scores: LowShotScores) -> dict[str, float | None]:
    parts = {"base": scores.glsl_base, "novel": scores.glsl_novel, "harmonic": scores.glsl_harmonic}
    return {
        **{f"top{k}": scores.glsl[k] for k in TOP},
        **{f"{part}_top{k}": values[k] for part, values in parts.items() for k in TOP},
    }
