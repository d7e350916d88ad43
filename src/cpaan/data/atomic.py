"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cpaan.errors import InputError


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
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError, RuntimeError) as error:  # h5py raises the latter two
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
