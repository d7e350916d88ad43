"""Progress bars with losses and the remaining time."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from cpaan.cli.status import being_done, paused_status

if TYPE_CHECKING:
    from cpaan.training.progress import Progress

SHORT = {"adversarial_novel": "adv", "cycle_base": "cyc", "covariance": "cov", "loss": "loss"}


class TrainingBars:
    """Opens bars; calling it with a title gives what training is to tell its progress to."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    def __call__(self, title: str) -> "Callable[[Progress], None]":
        """Give what a training run is to tell its progress to; the bar opens when it first does."""
        opened: list[TaskID] = []

        def tell(progress: "Progress") -> None:
            if not opened:
                opened.append(self.bars.add_task(title, note=""))
            shown = [f"{SHORT[name]} {value:.3g}" for name, value in progress.losses.items() if name in SHORT]
            # A training that stopped because nothing more was gained is not one that broke off.
            total = progress.episode if progress.ended else progress.episodes
            if total < progress.episodes:
                shown.append(f"stopped after {total} of {progress.episodes} episodes")
            self.bars.update(opened[0], total=total, completed=progress.episode, note="  ".join(shown))

        return tell

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Give what is to be told how many of how many things are done; the bar opens when the first is."""
        opened: list[TaskID] = []

        def tell(done: int, total: int) -> None:
            if not opened:
                opened.append(self.bars.add_task(title, note=""))
            self.bars.update(opened[0], total=total, completed=done, note=f"{done}/{total} {unit}")

        return tell

    def say(self, text: str) -> None:
        """Print a line above the bars, as it is."""
        self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def rate(self, title: str, unit: str) -> Callable[..., None]:
        """Give what is to be told how many things are done, with a note if there is one; the bar shows their rate."""
        opened: list[tuple[TaskID, float, int]] = []

        def tell(done: int, total: int, note: str = "") -> None:
            if not opened:
                opened.append((self.bars.add_task(title, note=""), time.monotonic(), done))
            task, start, first = opened[0]
            seconds = time.monotonic() - start
            rate = f"{(done - first) / seconds:,.0f} {unit}/s" if seconds and done > first else f"{done} {unit}"
            self.bars.update(task, total=total, completed=done, note="  ".join(filter(None, (rate, note))))

        return tell


class _BarsAndStatus(Bars):
    """Bars, and while none of them moves a line that says what is being done."""

    ended = False

    def get_renderables(self) -> Iterable[RenderableType]:
        """Give what is shown."""
        yield from super().get_renderables()
        if not self.ended and all(task.finished for task in self.tasks) and being_done():
            yield Text(being_done())


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
    with paused_status(), _BarsAndStatus(*columns, console=Console(stderr=True)) as bars:
        try:
            yield TrainingBars(bars)
        finally:
            bars.ended = True
