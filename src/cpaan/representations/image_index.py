"""Which images there are: folders `train/CLASS/*.jpg`, or tar shards with the same paths inside.

An index holds names and places only, so it is made at once even for a million images; bytes are read when they are
wanted, out of a tar from the place where they lie in it.
"""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cpaan.data.arguments import as_whole_number
from cpaan.data.class_names import IndexArray, as_classes, raise_unknown, show_names
from cpaan.data.limits import read_bytes
from cpaan.errors import InputError
from cpaan.representations.image_sources import ENDINGS, LAYOUT, Findings, find_images

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
