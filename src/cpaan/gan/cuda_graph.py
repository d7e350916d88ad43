"""Training on a CUDA device: an episode as one graph, while the next one is drawn."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch
from torch import Tensor

from cpaan.gan.cuda_streams import CudaStreams
from cpaan.gan.episodes import Episode, EpisodeSampler
from cpaan.gan.networks import Draw
from cpaan.gan.objective import TrainingStep
from cpaan.training.progress import History

WARM_UP = 3  # calls before the capture, in which libraries are set up and memory is taken


class CudaGraph:
    """Runs an action a few times, then records and replays it: hundreds of kernels by one call.

    The action must not look at a value on the host, must keep every shape, must draw its random numbers from the given
    generator, on the CUDA device, and must write its results in place. Every call does the work of one call.
    """

    def __init__(self, action: Callable[[], object], generator: torch.Generator) -> None:
        self.action, self.generator, self.calls = action, generator, 0
        self.stream = torch.cuda.Stream(generator.device)
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
        """Run on the stream of the capture: gradients must not be bound to the default one."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), _several_streams():
            self.action()
        current.wait_stream(self.stream)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream), _several_streams():
            self.action()
        return graph


@contextmanager
def _several_streams() -> Iterator[None]:
    """Keep torch from warning that one parameter gets its gradients from several streams."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
        yield


class DrawnAhead:
    """Trains on an episode while the next one is drawn; random numbers come in the same order as without."""

    def __init__(
        self, step: TrainingStep, sampler: EpisodeSampler, generator: torch.Generator, history: History
    ) -> None:
        self.step, self.sampler, self.generator, self.history = step, sampler, generator, history
        self.streams = CudaStreams(generator.device, 1)
        episode, noise = self._draw()
        self.episode = Episode(**{name: value.clone() for name, value in vars(episode).items()})
        self.noise = None if noise is None else _copy(noise)

    def __call__(self) -> None:
        """Train on one episode."""
        with self.streams.beside(0):
            following = _tensors(*self._draw())
        self.history.add(self.step.train_on(self.episode, self.noise))
        self.streams.join(0)
        torch._foreach_copy_(self.pending(), following)

    def pending(self) -> list[Tensor]:
        """Return what was drawn for the next call, to save or to overwrite."""
        return _tensors(self.episode, self.noise)

    def _draw(self) -> tuple[Episode, Draw | None]:
        episode = self.sampler.draw(self.generator)
        return episode, self.step.draw_noise(episode, self.generator)


def _copy(noise: Draw) -> Draw:
    return Draw(noise.epsilon.clone(), None if noise.component is None else noise.component.clone())


def _tensors(episode: Episode, noise: Draw | None) -> list[Tensor]:
    parts = [getattr(episode, field.name) for field in fields(Episode)]
    return [*parts, *(part for part in noise or () if part is not None)]
