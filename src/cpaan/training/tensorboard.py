"""Losses of a training for TensorBoard."""

from collections.abc import Callable
from os import PathLike
from typing import Any

from cpaan.extras import missing_extra
from cpaan.training.trainer import Progress, TrainingEvent


class TensorBoard:
    """Writes every loss, and the score where base classes are held out, to a folder: a callback.

    A file is made when there is something to write; a second training with the same callback gets one of its own.

    Parameters
    ----------
    folder : str or path
        Where ``tensorboard --logdir`` is to look.
    writer : callable, optional
        Makes what writes to a folder; by default torch's ``SummaryWriter``, which needs ``cpaan[tensorboard]``.

    Examples
    --------
    >>> class Printed:
    ...     def __init__(self, folder): self.folder = folder
    ...     def add_scalar(self, name, value, step): print(self.folder, name, value, step)
    ...     def flush(self): pass
    >>> TensorBoard("logs", writer=Printed)(Progress(10, 20, {"cycle": 2.0}))
    logs loss/cycle 2.0 10
    """

    def __init__(self, folder: str | PathLike[str], *, writer: Callable[[str], Any] | None = None) -> None:
        self.folder, self._make = folder, writer
        self._writer: Any = None

    def __call__(self, progress: Progress) -> None:
        """Write the losses of a logging step."""
        if isinstance(progress, TrainingEvent) and progress.first:
            self.close()
        for term, value in progress.losses.items():
            self.writer.add_scalar(f"loss/{term}", value, progress.episode)
        if isinstance(progress, TrainingEvent) and progress.run.has_score:
            self.writer.add_scalar("score/held_out", progress.run.score(), progress.episode)
        self.writer.flush()  # nobody says when training ends

    @property
    def writer(self) -> Any:
        """What writes to the folder, made when it is first used."""
        if self._writer is None:
            self._writer = (self._make or find_writer())(str(self.folder))
        return self._writer

    def close(self) -> None:
        """Write what is still in memory, and let go of the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        # An open file can be neither copied nor sent to another process, as estimators and their callbacks are.
        return {**self.__dict__, "_writer": None}


def find_writer() -> Callable[[str], Any]:
    """Give what writes logs; refuse where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", "a log for TensorBoard") from error
    return SummaryWriter
