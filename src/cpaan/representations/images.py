"""Which images there are: folders `train/CLASS/*.jpg`, or tar shards with the same paths inside.

An index holds names and places only, so it is made at once even for a million images; bytes are read when they are
wanted, out of a tar from the place where they lie in it.

Finding images in folders and in tars, by their names alone.

No image is opened, and nothing is ever unpacked: of a tar only the headers are read, since a member is later read from
its place in the tar. A tar may come from anywhere, so what it says of itself is checked before it is believed.
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

from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import IndexArray, as_classes, raise_unknown, show_names
from cpaan.data.untrusted import read_bytes
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


MOST_IMAGE_BYTES = 2**28
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """Where one image is, and what it shows.

    Parameters
    ----------
    file : Path
        The image file, or the tar that holds it.
    name : str
        Its path below the indexed folder; inside a tar, such as "base-train-0.tar:train/n01/x.JPEG".
    offset, size : int or None
        Place and bytes of the image in the tar; None where it is a file of its own.
    label : int
        Index of its class.
    is_test : bool
        Whether it is held out for testing.

    Examples
    --------
    >>> ImageEntry(Path("/trees/oak/1.jpg"), "oak/1.jpg", None, None, label=0, is_test=False).place
    '/trees/oak/1.jpg'
    """

    file: Path
    name: str
    offset: int | None
    size: int | None
    label: int
    is_test: bool

    @property
    def place(self) -> str:
        """Where to look for it: the whole path, and that inside the tar after a colon."""
        return str(self.file) if self.offset is None else f"{self.file}{self.name[len(self.file.name) :]}"

    def read(self) -> bytes:
        """Read the bytes of the image file.

        Returns
        -------
        bytes
            Not decoded.

        Raises
        ------
        InputError, OSError
            Where it cannot be read, is larger than 256 MiB, or the tar has become shorter since.
        """
        if self.offset is None or self.size is None:
            return read_bytes(self.file, MOST_IMAGE_BYTES)
        if self.size > MOST_IMAGE_BYTES:
            raise InputError(f"{self.name} has more than {MOST_IMAGE_BYTES / 2**20:.0f} MiB, the most of an image file")
        with self.file.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) != self.size:
            raise OSError(f"{self.file} has become shorter since it was indexed")
        return content


@dataclass(frozen=True)
class ImageIndex:
    """Images and their classes.

    Parameters
    ----------
    classes : tuple of str
        Class names.
    entries : tuple of ImageEntry
        The images: those for training first, then by class, then by file name.

    Examples
    --------
    >>> oak = ImageEntry(Path("oak/1.jpg"), "oak/1.jpg", None, None, label=1, is_test=False)
    >>> index = ImageIndex(("elm", "oak"), (oak,))
    >>> len(index), index.counts
    (1, array([0, 1]))
    """

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
    def counts(self) -> IndexArray:
        """Number of images of each class, those for testing included, read-only."""
        counts: IndexArray = np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)
        counts.flags.writeable = False
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits made of classes and names, in tars also sizes; the same wherever images are kept.

        Files are not opened for it: another image under the same name is not noticed.
        """
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogateescape"))
        for entry in self.entries:
            digest.update(f"{entry.name}\0{entry.size}\0{entry.label}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:16]

    def select(self, classes: Iterable[str]) -> "ImageIndex":
        """Keep the images of some classes.

        Parameters
        ----------
        classes : iterable of str
            The class names, in the order that they shall have.

        Returns
        -------
        ImageIndex
            Labels are indices into these classes.

        Raises
        ------
        InputError
            Where there is no class of a name, or a name is given twice.
        """
        names = as_classes(classes)
        known = set(self.classes)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise_unknown(unknown, self.classes)
        position = {name: label for label, name in enumerate(names)}
        label_of = [position.get(name, -1) for name in self.classes]
        kept = [
            ImageEntry(entry.file, entry.name, entry.offset, entry.size, label_of[entry.label], entry.is_test)
            for entry in self.entries
            if label_of[entry.label] >= 0
        ]
        kept.sort(key=lambda entry: (entry.is_test, entry.label))
        return ImageIndex(tuple(str(name) for name in names), tuple(kept))

    def part(self, name: str) -> "ImageIndex":
        """Keep the images for training, or those for testing.

        Parameters
        ----------
        name : {"train", "test"}
            Which.

        Returns
        -------
        ImageIndex
            With the same classes, also those without an image in this part.

        Raises
        ------
        InputError
            Where there is no such image.
        """
        if name not in ("train", "test"):
            raise InputError(f"part is {name!r}; give 'train' or 'test'")
        wanted = name == "test"
        kept = tuple(entry for entry in self.entries if entry.is_test == wanted)
        if not kept:
            folders = "val/CLASS/ or test/CLASS/" if wanted else "train/CLASS/"
            raise InputError(f"there are no images for {name}ing; they must lie in {folders}")
        return ImageIndex(self.classes, kept)


def index_images(root: str | os.PathLike[str], *, classes: Iterable[str] | None = None, fewest: int = 1) -> ImageIndex:
    """Find the images in a folder or in tars, without opening any of them.

    Names that begin with a dot are passed over, and so are files that are no images by their ending; a warning tells
    how many of what ending.

    Parameters
    ----------
    root : str or path
        A folder with `train/CLASS/*.jpg` and perhaps `val/CLASS/*.jpg` or `test/CLASS/*.jpg`, which are then for
        testing (other folders beside these are passed over); a folder with `CLASS/*.jpg`; a tar with such paths; or a
        folder of several such tars.
    classes : iterable of str, optional
        Look at these classes alone, and give them in this order.
    fewest : int, default=1
        The least number of training images that a class may have. Not asked of a source with images for testing only.

    Returns
    -------
    ImageIndex
        Classes sorted by name, images by part, class and file name.

    Raises
    ------
    InputError
        Where there is nothing to read, a class has too few images or none, images lie outside of class folders, or a
        tar is compressed, damaged, or has members that would leave its folder.

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
    least = as_whole_number(fewest, "fewest", minimum=0)
    findings = find_images(Path(root))
    _tell_what_was_passed(findings, root)
    wanted = None if classes is None else [str(name) for name in as_classes(classes)]
    findings = _only(findings, wanted)
    _require_images(findings, Path(root), least)
    names = sorted({image.class_name for image in findings.images})
    label_of = {name: label for label, name in enumerate(names)}
    entries = (
        ImageEntry(image.file, image.name, image.offset, image.size, label_of[image.class_name], image.is_test)
        for image in sorted(findings.images)
    )
    index = ImageIndex(tuple(names), tuple(entries))
    return index if wanted is None else index.select(wanted)


def _only(findings: Findings, classes: list[str] | None) -> Findings:
    if classes is None:
        return findings
    wanted, known = set(classes), {image.class_name for image in findings.images}
    empty = [folder for folder in findings.empty if folder.rpartition("/")[2] in wanted]
    unknown = [name for name in classes if name not in known]
    if unknown and not empty:
        raise_unknown(unknown, tuple(sorted(known)))
    return Findings([image for image in findings.images if image.class_name in wanted], empty, findings.passed)


def _tell_what_was_passed(findings: Findings, root: str | os.PathLike[str]) -> None:
    if findings.passed:
        shown = ", ".join(f"{count} {kind}" if "files" in kind else kind for kind, count in findings.passed.items())
        warnings.warn(f"{root}: passed over {shown}; images end in {' '.join(ENDINGS)}", stacklevel=3)


def _require_images(findings: Findings, root: Path, least: int) -> None:
    images, empty, _ = findings
    if empty:
        raise InputError(f"{root}: no image in the class folders {show_names(empty)}; add images or remove the folders")
    if not images:
        raise InputError(f"{root} holds no images ({' '.join(ENDINGS)}); {LAYOUT}")
    counts = Counter(image.class_name for image in images if not image.is_test)
    few = sorted(name for name in {image.class_name for image in images} if counts[name] < least)
    if few and counts:
        shown = ", ".join(f"{name!r} ({counts[name]})" for name in few[:_SHOWN])
        more = f" and {len(few) - _SHOWN} more" if len(few) > _SHOWN else ""
        raise InputError(
            f"{root}: classes with fewer than {least} training images: {shown}{more}; add images or remove them"
        )
