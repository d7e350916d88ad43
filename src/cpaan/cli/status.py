"""A line on the terminal that says what a command is doing, until bars or the answer take its place.

It begins before anything slow is imported, so this module imports nothing outside the standard library.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

IMPORTING = "loading libraries"
DELAY, EVERY = 0.2, 0.1  # seconds: before the line is first shown, and between its pictures
PICTURES = "|/-\\"
ERASE = "\r\x1b[K"


class StatusLine:
    """Shows what is being done and for how long, on a terminal; what others print erases it first.

    Parameters
    ----------
    terminal : where to show it
    text : what is being done at first
    """

    def __init__(self, terminal: TextIO, text: str) -> None:
        self.terminal, self.text, self.process = terminal, text, os.getpid()
        self.since = time.monotonic()
        self.lock, self.ended = threading.RLock(), threading.Event()
        self.shown, self.pauses = False, 0
        self.waits = False  # for the end of a line that others have begun
        self.thread = threading.Thread(target=self._run, daemon=True)

    def erase(self) -> None:
        """Take the line away; it comes back unless paused."""
        with self.lock:
            if self.shown:
                self.terminal.write(ERASE)
                self.terminal.flush()
                self.shown = False

    def _run(self) -> None:
        pictures, wait = 0, DELAY
        while not self.ended.wait(wait):
            wait, pictures = EVERY, pictures + 1
            with self.lock:
                if not (self.pauses or self.waits or self.ended.is_set()):
                    self._draw(PICTURES[pictures % len(PICTURES)])

    def _draw(self, picture: str) -> None:
        seconds = f", {time.monotonic() - self.since:.0f} s"
        width = shutil.get_terminal_size().columns - len(f"{picture} {seconds}") - 1  # what wraps cannot be erased
        self.terminal.write(f"{ERASE}{picture} {self.text[: max(width, 0)]}{seconds}")
        self.terminal.flush()
        self.shown = True


class _Erasing:
    """A stream that takes the line away before something is written."""

    def __init__(self, stream: Any, line: StatusLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> Any:
        if os.getpid() != self._line.process:  # a forked process may have the lock as it was held, for good
            return self._stream.write(text)
        with self._line.lock:
            self._line.erase()
            self._line.waits = not text.endswith("\n")
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_lines: list[StatusLine] = []  # the one that is shown, or none


@contextmanager
def status_line(wanted: bool = True) -> Iterator[None]:
    """Show a line on the standard error while the block runs, where that is a terminal and a line is wanted."""
    if not wanted or _lines or not sys.stderr.isatty():
        yield
        return
    streams, line = (sys.stdout, sys.stderr), StatusLine(sys.stderr, IMPORTING)
    _lines.append(line)
    line.thread.start()
    sys.stdout, sys.stderr = _Erasing(streams[0], line), _Erasing(streams[1], line)
    try:
        yield
    finally:
        line.ended.set()
        line.erase()
        sys.stdout, sys.stderr = streams
        _lines.clear()


def doing(text: str) -> None:
    """Say what comes next."""
    for line in _lines:
        with line.lock:
            line.text, line.since = text, time.monotonic()


def being_done() -> str:
    """Give the text of the line, with the seconds since it was set; empty where there is none."""
    return "".join(f"{line.text}, {time.monotonic() - line.since:.0f} s" for line in _lines)


@contextmanager
def paused_status() -> Iterator[None]:
    """Leave the terminal to others while the block runs, such as bars, which then say what is being done."""
    lines = list(_lines)
    for line in lines:
        with line.lock:
            line.pauses += 1
            line.erase()
    try:
        yield
    finally:
        for line in lines:
            with line.lock:
                line.pauses -= 1
