import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.reporting.tensorboard import TensorBoardBars
from cpaan.training.progress import Progress


class Shown:
    """Bars that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, title: str) -> Callable[[Progress], None]:
        return lambda progress: self.told.append((title, progress.episode))

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        return lambda done, total: self.told.append((title, done, total))


class Writer:
    """Remembers scalars as a SummaryWriter takes them."""

    made: dict[str, "Writer"]

    def __init__(self, folder: str) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False
        Writer.made[folder] = self

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_losses_are_shown_and_logged_for_each_training(tmp_path: Path) -> None:
    Writer.made = {}
    shown = Shown()
    bars = TensorBoardBars(shown, tmp_path / "logs", Writer)
    tell = bars("training ccov-gan")
    assert not Writer.made  # nothing is made before there is something to write
    tell(Progress(10, 20, {"cycle": 2.0, "covariance": 0.5}))
    bars.count("evaluating", "cells")(1, 4)
    same = {"method": "ccov-gan", "representation": "r", "setting": "LSL", "shots": 5, "top1": 50.0, "top5": 80.0}
    bars.accuracies([{**same, "trial": 0}, {**same, "trial": 1, "top5": 90.0}])
    bars.close()
    [(folder, writer)] = Writer.made.items()
    assert folder == str(tmp_path / "logs" / "ccov-gan")
    assert writer.scalars[:2] == [("loss/cycle", 2.0, 10), ("loss/covariance", 0.5, 10)]
    assert ("accuracy/LSL top5", 85.0, 5) in writer.scalars
    assert writer.closed
    assert shown.told == [("training ccov-gan", 10), ("evaluating", 1, 4)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    features = 4 * rng.normal(size=(6, 1, 5)) + rng.normal(size=(6, 15, 5))
    names = np.repeat([f"base{i}" for i in range(6)], 15)
    write_features(tmp_path / "base.npz", FeatureSet(features.reshape(-1, 5).astype(np.float32), names))
    return tmp_path / "base.npz"


def fit(base: Path, *arguments: str) -> Any:
    fast = ["--episodes", "3", "--device", "cpu", "--set", "width=16", "--set", "novel_per_episode=3"]
    command = ["fit", str(base), "-o", str(base.parent / "model"), *fast, "--set", "batch_size=60", *arguments]
    return CliRunner().invoke(app, command)


def test_the_option_writes_what_tensorboard_reads(base: Path) -> None:
    events: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra 'tensorboard'"
    )
    result = fit(base, "--log", "tensorboard")
    assert result.exit_code == 0, result.output
    found = events.EventAccumulator(str(base.parent / "model-tensorboard" / "ccov-gan"))
    found.Reload()
    assert "loss/covariance" in found.Tags()["scalars"]
    assert [event.step for event in found.Scalars("loss/cycle_base")] == [1, 2, 3]


def test_a_log_that_cannot_be_written_is_refused_before_training(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = fit(base, "--log", "paper")
    assert refused.exit_code == 2
    assert "--log must be tensorboard, not 'paper'" in refused.stderr
    real_import = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real_import(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    refused = fit(base, "--log", "tensorboard")
    assert refused.exit_code == 2
    assert "pip install 'cpaan[tensorboard]'" in refused.stderr
    assert not (base.parent / "model").exists()
