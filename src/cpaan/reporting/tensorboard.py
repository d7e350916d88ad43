"""Losses and accuracies for TensorBoard, beside whatever shows the progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpaan.evaluation.run_folder import summarize_rows
from cpaan.gan.callbacks import TensorBoard, find_writer
from cpaan.training.progress import Bars, Progress

_TRAINING = "training "


class TensorBoardBars:
    """Shows progress as other bars do and writes every loss to a folder, one run for each training.

    Parameters
    ----------
    bars : what shows the progress
    folder : of the logs; nothing is made before there is something to write
    writer : makes what writes to a folder
    """

    def __init__(self, bars: Bars, folder: Path, writer: Callable[[str], Any]) -> None:
        self.bars, self.folder, self._writer = bars, folder, writer
        self._open: dict[str, TensorBoard] = {}

    def __call__(self, title: str) -> Callable[[Progress], None]:
        """Give what a training is to tell its progress to."""
        shown, name = self.bars(title), title.removeprefix(_TRAINING)

        def tell(progress: Progress) -> None:
            shown(progress)
            self._log(name)(progress)

        return tell

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Give what is told how many of how many things are done; there is nothing to log in that."""
        return self.bars.count(title, unit)

    def accuracies(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write the mean accuracies of a run, with the number of shots as the step."""
        for measure in ("top1", "top5"):
            for ((method, _), setting, shots), found in summarize_rows(rows, measure).items():
                self._log(method).writer.add_scalar(f"accuracy/{setting} {measure}", found.mean, shots)

    def _log(self, name: str) -> TensorBoard:
        return self._open.setdefault(name, TensorBoard(self.folder / name, writer=self._writer))

    def close(self) -> None:
        """Write what is still in memory."""
        for log in self._open.values():
            log.close()


@contextmanager
def tensorboard_bars(bars: Bars, folder: Path) -> Iterator[TensorBoardBars]:
    """Log to a folder while the block runs."""
    logging = TensorBoardBars(bars, folder, find_writer())
    try:
        yield logging
    finally:
        logging.close()
