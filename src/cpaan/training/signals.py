"""SIGINT and SIGTERM while networks are trained."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 - it is no error
    """Training was asked to stop, and has written a checkpoint.

    Attributes
    ----------
    signal : the number of the signal
    episode, episodes : how many are done, and how many there are to be
    """

    def __init__(self, signal_number: int, episode: int, episodes: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after episode {episode} of {episodes}")
        self.signal, self.episode, self.episodes = signal_number, episode, episodes


class StopSignal:
    """Which signal asks to stop; None as long as none does."""

    number: int | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Note a signal; a second Ctrl+C ends everything at once."""
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def heard_signals(wanted: bool = True) -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM instead of dying of them, where that is wanted and signals can be caught.

    >>> with heard_signals() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     asked.number == signal.SIGTERM
    True
    """
    asked = StopSignal()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
