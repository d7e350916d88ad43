"""Finding images in folders and in tars, by their names alone.

No image is opened, and nothing is ever unpacked: of a tar only the headers are read, since a member is later read from
its place in the tar. A tar may come from anywhere, so what it says of itself is checked before it is believed.
"""

import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cpaan.data.class_names import show_names
from cpaan.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LAYOUT = "images must lie in train/CLASS/ and val/CLASS/, or in CLASS/"

_TRAIN = "train"
_PARTS = (_TRAIN, "val", "test")
_COMPRESSED_ENDINGS = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_COMPRESSED_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
_UNPACK = "images are read from their place in the tar: unpack it, or pack it again without compression"
# What tarfile raises at headers that make no sense; some ask for more memory or depth than there is.
_DAMAGE = (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, LookupError, MemoryError, RecursionError)
_CHUNK_BYTES = 2**20
_LONGEST_HEADER = 2**20


class FoundImage(NamedTuple):
    """An image by its place; images are sorted by these fields in this order."""

    is_test: bool
    class_name: str
    file_name: str
    name: str
    file: Path
    offset: int | None
    size: int | None


class Findings(NamedTuple):
    """The images, the class folders in which there are none, and what was passed over, by its kind."""

    images: list[FoundImage]
    empty: list[str]
    passed: Counter[str]


def find_images(root: Path) -> Findings:
    """Find the images of a folder, a tar or a folder of tars.

    Parameters
    ----------
    root : Path
        The folder or the tar.

    Returns
    -------
    Findings
        In no particular order.

    Raises
    ------
    InputError
        Where it cannot be read, images lie outside of class folders, or a tar cannot be trusted.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "oak").mkdir()
    ...     find_images(Path(folder))
    Findings(images=[], empty=['oak'], passed=Counter())
    """
    if os.path.isfile(root):
        return _search_tars([root])
    entries = _visible(root)
    folders = sorted(entry.name for entry in entries if entry.is_dir())
    files = sorted(entry.name for entry in entries if not entry.is_dir())
    parts = [part for part in _PARTS if part in folders]
    if parts:
        findings = _search_folders(root, parts)
        findings.passed.update(f"folder {name}/" for name in folders if name not in parts)
        return findings
    compressed = [name for name in files if name.lower().endswith(_COMPRESSED_ENDINGS)]
    if compressed:
        raise InputError(f"{root} holds compressed tars: {show_names(compressed)}; {_UNPACK}")
    tars = [name for name in files if name.lower().endswith(".tar")]
    if not tars:
        return _search_folders(root, [""])
    if folders:
        raise InputError(
            f"{root} holds tars ({show_names(tars)}) and folders ({show_names(folders)}), and which of them are meant "
            "is not clear; keep tars in a folder of their own"
        )
    return _search_tars([root / name for name in tars])


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError as error:
        raise InputError(f"there is no file or folder {folder}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} cannot be read: {error}") from error


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _search_folders(root: Path, parts: list[str]) -> Findings:
    findings = Findings([], [], Counter())
    for part in parts:
        folders = [entry.name for entry in _visible(root / part) if _is_class_folder(entry)]
        if not folders:
            raise InputError(f"{root / part} has no class folders; {LAYOUT}")
        for name in folders:
            _search_class_folder(root, part, name, findings)
    return findings


def _is_class_folder(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir():
        return True
    if _is_image(entry.name):
        raise InputError(f"{entry.path} lies in no class folder; {LAYOUT}")
    return False


def _search_class_folder(root: Path, part: str, class_name: str, findings: Findings) -> None:
    folder = f"{part}/{class_name}" if part else class_name
    before = len(findings.images)
    is_test = part not in ("", _TRAIN)
    path = root / folder
    for entry in _visible(path):
        # The kind comes with the listing; only a link would have to be followed, which takes a call for each file.
        if entry.is_dir(follow_symlinks=False):
            raise InputError(f"{entry.path} is a folder in a class folder; images must lie in the class folder itself")
        if _is_image(entry.name) and (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
            name = f"{folder}/{entry.name}"
            findings.images.append(FoundImage(is_test, class_name, entry.name, name, path / entry.name, None, None))
        else:
            findings.passed[_kind(entry.name)] += 1
    if len(findings.images) == before:
        findings.empty.append(folder)


def _kind(name: str) -> str:
    return f"files ending in {os.path.splitext(name)[1].lower() or 'nothing'}"


def _search_tars(tars: list[Path]) -> Findings:
    images: dict[str, FoundImage] = {}
    folders: set[str] = set()
    passed: Counter[str] = Counter()
    for path in tars:
        for member in _members(path):
            steps = [step for step in member.name.split("/") if step not in ("", ".")]
            if any(step.startswith(".") for step in steps):
                continue
            if not (member.isdir() or _is_image(member.name)):
                passed[_kind(member.name)] += 1
                continue
            if steps[:1] and steps[0] not in _PARTS:
                steps.insert(0, _TRAIN)
            if member.isdir():
                folders.update(["/".join(steps[:2])] if len(steps) > 1 else [])
                continue
            found = _found_in_tar(path, member, steps)
            # By part, class and file name, so that "./oak/1.jpg", "oak/1.jpg" and "train/oak/1.jpg" are the same.
            earlier = images.setdefault("/".join(steps), found)
            if earlier is not found:
                raise InputError(f"the same image is there twice: {earlier.name} and {found.name}; remove one of them")
    return Findings(list(images.values()), sorted(folders - {key.rpartition("/")[0] for key in images}), passed)


def _found_in_tar(path: Path, member: tarfile.TarInfo, steps: list[str]) -> FoundImage:
    name = f"{path.name}:{member.name.removeprefix('./')}"
    try:
        part, class_name, file_name = steps
    except ValueError as error:
        raise InputError(f"{path}: the image {member.name!r} lies in no class folder; {LAYOUT}") from error
    return FoundImage(part != _TRAIN, class_name, file_name, name, path, member.offset_data, member.size)


class _Headers(io.FileIO):
    """A file of which only headers are read, none of them long: a tar may say that one has gigabytes."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size) or b""


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Give the files and folders of a tar, each checked, and be sure that there are no more of them."""
    try:
        with path.open("rb") as file:
            magic = file.read(max(len(magic) for magic in _COMPRESSED_MAGIC))
            if magic.startswith(_COMPRESSED_MAGIC):
                raise InputError(f"{path} is compressed; {_UNPACK}")
            total = file.seek(0, os.SEEK_END)
            file.seek(0)
            with _Headers(path) as headers, tarfile.open(fileobj=headers, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    _require_harmless(path, member, total)
                    # It keeps every header it has read, which is a gigabyte for a million images.
                    archive.members = []  # type: ignore[attr-defined]
                    yield member
                file.seek(archive.offset)
            _require_end(path, file.read(tarfile.BLOCKSIZE), iter(lambda: file.read(_CHUNK_BYTES), b""))
    except InputError:
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{path} is no tar, or it is damaged or may not be read: {reason}; copy it again") from error


def _require_harmless(path: Path, member: tarfile.TarInfo, total: int) -> None:
    name = member.name
    if name.startswith(("/", "\\")) or name[1:3] in (":/", ":\\") or ".." in re.split(r"[/\\]", name):
        raise InputError(f"{path}: the member {name!r} would leave its folder; refused, pack the tar again without it")
    if member.issym() or member.islnk():
        raise InputError(
            f"{path}: the member {name!r} is a link to {member.linkname!r}; links are refused, since by one of them a "
            "member would leave its folder; pack the files themselves (tar --dereference --hard-dereference)"
        )
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise InputError(f"{path}: the member {name!r} is a device or a sparse file; pack the tar again without it")
    if member.size < 0 or (member.isreg() and member.offset_data + member.size > total):
        raise InputError(
            f"{path}: the member {name!r} should have {member.size} bytes, more than there are in the tar; "
            "it is truncated or damaged, copy it again"
        )


def _require_end(path: Path, mark: bytes, rest: Iterator[bytes]) -> None:
    # tarfile takes whatever it cannot read as the end, and the images after it would be lost without a word.
    if len(mark) < tarfile.BLOCKSIZE or mark.strip(b"\0"):
        raise InputError(f"{path} is truncated or damaged, its end mark is missing; copy it again")
    if any(chunk.strip(b"\0") for chunk in rest):
        raise InputError(f"{path} goes on after its end mark; join tars with tar --concatenate, or keep them apart")
