"""Lanes: independent parts of a step side by side on a GPU, where one of them alone leaves most of it idle."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Lanes:
    """Streams of a CUDA device beside the current one; on other devices, nothing: work is done where it is written.

    What a lane reads must have been computed before it is entered, and must be kept until the lanes have joined again.
    A derivative is computed on the lane of what it is the derivative of.

    >>> lanes = Lanes(torch.device("cpu"), 1)
    >>> with lanes.beside(0):
    ...     x = torch.ones(2).sum()
    >>> lanes.join(0)
    >>> float(x)
    2.0
    """

    def __init__(self, device: torch.device, number: int) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(number)] if device.type == "cuda" else []
        self.busy: set[int] = set()

    @contextmanager
    def beside(self, lane: int) -> Iterator[None]:
        """Do what follows on a lane, after all that was asked for so far."""
        if not self.streams:
            yield
            return
        stream = self.streams[lane]
        self.busy.add(lane)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def join(self, *lanes: int) -> None:
        """Let what follows wait for lanes, where they were used."""
        for lane in self.busy.intersection(lanes):
            torch.cuda.current_stream().wait_stream(self.streams[lane])
        self.busy.difference_update(lanes)
