"""Files that appear whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cpaan.errors import InputError

_HEX, _PART = 16, ".part"
# Of file systems that do not sync folders, or folders that may be written and not read.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which takes the place of `path` when the block ends well.

    Raises
    ------
    InputError
        Where the path cannot be written; nothing is left behind.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> path.read_text()
    'whole'
    """
    # Not Path.is_dir, which fails where a name is too long or not allowed.
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give the path of a file in it")
    if not os.path.isdir(path.parent):
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    # In the same folder, because a file can be renamed in one step only within its file system.
    temporary = path.parent / f".{secrets.token_hex(_HEX // 2)}{_PART}"
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, ValueError, RuntimeError) as error:  # h5py raises the latter two
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        with suppress(OSError):  # the folder itself may have become read-only, or be gone
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it lies in, where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except FileExistsError as error:
        raise InputError(f"cannot write to {path}: it is a file; give the name of a folder") from error
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror or error}") from error


def sync_folder(path: Path) -> None:
    """Let new names in a folder outlast a power failure, where the system can promise that."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows, which writes names through
        return
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise InputError(f"cannot write to {path}: {error.strerror or error}") from error


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had not finished writing with `replacing`; only where no other process writes."""
    for left in folder.glob("." + _HEX * "?" + _PART):
        with suppress(OSError):
            left.unlink()
