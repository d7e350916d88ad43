"""Number of threads: one for small operations, all that the user allows for large ones.

Threads synchronise after every operation. Where operations are small, that costs more than a second thread saves, and
on a busy machine many times more, because one of them waits for a processor each time.

A block only ever lowers the number: `torch.set_num_threads`, OMP_NUM_THREADS, MKL_NUM_THREADS or threadpoolctl outside
of it set the limit. Only that and the size of the work decide, so results do not depend on the load of the machine.
"""

import math
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Multiplications of an operation from which a second thread pays (benchmarks/threads.py; see docs/performance.md).
ENOUGH_TO_SHARE = 2.5e8


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Compute on one thread where operations are small, or else on as many as are allowed.

    Takes the multiplications of the largest operation that is repeated, such as n · D · C of a product (n, D) · (D, C).
    Of nested blocks the innermost decides.
    """
    with _threads(1 if multiplications < ENOUGH_TO_SHARE else _here.most):
        yield


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Compute on at most so many threads, whatever nested blocks ask for."""
    around = _here.most
    _here.most = min(number, around)
    try:
        with _threads(_here.most):
            yield
    finally:
        _here.most = around


def of_layers(rows: int, parameters: Iterable[Tensor]) -> float:
    """Count the multiplications of the largest layer of a network, for so many rows."""
    return float(rows) * max((weights.numel() for weights in parameters), default=0)


def of_covariance(n: int, dimension: int) -> float:
    """Count the multiplications of a covariance of n examples, the largest product of most closed forms."""
    return float(n) * dimension**2


class _Here(threading.local):
    """Limits of this Python thread."""

    most: float = math.inf  # that enclosing blocks allow
    of_torch: int | None = None  # torch's number outside of all blocks


class _Blas:
    """Limits libraries with one number for the whole process to the least that any Python thread asks for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.asked: dict[int, float] = {}  # by Python thread
        self.before: dict[str, tuple[Any, int]] = {}  # by file, the library and its number

    def ask(self, number: float | None) -> float | None:
        """Ask for at most so many threads, or drop the request; returns the earlier request of this thread."""
        me = threading.get_ident()
        with self.lock:
            earlier = self.asked.pop(me, None)
            if number is not None:
                for library in _libraries("blas"):
                    self.before.setdefault(library.filepath, (library, library.num_threads))
                self.asked[me] = number
            for library, before in self.before.values():
                _set_everywhere(library, int(min([before, *self.asked.values()])))
            if not self.asked:
                self.before.clear()
        return earlier


_here, _blas = _Here(), _Blas()


@contextmanager
def _threads(number: float) -> Iterator[None]:
    outside, before = _here.of_torch, torch.get_num_threads()
    allowed = before if outside is None else outside
    _here.of_torch = allowed
    earlier = _blas.ask(number)
    lowered = int(min(allowed, number))
    _set_torch(lowered)
    others = [(library, library.num_threads) for library in _libraries("openmp")]  # such as scikit-learn's
    for library, its_number in others:
        library.set_num_threads(min(its_number, lowered))
    try:
        yield
    finally:
        for library, its_number in others:
            library.set_num_threads(its_number)
        _set_torch(before)
        _blas.ask(earlier)
        _here.of_torch = outside


def _set_everywhere(library: Any, number: int) -> None:
    """Set a library's number for the whole process; newer versions of threadpoolctl obey the first thread alone."""
    clear = getattr(library, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
    library.set_num_threads(number)
    if clear is not None:
        clear()


def _set_torch(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _libraries(kind: str) -> list[Any]:
    found = _loaded(len(sys.modules))
    return [library for library in found.lib_controllers if library.user_api == kind]


@lru_cache(maxsize=1)
def _loaded(n_modules: int) -> "ThreadpoolController":
    """Find the libraries of this process; it takes two milliseconds, so again only after an import."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
