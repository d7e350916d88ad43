"""A training step as one CUDA graph: its hundreds of kernels are launched together instead of one by one."""

from collections.abc import Callable

import torch

WARM_UP = 3  # steps before the capture, in which libraries are set up and memory is taken


class Captured:
    """Calls an action a few times as it is, then records it and plays the record.

    The action must not look at a value on the host, must keep every shape, and must draw its random numbers from the
    given generator; what it writes is written in place. Every call does the work of one call.

    Parameters
    ----------
    action : callable
        Without arguments or results.
    generator : torch.Generator
        On the CUDA device.
    """

    def __init__(self, action: Callable[[], object], generator: torch.Generator) -> None:
        self.action, self.generator, self.calls = action, generator, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work of one call."""
        if self.calls < WARM_UP:
            self._run_aside()
        else:
            if self.graph is None:
                self.graph = self._record()
            self.graph.replay()
        self.calls += 1

    def _run_aside(self) -> None:
        """Run on a stream of its own, as the capture will, so that gradients are not bound to the default one."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.action()
        current.wait_stream(self.stream)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            self.action()
        return graph
