"""Small pictures for the points of a map: the images of a bank, or features that are pixels themselves."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cpaan.errors import InputError
from cpaan.evaluation.sample import RealSample
from cpaan.representations.decoding import BadImage, decode_image
from cpaan.representations.images import ImageEntry, ImageIndex, index_images

SIDE = 64
PER_CLASS = 3  # images that stand for a class where the image of a point is not known
MOST_BYTES = 3_500_000  # of all pictures of a page, which is to stay below six megabytes
_QUALITY = 60


@dataclass
class Album:
    """The pictures of a page, each once; points refer to them by number."""

    pictures: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, pixels: NDArray[np.uint8], kind: str) -> int | None:
        """Add a picture and give its number; None where the page is full."""
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, **({"quality": _QUALITY} if kind == "JPEG" else {"optimize": True}))
        text = f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
        if self.size + len(text) > MOST_BYTES:
            return None
        self.size += len(text)
        self.pictures.append(text)
        return len(self.pictures) - 1


def parse_pixels(text: str) -> tuple[int, int]:
    """Read the height and width of features that are pixels.

    >>> parse_pixels("24x24")
    (24, 24)
    """
    height, cross, width = text.partition("x")
    if not cross or not height.isdecimal() or not width.isdecimal() or not int(height) * int(width):
        raise InputError(f"--pixels takes HEIGHTxWIDTH, such as 24x24, not {text!r}")
    return int(height), int(width)


def pixel_pictures(features: NDArray[np.floating], shape: tuple[int, int], album: Album) -> list[int | None]:
    """Show features that are grey pixels, 0 for the paper and 1 for the ink."""
    if features.shape[1] != shape[0] * shape[1]:
        raise InputError(f"features have {features.shape[1]} numbers, which are not {shape[0]} × {shape[1]} pixels")
    grey = (255 * (1 - np.clip(features, 0, 1))).astype(np.uint8)
    return [album.add(row.reshape(shape), "PNG") for row in grey]


class ClassImages:
    """The images that a bank was made from.

    Parameters
    ----------
    folder : with a folder or tar members for each class, as `cpaan features extract` reads them
    sample : which classes and examples are shown
    album : takes the pictures
    """

    def __init__(self, folder: Path, sample: RealSample, album: Album) -> None:
        index = index_images(folder)
        known = [name for name in sample.classes if name in set(index.classes)]
        if not known:
            raise InputError(
                f"{folder} has images of other classes than the run; the run shows {', '.join(sample.classes)}"
            )
        self.sample, self.album = sample, album
        self.entries = {name: _entries(index, name) for name in known}
        shown = {name: trained[:PER_CLASS] or tested[:PER_CLASS] for name, (trained, tested) in self.entries.items()}
        self.of_class = [
            [picture for picture in map(self._add, shown.get(name, [])) if picture is not None]
            for name in sample.classes
        ]

    def of_real(self, rows: Sequence[int]) -> list[int | None]:
        """Give the picture of each real example.

        A bank keeps no names of images, but their order: the image is known where there are as many for testing as the
        class has test examples.
        """
        return [self._own(row) for row in rows]

    def _own(self, row: int) -> int | None:
        label = int(self.sample.real_labels[row])
        _, tested = self.entries.get(self.sample.classes[label], ([], []))
        if len(tested) != self.sample.real_counts[label]:
            return None
        return self._add(tested[int(self.sample.real_places[row])])

    def _add(self, entry: ImageEntry) -> int | None:
        try:
            pixels = decode_image(entry.read(), SIDE)
        except BadImage:  # the bank was made without it, or it was damaged since: a point without a picture
            return None
        return self.album.add(np.ascontiguousarray(pixels.transpose(1, 2, 0)), "JPEG")


def _entries(index: ImageIndex, name: str) -> tuple[list[ImageEntry], list[ImageEntry]]:
    """Give the images of a class for training and for testing."""
    label = index.classes.index(name)
    own = [entry for entry in index.entries if entry.label == label]
    return [entry for entry in own if not entry.is_test], [entry for entry in own if entry.is_test]
