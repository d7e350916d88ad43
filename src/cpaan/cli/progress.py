"""Progress bars with losses and the remaining time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from cpaan.training.trainer import Progress

SHORT = {"adversarial_novel": "adv", "cycle_base": "cyc", "covariance": "cov"}


class TrainingBars:
    """Opens bars; calling it with a title gives what training is to tell its progress to."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    def __call__(self, title: str) -> "Callable[[Progress], None]":
        """Open a bar for a training run."""
        task = self.bars.add_task(title, total=None, note="")

        def tell(progress: "Progress") -> None:
            shown = [f"{SHORT[name]} {value:.3g}" for name, value in progress.losses.items() if name in SHORT]
            self.bars.update(task, total=progress.episodes, completed=progress.episode, note="  ".join(shown))

        return tell

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Give what is to be told how many of how many things are done; the bar opens when the first is."""
        opened: list[TaskID] = []

        def tell(done: int, total: int) -> None:
            if not opened:
                opened.append(self.bars.add_task(title, note=""))
            self.bars.update(opened[0], total=total, completed=done, note=f"{done}/{total} {unit}")

        return tell


@contextmanager
def training_bars() -> Iterator[TrainingBars]:
    """Show bars on the standard error while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield TrainingBars(bars)
