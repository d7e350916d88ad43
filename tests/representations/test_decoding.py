"""Image files to pixels: odd modes, orientation, scaling, and damaged or malicious files."""

import struct
import warnings
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from PIL import Image, ImageFile, ImageOps

from cpaan.errors import InputError
from cpaan.representations import decoding
from cpaan.representations.decoding import BadImage, decode_image, decode_pil


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def smooth(width: int, height: int) -> Image.Image:
    """Waves, which a JPEG keeps well."""
    y, x = np.mgrid[:height, :width] / max(width, height) * 6
    waves = np.stack([np.sin(x + y), np.cos(x - 2 * y), np.sin(3 * x) * np.cos(y)], axis=-1)
    return Image.fromarray((127.5 + 120 * waves).astype(np.uint8))


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pixels_of(image: Image.Image) -> npt.NDArray[np.int64]:
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1).astype(np.int64)


def furthest(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> int:
    return int(np.abs(one.astype(np.int64) - other).max())


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
def test_lossless_formats_come_as_they_are(form: str) -> None:
    image = noise(8, 8) if form != "GIF" else noise(8, 8).quantize(256)
    decoded = decode_image(encode(image, form, **({"lossless": True} if form == "WEBP" else {})), 8)
    assert decoded.dtype == np.uint8
    assert decoded.shape == (3, 8, 8)
    assert decoded.flags.c_contiguous
    assert furthest(decoded, pixels_of(image)) == 0


def test_the_centre_is_cut_out_without_scaling() -> None:
    image = noise(11, 8)
    assert furthest(decode_image(encode(image), 8), pixels_of(image)[:, :, 1:9]) == 0
    assert (
        furthest(decode_image(encode(image.rotate(90, expand=True)), 8)[0], pixels_of(image)[0, :, 2:10].T[::-1]) == 0
    )


@pytest.mark.parametrize(("width", "height"), [(96, 64), (64, 96), (40, 40), (20, 30), (300, 200)])
def test_scaling_is_that_of_pillow(width: int, height: int) -> None:
    image = smooth(width, height)
    share = 32 / min(width, height)
    scaled = image.resize((round(width * share), round(height * share)), Image.Resampling.BICUBIC)
    left, top = (scaled.width - 32) // 2, (scaled.height - 32) // 2
    expected = pixels_of(scaled.crop((left, top, left + 32, top + 32)))
    decoded = decode_image(encode(image), 32)
    assert furthest(decoded, expected) <= 1


def test_scaling_down_averages() -> None:
    stripes = Image.fromarray(np.tile(np.array([0, 255], dtype=np.uint8), (256, 128))).convert("RGB")
    assert furthest(decode_image(encode(stripes), 32), np.full((3, 32, 32), 127)) <= 8


@pytest.mark.parametrize("side", [256, 512, 1200])
def test_large_jpegs_are_decoded_small(side: int) -> None:
    content = encode(smooth(side, side), "JPEG", quality=95)
    whole = decode_pil(content)
    assert whole.size == (side, side)
    expected = pixels_of(whole.resize((32, 32), Image.Resampling.BICUBIC))
    assert furthest(decode_image(content, 32), expected) <= 3


def test_a_line_of_pixels_does_not_fill_the_memory() -> None:
    assert decode_image(encode(Image.new("RGB", (100_000, 1), "red")), 32)[:, 0, 0].tolist() == [255, 0, 0]
    assert decode_image(encode(Image.new("RGB", (1, 1), "red")), 3).shape == (3, 3, 3)


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (Image.new("L", (4, 4), 77), "PNG", (77, 77, 77)),
        (Image.new("1", (4, 4), 1), "PNG", (255, 255, 255)),
        (Image.new("LA", (4, 4), (0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (200, 0, 0, 255)), "PNG", (200, 0, 0)),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (0, 100, 0, 51)), "PNG", (204, 224, 204)),
        (Image.new("I;16", (4, 4), 65_535), "PNG", (255, 255, 255)),
        (Image.new("I;16", (4, 4), 257 * 99), "PNG", (99, 99, 99)),
        (Image.new("I;16", (4, 4), 257 * 99), "TIFF", (99, 99, 99)),
        (Image.new("I", (4, 4), 257 * 99), "PPM", (99, 99, 99)),
        (Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "TIFF", (0, 255, 255)),
        (Image.new("YCbCr", (4, 4), (90, 128, 128)), "TIFF", (90, 90, 90)),
    ],
)
def test_odd_modes_become_rgb(image: Image.Image, form: str, expected: tuple[int, int, int]) -> None:
    content = encode(image, form)
    try:
        Image.open(BytesIO(content)).load()
    except OSError as error:  # some versions write YCbCr as TIFF in a way that they cannot read
        pytest.skip(f"Pillow {PIL.__version__} cannot read its own {form} of {image.mode}: {error}")
    assert furthest(decode_image(content, 4), np.array(expected)[:, None, None]) <= 1
    whole = decode_pil(content)
    assert whole.mode == "RGB"
    assert furthest(np.asarray(whole), np.array(expected)) <= 1


def test_cmyk_jpegs() -> None:
    content = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    assert furthest(decode_image(content, 16), np.array([255, 0, 0])[:, None, None]) <= 4


def test_palettes_with_a_transparent_colour_lie_on_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 9, 8, 7])
    image.putpixel((0, 0), 1)
    for form in ("PNG", "GIF"):
        decoded = decode_image(encode(image, form, transparency=0), 4)
        assert decoded[:, 0, 0].tolist() == [9, 8, 7]
        assert decoded[:, 1, 1].tolist() == [255, 255, 255]
    colour_key = encode(Image.new("RGB", (4, 4), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert decode_image(colour_key, 4)[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_images_are_upright(orientation: int, form: str) -> None:
    image = noise(6, 4)
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(image, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    turned = ImageOps.exif_transpose(Image.open(BytesIO(content)))
    assert furthest(pixels_of(decode_pil(content)), pixels_of(turned)) == 0
    assert decode_pil(content).size == ((4, 6) if orientation > 4 else (6, 4))


def test_a_jpeg_on_its_side() -> None:
    image = smooth(64, 32)
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encode(image, "JPEG", exif=exif, quality=95)
    expected = pixels_of(ImageOps.exif_transpose(Image.open(BytesIO(content))))[:, 16:48]
    assert furthest(decode_image(content, 32), expected) == 0


def test_broken_metadata_does_not_matter() -> None:
    plain = encode(smooth(16, 16), "JPEG")
    content = encode(smooth(16, 16), "JPEG", exif=b"Exif\0\0MM\0\x2a\0\0\0\x08\xff\xff" + b"\x7f" * 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert furthest(decode_image(content, 16), decode_image(plain, 16)) == 0


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_bombs_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    for decode in (decode_pil, lambda content: decode_image(content, 8)):
        with pytest.raises(BadImage, match="exceeds limit of 178956970 pixels"):
            decode(bomb(50_000, 50_000))
    assert limit == Image.MAX_IMAGE_PIXELS
    # Others switch Pillow's own limit off.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(BadImage, match="50000 × 50000 pixels, more than 178956970"):
        decode_pil(bomb(50_000, 50_000))


def test_large_images_below_the_limit_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 70)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_pil(encode(noise(10, 10))).size == (10, 10)
    monkeypatch.setattr(decoding, "MOST_PIXELS", 99)
    with pytest.raises(BadImage, match="10 × 10 pixels, more than 99"):
        decode_pil(encode(noise(10, 10)))


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
def test_truncated_files_are_never_filled_up(form: str, tolerant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)
    content = encode(noise(40, 40), form)
    for length in (1, 10, len(content) // 2, len(content) * 9 // 10):
        with pytest.raises(BadImage):
            decode_image(content[:length], 8)
        with pytest.raises(BadImage):
            decode_pil(content[:length])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is tolerant


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"no image at all", "not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
        (bomb(0, 5), "."),
        (encode(Image.new("F", (4, 4), 0.5), "TIFF"), "floating-point numbers"),
        (encode(Image.new("I", (4, 4), 70_000), "TIFF"), "more than 16 bits"),
    ],
)
def test_files_other_than_images(content: bytes, message: str) -> None:
    with pytest.raises(BadImage, match=message) as caught:
        decode_image(content, 8)
    assert "0x" not in str(caught.value)
    with pytest.raises(BadImage, match=message):
        decode_pil(content)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP"])
def test_random_damage_gives_pixels_or_a_bad_image(form: str) -> None:
    content = encode(noise(16, 16), form)
    generator = np.random.default_rng(1)
    reasons = []
    for _ in range(60):
        damaged = np.frombuffer(content, dtype=np.uint8).copy()
        damaged[generator.integers(0, len(damaged), 4)] = generator.integers(0, 256, 4)
        try:
            assert decode_image(damaged.tobytes(), 8).shape == (3, 8, 8)
        except BadImage as error:
            reasons.append(str(error))
    assert all(reasons)


def test_sizes_that_make_no_sense() -> None:
    with pytest.raises(InputError, match=r"size .*0"):
        decode_image(b"", 0)
