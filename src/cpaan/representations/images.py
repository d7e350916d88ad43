"""Index the images of folders `train/CLASS/*.jpg`, or of tar shards with the same paths inside.

An index holds names and positions only, so even a million images are indexed quickly. Nothing is unpacked: images are
read on demand, from their position in the tar. Tars are untrusted, so their headers are checked.
"""

import hashlib
import io
import os
import re
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cpaan.data.feature_set import IndexArray, as_classes, raise_unknown, show_names
from cpaan.data.untrusted import read_bytes
from cpaan.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LAYOUT = "put images into train/CLASS/ and val/CLASS/, or into CLASS/"
MOST_IMAGE_BYTES = 2**28

_TRAIN = "train"
_PARTS = (_TRAIN, "val", "test")
_COMPRESSED_ENDINGS = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_COMPRESSED_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
_UNPACK = "images are read from their position in the tar: unpack it, or pack it again without compression"
# What tarfile raises on damaged headers; some ask for more memory or depth than there is.
_DAMAGE = (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, LookupError, MemoryError, RecursionError)
_CHUNK_BYTES = 2**20
_LONGEST_HEADER = 2**20


def index_images(root: str | os.PathLike[str], *, classes: Iterable[str] | None = None) -> "ImageIndex":
    """Index the images in a folder or in tars, sorted by part, class and file name, without opening any of them.

    Names that start with a dot are ignored, and so, with a warning, are files whose ending is not that of an image.

    Parameters
    ----------
    root : str or path
        A folder with `train/CLASS/*.jpg` and optionally `val/CLASS/*.jpg` or `test/CLASS/*.jpg`, which are for testing
        (other folders next to these are ignored); a folder with `CLASS/*.jpg`; a tar with such paths; or a folder of
        several such tars.
    classes : iterable of str, optional
        Index only these classes, in this order; by default all, sorted by name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for tree in ("oak", "elm"):
    ...         Path(folder, tree).mkdir()
    ...         _ = Path(folder, tree, "1.jpg").write_bytes(b"")
    ...     index = index_images(folder)
    >>> index.classes, [entry.name for entry in index.entries]
    (('elm', 'oak'), ['elm/1.jpg', 'oak/1.jpg'])
    """
    found = _find(Path(root))
    if found.ignored:
        shown = ", ".join(f"{count} {kind}" if "files" in kind else kind for kind, count in found.ignored.items())
        warnings.warn(f"{root}: ignored {shown}; images end in {' '.join(ENDINGS)}", stacklevel=2)
    wanted = None if classes is None else [str(name) for name in as_classes(classes)]
    empty = [folder for folder in found.empty if wanted is None or folder.rpartition("/")[2] in wanted]
    if empty:
        raise InputError(f"{root}: no image in the class folders {show_names(empty)}; add images or remove them")
    if not found.entries:
        raise InputError(f"{root} holds no images ({' '.join(ENDINGS)}); {LAYOUT}")
    entries = sorted(found.entries, key=lambda entry: (entry.name.rpartition("/")[2], entry.name))
    index = ImageIndex(tuple(found.labels), tuple(entries)).select(wanted or sorted(found.labels))
    trained = set(index.labels[~index.is_test].tolist())
    untrained = [name for label, name in enumerate(index.classes) if label not in trained]
    if trained and untrained:  # a source may be for testing only
        raise InputError(f"{root}: no training images of the classes {show_names(untrained)}; add some or remove them")
    return index


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """Where one image is, and what it shows."""

    file: Path  # the image file, or the tar that holds it
    name: str  # path below the indexed folder; for a tar, such as "base-train-0.tar:train/n01/x.JPEG"
    offset: int | None  # position and bytes in the tar; None for a file on disk
    size: int | None
    label: int
    is_test: bool

    @property
    def place(self) -> str:
        """Full path, followed by a colon and the path inside the tar."""
        return str(self.file) if self.offset is None else f"{self.file}{self.name[len(self.file.name) :]}"

    def read(self) -> bytes:
        """Read the bytes of the image file; refuse more than 256 MiB, or a tar that became shorter."""
        if self.offset is None or self.size is None:
            return read_bytes(self.file, MOST_IMAGE_BYTES)
        if self.size > MOST_IMAGE_BYTES:
            raise InputError(f"{self.name} has more than {MOST_IMAGE_BYTES / 2**20:.0f} MiB, the limit for an image")
        with self.file.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) != self.size:
            raise OSError(f"{self.file} has become shorter since it was indexed")
        return content


@dataclass(frozen=True)
class ImageIndex:
    """Images and their classes, sorted by part (training first), class and file name."""

    classes: tuple[str, ...]
    entries: tuple[ImageEntry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"ImageIndex({len(self.classes)} classes, {len(self)} images, {int(self.is_test.sum())} for testing)"

    @cached_property
    def labels(self) -> IndexArray:
        """Class index of each image, read-only."""
        labels: IndexArray = np.fromiter((entry.label for entry in self.entries), np.int64, len(self))
        labels.flags.writeable = False
        return labels

    @cached_property
    def is_test(self) -> npt.NDArray[np.bool_]:
        """Whether each image is held out for testing, read-only."""
        is_test: npt.NDArray[np.bool_] = np.fromiter((entry.is_test for entry in self.entries), np.bool_, len(self))
        is_test.flags.writeable = False
        return is_test

    @cached_property
    def fingerprint(self) -> str:
        """Hash of classes and names, in tars also of sizes, wherever images are stored; files are not opened."""
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogateescape"))
        for entry in self.entries:
            digest.update(f"{entry.name}\0{entry.size}\0{entry.label}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:16]

    def select(self, classes: Iterable[str]) -> "ImageIndex":
        """Keep the images of some classes, in the given order of classes."""
        names = tuple(str(name) for name in as_classes(classes))
        unknown = sorted(set(names) - set(self.classes), key=names.index)
        if unknown:
            raise_unknown(unknown, sorted(self.classes))
        label_of = {self.classes.index(name): label for label, name in enumerate(names)}
        kept = [
            ImageEntry(entry.file, entry.name, entry.offset, entry.size, label_of[entry.label], entry.is_test)
            for entry in self.entries
            if entry.label in label_of
        ]
        kept.sort(key=lambda entry: (entry.is_test, entry.label))
        return ImageIndex(names, tuple(kept))

    def part(self, name: str) -> "ImageIndex":
        """Keep the images for "train"ing or for "test"ing; classes stay, even those without an image there."""
        if name not in ("train", "test"):
            raise InputError(f"part must be 'train' or 'test', got {name!r}")
        wanted = name == "test"
        kept = tuple(entry for entry in self.entries if entry.is_test == wanted)
        if not kept:
            folders = "val/CLASS/ or test/CLASS/" if wanted else "train/CLASS/"
            raise InputError(f"there are no images for {name}ing; put them into {folders}")
        return ImageIndex(self.classes, kept)


class _Found(NamedTuple):
    labels: dict[str, int]  # of classes, in the order of their discovery
    entries: list[ImageEntry]
    empty: list[str]  # class folders without an image
    ignored: Counter[str]  # by kind


def _find(root: Path) -> _Found:
    """Find the images of a folder, a tar or a folder of tars, in any order."""
    if os.path.isfile(root):
        return _search_tars([root])
    entries = _visible(root)
    folders = sorted(entry.name for entry in entries if entry.is_dir())
    files = sorted(entry.name for entry in entries if not entry.is_dir())
    parts = [part for part in _PARTS if part in folders]
    if parts:
        found = _search_folders(root, parts)
        found.ignored.update(f"folder {name}/" for name in folders if name not in parts)
        return found
    compressed = [name for name in files if name.lower().endswith(_COMPRESSED_ENDINGS)]
    if compressed:
        raise InputError(f"{root} holds compressed tars: {show_names(compressed)}; {_UNPACK}")
    tars = [name for name in files if name.lower().endswith(".tar")]
    if not tars:
        return _search_folders(root, [""])
    if folders:
        raise InputError(
            f"{root} holds both tars ({show_names(tars)}) and folders ({show_names(folders)}); keep tars in a separate "
            "folder"
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


def _kind(name: str) -> str:
    return f"files ending in {os.path.splitext(name)[1].lower() or 'nothing'}"


def _search_folders(root: Path, parts: list[str]) -> _Found:
    found = _Found({}, [], [], Counter())
    for part in parts:
        entries = _visible(root / part)
        for entry in entries:
            if not entry.is_dir() and _is_image(entry.name):
                raise InputError(f"{entry.path} is not in a class folder; {LAYOUT}")
        folders = [entry.name for entry in entries if entry.is_dir()]
        if not folders:
            raise InputError(f"{root / part} has no class folders; {LAYOUT}")
        for name in folders:
            _search_class_folder(root, part, name, found)
    return found


def _search_class_folder(root: Path, part: str, class_name: str, found: _Found) -> None:
    folder = f"{part}/{class_name}" if part else class_name
    before = len(found.entries)
    label, is_test = found.labels.get(class_name, len(found.labels)), part not in ("", _TRAIN)
    path = root / folder
    for entry in _visible(path):
        # The listing gives the kind; following links would take a system call for each file.
        if entry.is_dir(follow_symlinks=False):
            raise InputError(f"{entry.path} is a folder in a class folder; put images into the class folder itself")
        if _is_image(entry.name) and (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
            image = ImageEntry(path / entry.name, f"{folder}/{entry.name}", None, None, label, is_test)
            found.entries.append(image)
        else:
            found.ignored[_kind(entry.name)] += 1
    if len(found.entries) == before:
        found.empty.append(folder)
    else:
        found.labels[class_name] = label


def _search_tars(tars: list[Path]) -> _Found:
    labels: dict[str, int] = {}
    images: dict[str, ImageEntry] = {}
    folders: set[str] = set()
    ignored: Counter[str] = Counter()
    for path in tars:
        for member in _members(path):
            steps = [step for step in member.name.split("/") if step not in ("", ".")]
            if any(step.startswith(".") for step in steps):
                continue
            if not (member.isdir() or _is_image(member.name)):
                ignored[_kind(member.name)] += 1
                continue
            if steps[:1] and steps[0] not in _PARTS:
                steps.insert(0, _TRAIN)
            if member.isdir():
                folders.update(["/".join(steps[:2])] if len(steps) > 1 else [])
                continue
            try:
                part, class_name, _ = steps
            except ValueError as error:
                raise InputError(f"{path}: the image {member.name!r} is not in a class folder; {LAYOUT}") from error
            name = f"{path.name}:{member.name.removeprefix('./')}"
            label = labels.setdefault(class_name, len(labels))
            image = ImageEntry(path, name, member.offset_data, member.size, label, part != _TRAIN)
            # By part, class and file name, so "./oak/1.jpg", "oak/1.jpg" and "train/oak/1.jpg" are the same.
            earlier = images.setdefault("/".join(steps), image)
            if earlier is not image:
                raise InputError(f"the same image occurs twice: {earlier.name} and {image.name}; remove one of them")
    empty = sorted(folders - {key.rpartition("/")[0] for key in images})
    return _Found(labels, list(images.values()), empty, ignored)


class _Headers(io.FileIO):
    """A file from which only short headers are read: a tar may claim that one has gigabytes."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size) or b""


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the checked files and folders of a tar, and make sure that none follow them."""
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
                    # tarfile keeps every header, which takes a gigabyte for a million images.
                    archive.members = []  # type: ignore[attr-defined]
                    yield member
                file.seek(archive.offset)
            _require_end(path, file.read(tarfile.BLOCKSIZE), iter(lambda: file.read(_CHUNK_BYTES), b""))
    except InputError:
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{path} is not a tar, is damaged or cannot be read: {reason}; copy it again") from error


def _require_harmless(path: Path, member: tarfile.TarInfo, total: int) -> None:
    name = member.name
    if name.startswith(("/", "\\")) or name[1:3] in (":/", ":\\") or ".." in re.split(r"[/\\]", name):
        raise InputError(f"{path}: the member {name!r} would leave its folder; pack the tar again without it")
    if member.issym() or member.islnk():
        raise InputError(
            f"{path}: the member {name!r} is a link to {member.linkname!r}; through a link a member would leave its "
            "folder, so pack the files themselves (tar --dereference --hard-dereference)"
        )
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise InputError(f"{path}: the member {name!r} is a device or a sparse file; pack the tar again without it")
    if member.size < 0 or (member.isreg() and member.offset_data + member.size > total):
        raise InputError(
            f"{path}: the member {name!r} claims {member.size} bytes, more than the tar has; it is truncated or "
            "damaged, copy it again"
        )


def _require_end(path: Path, mark: bytes, rest: Iterator[bytes]) -> None:
    # tarfile takes anything unreadable for the end, and would silently lose the images after it.
    if len(mark) < tarfile.BLOCKSIZE or mark.strip(b"\0"):
        raise InputError(f"{path} is truncated or damaged: its end mark is missing; copy it again")
    if any(chunk.strip(b"\0") for chunk in rest):
        raise InputError(f"{path} continues after its end mark; join tars with tar --concatenate, or keep them apart")
