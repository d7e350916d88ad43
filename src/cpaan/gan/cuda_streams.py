"""Independent parts of a training step side by side on a GPU, where one of them alone leaves most of it idle."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CudaStreams:
    """Streams of a CUDA device besides the current one; other devices run everything in the order of the code.

    Compute what a stream reads before entering it, and keep it until the stream has joined. A derivative is computed
    on the stream of its function.
    """

    def __init__(self, device: torch.device, number: int) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(number)] if device.type == "cuda" else []
        self.busy: set[int] = set()

    @contextmanager
    def beside(self, number: int) -> Iterator[None]:
        """Run the block on a stream, after everything that was queued so far."""
        if not self.streams:
            yield
            return
        stream = self.streams[number]
        self.busy.add(number)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def join(self, *numbers: int) -> None:
        """Let the current stream wait for others, where they were used."""
        for number in self.busy.intersection(numbers):
            torch.cuda.current_stream().wait_stream(self.streams[number])
        self.busy.difference_update(numbers)
