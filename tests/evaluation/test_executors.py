"""Processes for cells: all begin at once, however much they are sent."""

import os
import time
from pathlib import Path
from typing import Any

from cpaan.evaluation.executors import run_in_processes


class Meeting:
    """What is read only by processes that are reading it at the same time."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "number": self.number}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.folder / str(os.getpid())).touch()
        end = time.monotonic() + 600
        while len(list(self.folder.iterdir())) < self.number:
            if time.monotonic() > end:
                raise TimeoutError("waited in vain for the others to begin")
            time.sleep(0.05)


def size_of(meeting: Meeting, much: bytes, task: int) -> int:
    return len(much) + task


def test_processes_that_are_sent_much_begin_together(tmp_path: Path) -> None:
    much = bytes(2**22)  # more than a pipe holds
    found = run_in_processes(size_of, (Meeting(tmp_path, 2), much), [(1,), (2,)], jobs=2)
    assert sorted(found) == [len(much) + 1, len(much) + 2]
