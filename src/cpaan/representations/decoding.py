"""Decode image files: always RGB, upright and complete.

Reads JPEG, PNG, BMP, GIF, WebP, TIFF and PPM/PGM, recognised by content. Files are untrusted: other formats of Pillow
are never tried, and a file with an absurd number of pixels is refused before it is decoded.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from cpaan.data.arguments import as_whole_number

MOST_PIXELS = 178_956_970  # Pillow's own default limit

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# A JPEG can be decoded at a half, a quarter or an eighth of its size. It must stay this many times larger than wanted,
# so the resampling that follows decides how the result looks.
_DRAFT_MARGIN = 2
_SIXTEEN_BITS = 65_535
_SIXTEEN_TO_EIGHT = 257


class BadImage(ValueError):  # noqa: N818 - it says what is wrong: the image, not the caller
    """An image file cannot be decoded; the message says why."""


def decode_image(content: bytes, size: int) -> npt.NDArray[np.uint8]:
    """Decode an image file to a square of 3 × size × size bytes.

    The shorter side is scaled to `size` pixels (bicubic, antialiased) unless it has that length, and the centre is cut
    out. Raises BadImage if the file is damaged, truncated, too large or not an image.
    """
    side = as_whole_number(size, "size", minimum=1)
    with _opened(content) as image:
        if image.format == "JPEG":
            scale = _DRAFT_MARGIN * side / min(image.size)
            image.draft(None, (int(image.width * scale), int(image.height * scale)))
        square = _square(_as_rgb(_upright(image)), side)
        return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def decode_pil(content: bytes) -> Image.Image:
    """Decode an image file to an upright RGB image of Pillow in its own size; raises BadImage if it cannot."""
    with _opened(content) as image:
        whole = _as_rgb(_upright(image))
        # Closing the file it was read from would discard its pixels.
        return whole.copy() if whole is image else whole


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever goes wrong with it until it is closed becomes a BadImage."""
    if not content:
        raise BadImage("the file is empty")
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata, which does not matter here, and of large images, which are refused below.
            warnings.simplefilter("ignore")
            # If another library has set this, Pillow would fill the missing part with grey.
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            with Image.open(BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise BadImage(f"it has {image.width} × {image.height} pixels, more than {MOST_PIXELS}")
                yield image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(f"not an image of a known format ({', '.join(_FORMATS)})") from error
    # Decoders raise almost anything on damaged or malicious files.
    except Exception as error:
        raise BadImage(str(error) or type(error).__name__) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    with suppress(Exception):  # unreadable metadata does not spoil the pixels
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise BadImage("its pixels are floating-point numbers of unknown range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, "white")
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Scale to 8 bits; Pillow itself would clip values at 255."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > _SIXTEEN_BITS:
        raise BadImage("its pixels have more than 16 bits; save it with 8 or 16")
    eight = (values.astype(np.int64) + _SIXTEEN_TO_EIGHT // 2) // _SIXTEEN_TO_EIGHT
    return Image.fromarray(eight.astype(np.uint8)).convert("RGB")


def _square(image: Image.Image, side: int) -> Image.Image:
    width, height = image.size
    shorter = min(width, height)
    if width == height == side:
        return image
    if shorter == side:
        left, top = (width - side) // 2, (height - side) // 2
        return image.crop((left, top, left + side, top + side))
    # Resample only the visible part: a whole line of 1 × 100 000 pixels would fill the memory.
    box = ((width - shorter) / 2, (height - shorter) / 2, (width + shorter) / 2, (height + shorter) / 2)
    return image.resize((side, side), Image.Resampling.BICUBIC, box=box)
