"""Bars of a training."""

from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bars

from cpaan import CPAAN
from cpaan.cli.output import TrainingBars
from cpaan.gan.loop import TrainingEvent
from cpaan.methods import set_numbers
from cpaan.training.progress import Progress


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


def bars() -> Bars:
    return Bars("{task.completed} of {task.total}", "{task.fields[note]}", console=Console(file=StringIO()))


def test_a_bar_shows_how_far_a_training_is() -> None:
    shown = bars()
    tell = TrainingBars(shown)("training")
    tell(Progress(30, 100, {"covariance": 0.25, "other": 1.0}))
    (task,) = shown.tasks
    assert (task.completed, task.total, task.fields["note"]) == (30, 100, "cov 0.25")
    assert not task.finished


def test_the_bar_of_a_training_that_stopped_by_itself_is_full() -> None:
    def stop(event: TrainingEvent) -> None:
        if event.episode == 4:
            event.run.stop()

    shown = bars()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 4)), np.repeat(np.arange(8), 10)
    settings: dict[str, Any] = {
        "episodes": 9,
        "novel_per_episode": 4,
        "center": "shots",
        "random_state": 0,
        "device": "cpu",
    }
    cpaan(callbacks=[stop], tell=TrainingBars(shown)("training"), **settings).fit(X, y)
    (task,) = shown.tasks
    assert task.finished
    assert task.completed == 4
    assert task.fields["note"].endswith("stopped after 4 of 9 episodes")
