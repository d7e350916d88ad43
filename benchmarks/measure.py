"""What the scripts of this folder measure with: seconds of an action, and the matrix products that it consists of."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

OF_A_KIND = 4
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}


def seconds(action: Callable[[], Any], device: torch.device, *, repeats: int = 9, warm_up: int = 2) -> float:
    """Give the median time of an action, by the clock."""
    for _ in range(warm_up):
        action()
    taken = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        action()
        synchronize(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def alternating_seconds(
    actions: Mapping[str, Callable[[], Any]], device: torch.device, *, rounds: int = 5, repeats: int = 3
) -> dict[str, float]:
    """Time several actions in turns, so that a disturbance hits them alike; gives the least median of each."""
    rows = [{name: seconds(action, device, repeats=repeats, warm_up=1) for name, action in actions.items()}]
    rows += [
        {name: seconds(action, device, repeats=repeats, warm_up=0) for name, action in actions.items()}
        for _ in range(rounds - 1)
    ]
    return {name: min(row[name] for row in rows) for name in actions}


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class _Recorder(TorchDispatchMode):
    """Notes the matrix products that are done, with the shapes and strides of what they multiply."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, list[Any], dict[str, Any]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__.split(".")[0] in PRODUCTS:
            self.calls.append((function, [_shape(value) for value in args], kwargs or {}))
        return function(*args, **(kwargs or {}))


def _shape(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, Tensor) else value


def _like(value: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype, device = value
    length = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(length, dtype=dtype, device=device).as_strided(shape, stride)


class _Operands:
    """Gives tensors of noted shapes, a few of each kind in turns: as memory that is used again, not ever new one."""

    def __init__(self) -> None:
        self.kept: dict[Any, list[Tensor]] = {}
        self.asked: dict[Any, int] = {}

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        kept, asked = self.kept.setdefault(value, []), self.asked.get(value, 0)
        self.asked[value] = asked + 1
        if len(kept) < OF_A_KIND:
            kept.append(_like(value))
        return kept[asked % OF_A_KIND]


def matrix_products(action: Callable[[], Any]) -> Callable[[], None]:
    """Give an action that does the matrix products of another and nothing else: the floor of its time."""
    with _Recorder() as recorder:
        action()
    operands = _Operands()
    calls = [(function, [operands(value) for value in values], kwargs) for function, values, kwargs in recorder.calls]

    def products() -> None:
        for function, values, kwargs in calls:
            function(*values, **kwargs)

    return products


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute on so many processor cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: torch.device) -> str:
    """Name what was measured on."""
    return torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"


def write_record(path: Path | None, record: dict[str, Any]) -> None:
    """Write JSON beside what is printed."""
    if path is not None:
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
