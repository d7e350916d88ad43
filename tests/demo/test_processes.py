"""Work in processes side by side: the same results, progress from all of them, and nothing left running."""

import os
import time
from collections.abc import Callable
from multiprocessing import get_context

import pytest

from cpaan.demo.processes import RemoteBars, load_ahead, side_by_side, usable_processes
from cpaan.training.progress import Bars, Progress


class Told:
    """Bars that keep what they are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, title: str) -> Callable[[Progress], None]:
        return lambda progress: self.lines.append(f"{title}: {progress.episode}/{progress.episodes}")

    def count(self, title: str, unit: str) -> Callable[[int, int], None]:
        return lambda done, total: self.lines.append(f"{title}: {done}/{total} {unit}")


def twice(number: int, bars: Bars) -> tuple[int, int]:
    bars(f"training {number}")(Progress(1, 2, {"loss": 0.5}))
    bars.count(f"counting {number}", "things")(3, 4)
    return 2 * number, os.getpid()


def count_for_long(bars: Bars) -> None:
    tell, end = bars.count("counting", "steps"), time.monotonic() + 60
    while time.monotonic() < end:
        tell(1, 2)
        time.sleep(0.02)


def test_processes_give_their_results_and_tell_their_progress() -> None:
    load_ahead()
    told = Told()
    with side_by_side(told, 2) as submit:
        waiting = [submit(twice, number) for number in range(3)]
        results = [wait() for wait in waiting]
    assert [result for result, _ in results] == [0, 2, 4]
    assert os.getpid() not in {process for _, process in results}
    expected = [line for n in range(3) for line in (f"training {n}: 1/2", f"counting {n}: 3/4 things")]
    assert sorted(told.lines) == sorted(expected)


def test_one_process_is_this_one_and_computes_once() -> None:
    told = Told()
    with side_by_side(told, 1) as submit:
        wait = submit(twice, 5)
        assert told.lines == []
        assert wait() == wait() == (10, os.getpid())
    assert told.lines == ["training 5: 1/2", "counting 5: 3/4 things"]


def test_what_fails_does_not_wait_for_the_rest() -> None:
    def fail() -> None:
        told = Told()
        with side_by_side(told, 2) as submit:
            submit(count_for_long)
            while not told.lines:
                time.sleep(0.02)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()


def test_bars_of_another_process_send_what_they_are_told_until_they_shall_stop() -> None:
    context = get_context("spawn")
    outbox, stop = context.Queue(), context.Event()
    bars = RemoteBars(outbox, stop)
    bars("training")(Progress(1, 2, {"loss": 0.5}))
    bars.count("counting", "things")(3, 4)
    assert outbox.get(timeout=10) == ("training", None, (Progress(1, 2, {"loss": 0.5}),))
    assert outbox.get(timeout=10) == ("counting", "things", (3, 4))
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        bars.count("counting", "things")(4, 4)


def test_there_are_no_more_processes_than_cores() -> None:
    assert 1 <= usable_processes() <= (os.cpu_count() or 1)
