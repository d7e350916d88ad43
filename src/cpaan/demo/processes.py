"""The demonstration's work in processes side by side, each on one thread, and what they tell of it meanwhile.

Layers are so small that a second thread gains little, and on a busy machine it makes the first one wait. What is
computed does not depend on how many processes there are.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import forkserver, get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from cpaan.training.progress import Bars, Progress

Message: TypeAlias = "tuple[str, str | None, tuple[Any, ...]]"  # title and unit of a bar, and what it is told
Outbox: TypeAlias = "Queue[Message | None]"

PROCESSES = 2
LOADED_AHEAD = ["cpaan.demo.spiral", "cpaan.demo.glyphs"]


class Submit(Protocol):
    """What hands out work."""

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Have `function(*arguments, bars)` computed; what comes back waits for the result and gives it."""


def load_ahead() -> None:
    """Begin to load libraries for the processes to come, which then start with all of them, beside this process."""
    context = _context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(LOADED_AHEAD)
        forkserver.ensure_running()


@contextmanager
def side_by_side(bars: "Bars", processes: int) -> Iterator[Submit]:
    """Compute what is submitted in so many processes, the first first; with one, in this process when it is asked for.

    Parameters
    ----------
    bars : shows the progress of all of them
    processes : how many there are
    """
    if processes == 1:
        yield lambda function, *arguments: cache(partial(_on_one_thread, function, *arguments, bars))
        return
    context = _context()
    outbox: Outbox = context.Queue()
    stop = context.Event()
    teller = Thread(target=_pass_on, args=(outbox, bars), daemon=True)
    teller.start()
    with ProcessPoolExecutor(processes, context, _begin, (outbox, stop)) as pool:
        try:
            yield lambda function, *arguments: pool.submit(_work, function, *arguments).result
        finally:
            # Nothing is left to do, unless something failed: then the rest is not worth waiting for.
            stop.set()
            pool.shutdown(cancel_futures=True)
            outbox.put(None)
            teller.join()


def usable_processes() -> int:
    """Give how many processes the machine has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(PROCESSES, cores)


class RemoteBars:
    """Bars in a process that has no screen: sends what they are told."""

    def __init__(self, outbox: Outbox, stop: Event) -> None:
        self.outbox, self.stop = outbox, stop

    def __call__(self, title: str) -> "Callable[[Progress], None]":
        """Give what a training run is to tell its progress to."""
        from cpaan.training.progress import Progress

        # A training event also holds the training itself, which stays here.
        return lambda event: self._send(title, None, Progress(event.episode, event.episodes, event.losses))

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        """Give what is to be told how many of how many things are done."""
        return lambda done, total: self._send(title, unit, done, total)

    def _send(self, title: str, unit: str | None, *told: Any) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt
        self.outbox.put((title, unit, told))


def _context() -> BaseContext:
    # A server is forked before it has threads and loads the libraries once; where there is none, each process does.
    return get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")


def _pass_on(outbox: Outbox, bars: "Bars") -> None:
    opened: dict[str, Callable[..., None]] = {}
    while (message := outbox.get()) is not None:
        title, unit, told = message
        if title not in opened:
            opened[title] = bars(title) if unit is None else bars.count(title, unit)
        opened[title](*told)


_bars: RemoteBars | None = None


def _begin(outbox: Outbox, stop: Event) -> None:
    global _bars  # noqa: PLW0603  # a process serves one demonstration
    _bars = RemoteBars(outbox, stop)
    # The process that is asked to stop tells the others, and they do not outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(function: Callable[..., Any], *arguments: Any) -> Any:
    return _on_one_thread(function, *arguments, _bars)


def _on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    from cpaan.threads import limited_threads

    with limited_threads(1):
        return function(*arguments)
