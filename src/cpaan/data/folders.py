"""Folders that survive crashes: atomic writes, models, a lock for one writer, checks of output paths.

A model on disk is a folder with `model.safetensors` and `config.json`; nothing is ever unpickled. The configuration is
written last and holds a checksum of the tensors, so a torn model is recognised. Reading it does not load torch.
"""

import csv
import errno
import hashlib
import io
import json
import math
import os
import secrets
import socket
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpaan.data.untrusted import read_json, reading, require_file
from cpaan.errors import InputError

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from torch import Tensor


_HEX, _PART = 16, ".part"
# Some file systems do not sync folders, and some folders may be written but not read.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` when the block ends without an error."""
    # Not Path.is_dir, which fails if a name is too long or not allowed.
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give the path of a file in it")
    if not os.path.isdir(path.parent):
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    # In the same folder: renaming is atomic only within a file system.
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
    """Create a folder and its parents, if they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except FileExistsError as error:
        raise InputError(f"cannot write to {path}: it is a file; give the name of a folder") from error
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror or error}") from error


def sync_folder(path: Path) -> None:
    """Make new names in a folder survive a power failure, if the system can promise that."""
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
    """Remove what a killed process had not finished writing with `replacing`; only while no other process writes."""
    for left in folder.glob("." + _HEX * "?" + _PART):
        with suppress(OSError):
            left.unlink()


FORMAT = "cpaan model"
FORMAT_VERSION = 1
TENSORS, CONFIG = "model.safetensors", "config.json"
_BLOCK_BYTES = 2**22


def encode_name(name: Hashable) -> Any:
    """Convert a class name to JSON, from which `decode_name` gets it back unchanged.

    >>> encode_name(("a", 1))
    {'tuple': ['a', 1]}
    """
    if name is None or isinstance(name, (str, bool, int, float)):
        return name
    if isinstance(name, tuple):
        return {"tuple": [encode_name(part) for part in name]}
    raise InputError(
        f"a model with the class name {name!r} cannot be saved: names must be text, numbers, booleans or tuples "
        "of these"
    )


def decode_name(name: Any) -> Hashable:
    """Undo `encode_name`."""
    if isinstance(name, dict) and name.keys() == {"tuple"} and isinstance(name["tuple"], list):
        return tuple(decode_name(part) for part in name["tuple"])
    if isinstance(name, dict | list) or (isinstance(name, float) and math.isnan(name)):
        raise InputError(f"{name!r:.100} is not a class name")
    result: Hashable = name
    return result


def write_model(
    folder: str | os.PathLike[str], kind: str, tensors: "Mapping[str, Tensor]", config: Mapping[str, Any]
) -> None:
    """Write a model of some kind, replacing one that exists."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write a model to {folder}: {error.strerror or error}") from error
    with replacing(folder / TENSORS) as temporary:
        try:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary)
        except SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from error
        checksum = _checksum(temporary)
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind}
    whole = {**head, "sha256": checksum, **config}
    write_atomically(folder / CONFIG, json.dumps(whole, indent=1).encode())


def read_model(folder: str | os.PathLike[str], kind: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read the tensors of a model onto the CPU, and its configuration."""
    from safetensors.torch import load_file

    folder = Path(folder)
    config = read_config(folder)
    if config["kind"] != kind:
        raise InputError(f"{folder} holds a {config['kind']:.100}, not a {kind}")
    if not (folder / TENSORS).is_file():
        raise InputError(f"{folder} has no readable {TENSORS}")
    with reading(folder / TENSORS):
        if _checksum(folder / TENSORS) != config["sha256"]:
            raise InputError(
                f"{folder / TENSORS} is truncated or damaged: it does not match the checksum in {CONFIG}; copy the "
                "model or train it again"
            )
        # The library compares every place and size in the header with the length of the file.
        tensors: dict[str, Tensor] = load_file(folder / TENSORS)
        wrong = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
        if wrong:
            raise InputError(f"{folder / TENSORS}: {wrong[0]} is NaN or infinite; train the model again")
    return tensors, config


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the configuration of a model, without its tensors."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; a model is a folder with {TENSORS} and {CONFIG}")
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} is not a model: it has no readable {CONFIG}")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{folder / CONFIG} is of another kind: it does not describe a {FORMAT}")
    if config.get("format_version") != FORMAT_VERSION:
        found = f"{config.get('format_version')!r:.20}"
        raise InputError(f"{folder} has format version {found}, and this cpaan reads {FORMAT_VERSION}")
    for name in ("kind", "sha256"):
        if not isinstance(config.get(name), str):
            raise InputError(f"{folder / CONFIG} is damaged: it has no {name}")
    return config


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of a model's tensors without their values."""
    from safetensors import safe_open

    require_file(path)
    with reading(path, "is truncated or damaged"), safe_open(path, framework="numpy") as file:
        names = file.keys()  # the file itself cannot be iterated
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


LOCK = ".lock"
_LOCK_SECONDS = 0.1  # enough to try again where the holder removed the file just now
_CANNOT_LOCK = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)
_LONGEST_NOTE = 200


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is created if missing and removed if left empty.

    The system frees the lock when its process ends, however that ends: a file `.lock` of a killed process blocks
    nobody. A file system without locks is written to with a warning.

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
    try:
        lock = _hold(folder / LOCK)
        try:
            yield
        finally:
            if lock is not None:
                # While it is held: a process that has opened this file and gets the lock sees that it is gone.
                with suppress(OSError):
                    (folder / LOCK).unlink()
                lock.release()
    finally:
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _hold(path: Path) -> "BaseFileLock | None":
    from filelock import FileLock, SoftFileLock, Timeout

    lock = FileLock(path, timeout=_LOCK_SECONDS, poll_interval=_LOCK_SECONDS / 5)
    try:
        lock.acquire()
        if isinstance(lock, SoftFileLock):  # which outlives a process that was killed
            lock.release()
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    except Timeout as error:
        raise InputError(
            f"{path.parent} is being written to by process {_holder(path)}; wait until it is done, or give another "
            "folder"
        ) from error
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise InputError(f"cannot write to {path.parent}: {error.strerror or error}") from error
        warnings.warn(
            f"files in {path.parent} cannot be locked ({error}): make sure that no other process writes there",
            stacklevel=4,
        )
        return None
    with suppress(OSError):  # a note for people, which a full disk may do without
        path.write_text(f"{os.getpid()} on {socket.gethostname()}\n")
    return lock


def _holder(path: Path) -> str:
    with suppress(OSError), path.open(errors="replace") as file:
        return file.read(_LONGEST_NOTE).strip() or "of unknown number"
    return "of unknown number"


def require_writable_file(path: Path) -> None:
    """Refuse a file that could not be written, before a long computation begins."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
    _require_writable_folder(path.parent, path)


def require_model_folder(path: Path, *, overwrite: bool, ours: bool = False) -> None:
    """Refuse a folder that a model cannot or should not be written to, before a long computation begins.

    `overwrite` allows replacing a model; `ours` says that what is there belongs to a model that is not finished.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"cannot write a model to {path}: it is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()):
        if not ours and not (path / "config.json").exists():
            raise InputError(f"{path} is not empty and holds no model; give another folder")
        if not overwrite:
            raise InputError(f"{path} holds a model already; give another folder, or --overwrite")
    _require_writable_folder(next(folder for folder in (path, *path.parents) if folder.exists()), path)


def _require_writable_folder(folder: Path, wanted: Path) -> None:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"cannot write {wanted}: {folder} {what}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {wanted}: no permission to write in {folder}")


def csv_text(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    r"""Write a table as comma-separated values; None becomes an empty cell.

    >>> csv_text(["a", "b"], [[1, "x, y"], [2, None]])
    'a,b\n1,"x, y"\n2,\n'
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()
