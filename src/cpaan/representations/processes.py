"""One process, or several on one or more machines, as `torchrun` starts them."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from cpaan.training.device import choose_device


@dataclass(frozen=True)
class Processes:
    """One process among those that train together.

    Attributes
    ----------
    rank, count : its number, and how many there are
    device : where it computes
    """

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether it is the one that writes files and shows progress."""
        return self.rank == 0

    def average(self, values: dict[str, float]) -> dict[str, float]:
        """Average numbers over all processes."""
        if self.count == 1:
            return values
        total = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return dict(zip(values, (total / self.count).tolist(), strict=True))

    def average_buffers(self, module: nn.Module) -> None:
        """Average running means and variances, which every process has of its own images."""
        if self.count > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    distributed.all_reduce(buffer)
                    buffer.div_(self.count)

    def gather(self, value: Any) -> list[Any]:
        """Give the values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found

    def agree(self, flag: bool) -> bool:
        """Tell whether the flag is up in any process."""
        if self.count == 1:
            return flag
        value = torch.tensor(float(flag), device=self.device)
        distributed.all_reduce(value, distributed.ReduceOp.MAX)
        return bool(value)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Make gradients averages over all processes."""
        if self.count == 1:
            return module
        places = [self.device] if self.device.type == "cuda" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            # Buffers stay each process's own until they are averaged: what they hold plays no part in training.
            return nn.parallel.DistributedDataParallel(module, device_ids=places, broadcast_buffers=False)


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or be the only one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(0, 1, choose_device(device))
        return
    place = choose_device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), place)
    finally:
        distributed.destroy_process_group()
