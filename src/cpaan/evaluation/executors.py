"""Where cells are computed: here, in processes of this machine, or on a Dask cluster.

Every cell is a function of its arguments alone and computes on one thread, so all three give the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any, TypeAlias

from cpaan.errors import InputError
from cpaan.extras import missing_extra

Task = tuple[Any, ...]
Inbox: TypeAlias = "Queue[tuple[Callable[..., Any], Task]]"
RETRIES = 3


def run_here(function: Callable[..., Any], shared: Task, tasks: Sequence[Task]) -> Iterator[Any]:
    """Call `function(*shared, *task)` for every task, one after the other."""
    for task in tasks:
        yield function(*shared, *task)


def run_in_processes(function: Callable[..., Any], shared: Task, tasks: Sequence[Task], jobs: int) -> Iterator[Any]:
    """Compute tasks in processes; what they share is sent to each process once."""
    # Spawned, not forked: threads of the parent's libraries do not survive a fork.
    context = get_context("spawn")
    # Through a queue, which a thread feeds: the start of a process waits until all that it is given has been read, for
    # which it must first import the libraries, and so processes would begin one after the other.
    queue: Inbox = context.Queue()
    for _ in range(jobs):
        queue.put((function, shared))
    with ProcessPoolExecutor(jobs, context, _remember, (queue,)) as pool:
        futures: list[Future[Any]] = [pool.submit(_call, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            queue.cancel_join_thread()  # where there were fewer tasks than processes, nobody takes the rest
            queue.close()


def run_on_dask(function: Callable[..., Any], shared: Task, tasks: Sequence[Task], address: str) -> Iterator[Any]:
    """Compute tasks on the workers of a Dask scheduler; tasks of a worker that dies are done by another."""
    try:
        from dask.distributed import Client
        from dask.distributed import as_completed as as_dask_completed
    except ImportError as error:
        raise missing_extra("dask", "--scheduler") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        sent = client.scatter(shared, broadcast=True, hash=False)
        futures = [client.submit(_call_shared, function, sent, task, pure=False, retries=RETRIES) for task in tasks]
        for future in as_dask_completed(futures):
            yield future.result()


_shared: tuple[Callable[..., Any], Task] | None = None


def _remember(queue: Inbox) -> None:
    global _shared  # noqa: PLW0603  # a worker process serves one run
    _shared = queue.get()


def _call(task: Task) -> Any:
    assert _shared is not None
    function, shared = _shared
    return function(*shared, *task)


def _call_shared(function: Callable[..., Any], shared: Sequence[Any], task: Task) -> Any:
    return function(*shared, *task)
