"""Progress bars with losses and the remaining time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from cpaan.training.trainer import Progress

Tell = Callable[["Progress"], None]
SHORT = {"adversarial_novel": "adv", "cycle_base": "cyc", "covariance": "cov"}


@contextmanager
def training_bars() -> Iterator[Callable[[str], Tell]]:
    """Give a function that opens a bar of a given title and gives what is to be told to it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:

        def open_bar(title: str) -> Tell:
            task = bars.add_task(title, total=None, losses="")

            def tell(progress: "Progress") -> None:
                shown = [f"{SHORT[name]} {value:.3g}" for name, value in progress.losses.items() if name in SHORT]
                bars.update(task, total=progress.episodes, completed=progress.episode, losses="  ".join(shown))

            return tell

        yield open_bar
