"""Image files to pixels: always RGB, always upright, always whole.

The formats read are JPEG, PNG, BMP, GIF, WebP, TIFF and PPM/PGM, told by their content. A file may come from anywhere:
others of Pillow's many formats are never tried, and a file with an absurd number of pixels is refused before it is
decoded.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from cpaan.data.arguments import as_whole_number
from cpaan.errors import InputError

MOST_PIXELS = 178_956_970
"""Images with more pixels are refused; Pillow by default refuses them, too."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# A JPEG may be decoded at half, a quarter or an eighth of its size. What is left must still be this much larger than
# wanted, so that the resampling after it decides how the result looks.
_DRAFT_MARGIN = 2
_SIXTEEN_BITS = 65_535
_SIXTEEN_TO_EIGHT = 257


class BadImage(ValueError):  # noqa: N818 - it says what is wrong: the image, not the caller
    """An image file cannot be read; the message says why."""


def decode_image(content: bytes, size: int, resize: int | None = None) -> npt.NDArray[np.uint8]:
    """Decode an image to a square of pixels.

    The image is scaled so that its shorter side has `resize` pixels (bicubic, antialiased; not at all where it has
    them already), and its centre is cut out.

    Parameters
    ----------
    content : bytes
        The image file.
    size : int
        Sides of the result in pixels.
    resize : int, optional
        Length of the shorter side from which the centre is cut; `size` by default.

    Returns
    -------
    ndarray of uint8 of shape (3, size, size)
        Red, green and blue.

    Raises
    ------
    BadImage
        Where the file is damaged, truncated, no image, or too large.

    Examples
    --------
    >>> file = BytesIO()
    >>> Image.new("RGB", (40, 30), (255, 0, 9)).save(file, "PNG")
    >>> decode_image(file.getvalue(), 16)[:, 0, 0]
    array([255,   0,   9], dtype=uint8)
    """
    side, shorter = as_sides(size, resize)
    with _opened(content) as image:
        if image.format == "JPEG":
            least = _DRAFT_MARGIN * shorter / min(image.size)
            image.draft(None, (int(image.width * least), int(image.height * least)))
        square = _square(_as_rgb(_upright(image)), side, shorter)
        return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def decode_pil(content: bytes) -> Image.Image:
    """Decode an image, for encoders that want Pillow's images.

    Parameters
    ----------
    content : bytes
        The image file.

    Returns
    -------
    PIL.Image.Image
        In mode RGB, in its own size, upright.

    Raises
    ------
    BadImage
        Where the file is damaged, truncated, no image, or too large.

    Examples
    --------
    >>> file = BytesIO()
    >>> Image.new("L", (40, 30)).save(file, "PNG")
    >>> image = decode_pil(file.getvalue())
    >>> image.mode, image.size
    ('RGB', (40, 30))
    """
    with _opened(content) as image:
        whole = _as_rgb(_upright(image))
        # Closing the file that it was read from would take its pixels along.
        return whole.copy() if whole is image else whole


def as_sides(size: int, resize: int | None) -> tuple[int, int]:
    """Read the side of a square, and that of the image it is cut from.

    Parameters
    ----------
    size : int
        Side of the square.
    resize : int or None
        Shorter side of the image; None for `size`.

    Returns
    -------
    tuple of two int
        Both.

    Raises
    ------
    InputError
        Where they are no whole numbers from 1, or the square would not fit.

    Examples
    --------
    >>> as_sides(224, 256), as_sides(64, None)
    ((224, 256), (64, 64))
    """
    side = as_whole_number(size, "size", minimum=1)
    shorter = side if resize is None else as_whole_number(resize, "resize", minimum=1)
    if shorter < side:
        raise InputError(f"resize is {shorter}, less than size, which is {side}; give at least size")
    return side, shorter


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever goes wrong with it until it is closed is a BadImage."""
    if not content:
        raise BadImage("the file is empty")
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with warnings.catch_warnings():
            # Of odd metadata, which does not matter here, and of large images, which are refused below.
            warnings.simplefilter("ignore")
            # Another library may have set it, and then the missing part would be filled with grey.
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            with Image.open(BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise BadImage(f"it has {image.width} × {image.height} pixels, more than {MOST_PIXELS}")
                yield image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(f"no image of a known format ({', '.join(_FORMATS)})") from error
    # Decoders raise nearly anything at files that were damaged, or made to harm.
    except Exception as error:
        raise BadImage(str(error) or type(error).__name__) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    # Of metadata that cannot be read the pixels are none the worse.
    except Exception:
        return image
    return image if turn is None else image.transpose(turn)


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
    """Scale to 8 bits: Pillow itself would cut values off at 255."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > _SIXTEEN_BITS:
        raise BadImage("its pixels have more than 16 bits; save it with 8 or 16")
    eight = (values.astype(np.int64) + _SIXTEEN_TO_EIGHT // 2) // _SIXTEEN_TO_EIGHT
    return Image.fromarray(eight.astype(np.uint8)).convert("RGB")


def _square(image: Image.Image, side: int, shorter: int) -> Image.Image:
    width, height = image.size
    if min(width, height) == shorter:
        left, top = (width - side) // 2, (height - side) // 2
        if width == height == side:
            return image
        return image.crop((left, top, left + side, top + side))
    # Only what will be seen is resampled: the whole of a line of 1 × 100 000 pixels would fill the memory.
    half = side * min(width, height) / shorter / 2
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    return image.resize((side, side), Image.Resampling.BICUBIC, box=_inside(box, width, height))


def _inside(box: tuple[float, float, float, float], width: int, height: int) -> tuple[float, float, float, float]:
    """Keep a box from leaving the image by a rounding error."""
    return max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(width)), min(box[3], float(height))
