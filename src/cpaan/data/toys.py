"""Two sets that need no download: the spiral of the paper, and characters in the fonts that matplotlib ships.

A class of the second is a character, an example is its image in one font, and the features are pixels, so one can look
at what a generator makes.
"""

import importlib.util
import math
import string
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cpaan.data.arguments import RandomState, as_generator, as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import LowShotSplit, low_shot_split
from cpaan.errors import InputError
from cpaan.extras import missing_extra

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont


BASE_ARMS = ("top", "bottom")
NOVEL_ARMS = ("left", "right")

_QUARTERS = {"right": 0, "top": 1, "left": 2, "bottom": 3}
_INNER_RADIUS = 0.15
_TURN = 0.75 * math.pi
# Where along an arm it points in the direction of its name: past the middle, because the outer half is longer.
_NAMED_AT = 0.65


def make_spiral(
    shots: int = 4, *, per_arm: int = 500, noise: float = 0.025, random_state: RandomState = 0
) -> LowShotSplit:
    """Draw a four-arm spiral in the plane.

    Point t ∈ [0, 1] of an arm lies at radius r₀ + (1 − r₀) t and angle φ + τ (t − t₀), plus Gaussian noise; φ grows by
    90° from arm to arm.

    Parameters
    ----------
    shots : int, default=4
        Number of known points of each novel arm.
    per_arm : int, default=500
        Number of points of each arm.
    noise : float, default=0.025
        Standard deviation of the noise. With the default, arms do not touch.
    random_state : int, numpy.random.Generator or None, default=0
        Seed of the points and of the draw; the points do not depend on `shots`.

    Returns
    -------
    LowShotSplit
        Base arms "top" and "bottom", novel arms "left" and "right".

    Examples
    --------
    >>> split = make_spiral(shots=4)
    >>> split.base
    FeatureSet(1000 examples of 2 classes, 2 features, float32)
    >>> split.novel_classes, len(split.shots), len(split.unseen)
    (('left', 'right'), 8, 992)
    """
    count = as_whole_number(per_arm, "per_arm", minimum=1)
    if not isinstance(noise, Real) or not 0 <= noise < math.inf:
        raise InputError(f"noise is {noise!r}; give a standard deviation of at least 0")
    generator = as_generator(random_state)
    names = BASE_ARMS + NOVEL_ARMS
    points = np.concatenate([_arm(name, count, noise, generator) for name in names])
    arms = FeatureSet(points.astype(np.float32), np.repeat(np.arange(len(names)), count), names)
    return low_shot_split(arms, BASE_ARMS, NOVEL_ARMS, shots, generator)


def _arm(name: str, count: int, noise: float, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    along = generator.uniform(size=count)
    radius = _INNER_RADIUS + (1 - _INNER_RADIUS) * along
    angle = _QUARTERS[name] * math.pi / 2 + _TURN * (along - _NAMED_AT)
    exact = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points: npt.NDArray[np.float64] = exact + noise * generator.standard_normal((count, 2))
    return points


# Without those that look like another but for their size or a few pixels: 0 (O); 1, l and | (I); c, o, s, v, w, x and
# z (their capitals); the colon (the semicolon); full stop, comma, quotes and dashes.
GLYPHS = (
    string.ascii_uppercase
    + "abdefghijkmnpqrtuy"
    + "23456789"
    + "&@#$%?!*+=/()[]{}<>~;"
    + "§ßæ£€¶"
)  # fmt: skip

# Letters, digits and signs in about the same proportion as in GLYPHS, many of them easy to judge by eye.
_NOVEL = "ADGKMRSWY" + "befgkqt" + "358" + "&#?*+)]<§"

# Fonts that matplotlib has had for long; cmti10, which came late, would make the set depend on its version.
_UNICODE_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)

# Computer Modern fonts are in TeX's encodings: cmr10 has a dash in place of {, an inverted ! in place of <, and a
# capital sigma in place of §. They are used only for characters that both encodings have in the same place.
_TEX_TEXT = string.ascii_letters + string.digits + "&@#$%?!*+=/()[];"
_TEX_FONTS = {
    "cmr10": _TEX_TEXT,
    "cmb10": _TEX_TEXT,
    "cmss10": _TEX_TEXT,
    "cmtt10": _TEX_TEXT + "{}<>",
    "cmmi10": string.ascii_letters + "<>",
}

_SMALLEST = 8
_MARGIN = 1
# Glyphs are drawn larger and averaged: their place is then exact to a fraction of a pixel, and hinting, which differs
# between versions of FreeType, does not show.
_OVERSAMPLING = 4
_MEASURING_SIZE = 200
_NONCHARACTER = "\U0010ffff"


def load_glyphs(size: int = 24) -> FeatureSet:
    """Render characters in many fonts.

    Font size and baseline are the same for all characters of a font; glyphs are centred horizontally.

    Parameters
    ----------
    size : int, default=24
        Width and height of an image in pixels.

    Returns
    -------
    FeatureSet
        `size`² features, pixels row by row from 0 (ground) to 1 (ink); 79 classes of 16 to 21 examples, ordered by
        font; classes as in `GLYPHS`. Needs matplotlib, whose fonts these are.

    Examples
    --------
    >>> glyphs = load_glyphs()
    >>> glyphs
    FeatureSet(1586 examples of 79 classes, 576 features, float32)
    >>> glyphs.of_class("g").reshape(-1, 24, 24).shape
    (21, 24, 24)
    """
    pixels = as_whole_number(size, "size", _SMALLEST)
    images, labels = [], []
    for path, characters in _fonts():
        for character, image in _render_font(path, characters, pixels):
            images.append(image.ravel())
            labels.append(GLYPHS.index(character))
    return FeatureSet(np.stack(images), labels, tuple(GLYPHS))


def glyph_split() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give a fixed split of the characters: 51 base classes and 28 novel ones.

    Examples
    --------
    >>> base, novel = glyph_split()
    >>> len(base), len(novel), "".join(novel)
    (51, 28, 'ADGKMRSWYbefgkqt358&#?*+)]<§')
    """
    return tuple(character for character in GLYPHS if character not in _NOVEL), tuple(_NOVEL)


def _fonts() -> Iterator[tuple[Path, str]]:
    folder = _font_folder()
    allowed = dict.fromkeys(_UNICODE_FONTS, GLYPHS) | _TEX_FONTS
    for name, characters in allowed.items():
        path = folder / f"{name}.ttf"
        if not path.is_file():
            raise InputError(f"matplotlib's font {path} is missing; install again: pip install 'cpaan[report]'")
        yield path, "".join(character for character in GLYPHS if character in characters)


def _font_folder() -> Path:
    # Not imported, which takes a second: only its files are needed.
    found = importlib.util.find_spec("matplotlib")
    if found is None or not found.submodule_search_locations:
        raise missing_extra("matplotlib", "drawing glyphs, in fonts that it ships,")
    return Path(found.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


def _open_font(path: Path, size: float) -> "FreeTypeFont":
    from PIL import ImageFont

    # The basic layout is in every build of Pillow; the other one needs a library that may be missing.
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _render_font(path: Path, characters: str, size: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    measuring = _open_font(path, _MEASURING_SIZE)
    missing = measuring.getmask(_NONCHARACTER)
    present = [glyph for glyph in characters if not _is_missing(measuring.getmask(glyph), missing)]
    boxes = np.array([measuring.getbbox(character, anchor="ls") for character in present])
    top, bottom = boxes[:, 1].min(), boxes[:, 3].max()
    widest = (boxes[:, 2] - boxes[:, 0]).max()
    scale = (size - 2 * _MARGIN) * _OVERSAMPLING / max(bottom - top, widest)
    baseline = size * _OVERSAMPLING / 2 - scale * (top + bottom) / 2
    font = _open_font(path, scale * _MEASURING_SIZE)
    for character in present:
        yield character, _draw(font, character, size, round(baseline))


def _is_missing(drawn: Any, missing: Any) -> bool:
    """Tell whether a font drew nothing, or its sign for a character that it lacks."""
    # Sizes are compared first: reading pixels out of Pillow's masks is slow.
    return drawn.getbbox() is None or (drawn.size == missing.size and bytes(drawn) == bytes(missing))


def _draw(font: "FreeTypeFont", character: str, size: int, baseline: int) -> npt.NDArray[np.float32]:
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (size * _OVERSAMPLING, size * _OVERSAMPLING))
    left, _, right, _ = font.getbbox(character, anchor="ls")
    start = round((canvas.width - left - right) / 2)
    ImageDraw.Draw(canvas).text((start, baseline), character, font=font, fill=255, anchor="ls")
    blocks = np.asarray(canvas, dtype=np.float32).reshape(size, _OVERSAMPLING, size, _OVERSAMPLING)
    image: npt.NDArray[np.float32] = blocks.mean(axis=(1, 3)) / np.float32(255)
    return image
