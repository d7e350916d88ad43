"""One process at a time writes to a folder.

The lock is the kernel's, on the file `.lock` of the folder: it ends with the process that holds it, however that ends,
so that a lock file which a killed process or another boot left behind keeps nobody out. File systems without such locks
(some network ones) and Windows are written to with a warning, and without protection.
"""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cpaan.data.atomic import make_folder
from cpaan.errors import InputError

LOCK = ".lock"
_LONGEST_NOTE = 200


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made where it is missing, and gone again if left empty.

    Raises
    ------
    InputError
        Where another process holds it, or nothing can be written there.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder), locked(folder):
    ...     pass
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: ... is being written to by process ...; wait until it is done, or give another folder
    """
    is_new = not folder.exists()
    make_folder(folder)
    path = folder / LOCK
    try:
        descriptor = _hold(path)
        try:
            yield
        finally:
            # While it is still held: whoever waits for this very file notices that it is no longer the folder's.
            with suppress(OSError):
                if _is_of(path, descriptor):
                    path.unlink()
            os.close(descriptor)
    finally:
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _hold(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror or error}") from error
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_of(path, descriptor):
            break
        os.close(descriptor)  # removed by the process that held it, between opening and locking
    with suppress(OSError):  # a note for people, which a full disk may do without
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock

        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace").strip()
        raise InputError(
            f"{path.parent} is being written to by process {holder or 'of unknown number'}; wait until it is done, or "
            "give another folder"
        ) from error
    except (ImportError, OSError) as error:
        warnings.warn(
            f"files in {path.parent} cannot be locked ({error}): make sure that no other process writes there",
            stacklevel=4,
        )


def _is_of(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
