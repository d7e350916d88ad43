"""How many threads compute: one where the work is small, all that the user allows where it is large.

Threads meet after every operation. Where operations are small that takes longer than a second thread saves, and on a
busy machine many times longer, because one of them waits for a processor each time.

The number of threads is only ever lowered, and for the duration of a block: whatever holds outside of it, by
`torch.set_num_threads`, OMP_NUM_THREADS, MKL_NUM_THREADS or threadpoolctl, is the most that is used inside. It depends
on nothing but that and the size of the work, so results do not depend on how busy the machine is.
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

# Multiplications of one operation from which a second thread pays, by benchmarks/threads.py; see docs/performance.md.
ENOUGH_TO_SHARE = 2.5e8


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Compute on one thread where operations are small, or else on as many as are allowed.

    Blocks may lie inside one another, and the innermost decides.

    Parameters
    ----------
    multiplications : float
        Of the largest operation that is done again and again, such as n · D · C of a product (n, D) · (D, C).
    """
    with _threads(1 if multiplications < ENOUGH_TO_SHARE else _here.most):
        yield


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Compute on at most so many threads, whatever blocks inside ask for."""
    around = _here.most
    _here.most = min(number, around)
    try:
        with _threads(_here.most):
            yield
    finally:
        _here.most = around


def of_layers(rows: int, parameters: Iterable[Tensor]) -> float:
    """Count the multiplications of the largest layer of a network, for so many rows.

    >>> of_layers(10, torch.nn.Linear(4, 3).parameters())
    120.0
    """
    return float(rows) * max((weights.numel() for weights in parameters), default=0)


def of_covariance(n: int, dimension: int) -> float:
    """Count the multiplications of a covariance matrix of n examples: the largest product of most closed forms."""
    return float(n) * dimension**2


class _Here(threading.local):
    """What holds in a thread of Python: the most threads that blocks around allow, and what torch had before them."""

    most: float = math.inf
    of_torch: int | None = None


class _Blas:
    """Limits libraries that have one number of threads for the whole process, to the least that any thread asks for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.asked: dict[int, float] = {}  # by thread of Python
        self.before: dict[str, tuple[Any, int]] = {}  # by file, the library and its number

    def ask(self, number: float | None) -> float | None:
        """Ask for at most so many threads, or for nothing any more; gives what this thread asked for before."""
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
    outermost, before = _here.of_torch is None, torch.get_num_threads()
    allowed = before if _here.of_torch is None else _here.of_torch
    _here.of_torch = allowed
    earlier = _blas.ask(number)
    restore = _lower_openmp(int(min(allowed, number)))
    try:
        yield
    finally:
        for library, its_number in restore:
            library.set_num_threads(its_number)
        _set_torch(before)
        _blas.ask(earlier)
        if outermost:
            _here.of_torch = None


def _set_everywhere(library: Any, number: int) -> None:
    """Set the number of a library for the whole process.

    Newer versions of threadpoolctl ignore all threads but the first that sets it; here, all agree on one number.
    """
    clear = getattr(library, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
    library.set_num_threads(number)
    if clear is not None:
        clear()


def _set_torch(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _lower_openmp(number: int) -> list[tuple[Any, int]]:
    """Set torch's number in this thread, and lower that of others, such as scikit-learn; gives what these had."""
    _set_torch(number)
    found = [(library, library.num_threads) for library in _libraries("openmp")]
    for library, before in found:
        library.set_num_threads(min(before, number))
    return found


def _libraries(kind: str) -> list[Any]:
    found = _loaded(len(sys.modules))
    return [library for library in found.lib_controllers if library.user_api == kind]


@lru_cache(maxsize=1)
def _loaded(n_modules: int) -> "ThreadpoolController":
    """Find the libraries of this process, which come with imports; looking for them takes two milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
