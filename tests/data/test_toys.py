"""The glyphs and the spiral: what their examples look like, and that seeds decide."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data import FeatureSet, glyph_split, load_glyphs, make_spiral
from cpaan.data import toys as module
from cpaan.errors import InputError


@pytest.fixture(scope="module")
def glyphs() -> FeatureSet:
    return load_glyphs()


def test_shape_and_values(glyphs: FeatureSet) -> None:
    assert glyphs.dimension == 24 * 24
    assert glyphs.features.dtype == np.float32
    assert glyphs.features.min() == 0
    assert glyphs.features.max() == 1
    assert 75 <= glyphs.n_classes <= 85
    assert glyphs.counts.min() >= 14
    assert glyphs.counts.max() == 21
    # Antialiased: grey pixels, not only ground and ink.
    assert np.mean((glyphs.features > 0.1) & (glyphs.features < 0.9)) > 0.05


def test_no_glyph_is_blank_or_clipped(glyphs: FeatureSet) -> None:
    images = glyphs.features.reshape(-1, 24, 24)
    assert images.sum(axis=(1, 2)).min() > 5
    frame = np.ones((24, 24), dtype=bool)
    frame[1:-1, 1:-1] = False
    # A clipped stroke would be full ink at the edge; the margin takes up rounding only.
    assert images[:, frame].max() < 0.5


def test_glyphs_are_centred_and_share_a_baseline(glyphs: FeatureSet) -> None:
    ink = glyphs.of_class("H").reshape(-1, 24, 24) > 0.25
    columns = np.arange(24)
    lefts = np.array([columns[image.any(axis=0)].min() for image in ink])
    rights = np.array([columns[image.any(axis=0)].max() for image in ink])
    assert np.abs(lefts + rights - 23).max() <= 1
    for other in "EhkA":
        others = glyphs.of_class(other).reshape(-1, 24, 24) > 0.25
        bottoms = [[columns[image.any(axis=1)].max() for image in images] for images in (ink, others)]
        assert np.abs(np.diff(np.array(bottoms), axis=0)).max() <= 1


def test_size_carries_information(glyphs: FeatureSet) -> None:
    heights = {name: (glyphs.of_class(name).reshape(-1, 24, 24) > 0.25).any(axis=2).sum(axis=1) for name in ("H", "n")}
    assert np.all(heights["n"] < 0.85 * heights["H"])


def test_no_two_classes_look_alike(glyphs: FeatureSet) -> None:
    unit = glyphs.features / np.linalg.norm(glyphs.features, axis=1, keepdims=True)
    prototypes = np.stack([unit[glyphs.labels == index].mean(axis=0) for index in range(glyphs.n_classes)])
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    likeness = prototypes @ prototypes.T - np.eye(len(prototypes))
    assert likeness.max() < 0.97


def test_examples_are_recognised_from_other_fonts(glyphs: FeatureSet) -> None:
    # A font that drew other signs under these characters, as TeX's do, would be found out here.
    unit = glyphs.features / np.linalg.norm(glyphs.features, axis=1, keepdims=True)
    likeness = unit @ unit.T
    # Classes ascend within a font.
    font = np.cumsum(np.diff(glyphs.labels, prepend=0) < 0)
    likeness[font[:, None] == font[None]] = -1
    right = glyphs.labels[likeness.argmax(axis=1)] == glyphs.labels
    assert right.mean() > 0.95
    for index, name in enumerate(glyphs.classes):
        assert right[glyphs.labels == index].mean() > 0.6, name


def test_the_order_is_fixed(glyphs: FeatureSet) -> None:
    assert load_glyphs() == glyphs
    assert glyphs.classes == tuple(module.GLYPHS)


@pytest.mark.parametrize("size", [8, 17, 32])
def test_other_sizes(size: int) -> None:
    smaller = load_glyphs(size)
    assert smaller.dimension == size * size
    assert smaller.features.sum(axis=1).min() > 0


def test_split_parts_the_classes(glyphs: FeatureSet) -> None:
    base, novel = glyph_split()
    assert sorted(base + novel) == sorted(map(str, glyphs.classes))
    assert (len(base), len(novel)) == (51, 28)
    assert set("ARgkeS5") <= set(novel)


def test_characters_that_a_font_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = "\N{HANGUL SYLLABLE GA}"
    monkeypatch.setattr(module, "GLYPHS", "AB" + lacking)
    monkeypatch.setattr(module, "_UNICODE_FONTS", ("DejaVuSans",))
    with pytest.raises(InputError, match=f"no examples of '{lacking}'"):
        load_glyphs()


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[Any] = [None]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[0])
    with pytest.raises(InputError, match=r"pip install .cpaan\[report\]"):
        load_glyphs()
    found[0] = importlib.machinery.ModuleSpec("matplotlib", None, is_package=True)
    found[0].submodule_search_locations = [str(tmp_path)]
    with pytest.raises(InputError, match=r"DejaVuSans\.ttf is missing"):
        load_glyphs()


@pytest.mark.parametrize("size", [0, 7, 24.0, "24"])
def test_wrong_sizes(size: Any) -> None:
    with pytest.raises(InputError, match="size is"):
        load_glyphs(size)


def test_matplotlib_is_not_imported() -> None:
    code = "import sys, cpaan.data; cpaan.data.load_glyphs(8); print('matplotlib' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.fixture(scope="module")
def arms() -> FeatureSet:
    split = make_spiral()
    return split.base.concatenate(split.shots).concatenate(split.unseen)


def test_parts() -> None:
    split = make_spiral(shots=3, per_arm=50)
    assert split.base.classes == ("top", "bottom")
    assert split.novel_classes == ("left", "right")
    assert split.base.counts.tolist() == [50, 50]
    assert split.shots.counts.tolist() == [3, 3]
    assert split.unseen.counts.tolist() == [47, 47]


@pytest.mark.parametrize(
    ("name", "direction"), [("top", (0, 1)), ("bottom", (0, -1)), ("left", (-1, 0)), ("right", (1, 0))]
)
def test_arms_lie_where_their_names_say(arms: FeatureSet, name: str, direction: tuple[int, int]) -> None:
    centre = arms.of_class(name).mean(axis=0)
    assert centre @ direction > 0.9 * np.linalg.norm(centre)
    assert np.linalg.norm(centre) > 0.3


def test_arms_do_not_touch(arms: FeatureSet) -> None:
    distances = np.linalg.norm(arms.features[:, None] - arms.features[None], axis=-1)
    apart = arms.labels[:, None] != arms.labels[None]
    to_own = np.where(apart | np.eye(len(arms), dtype=bool), np.inf, distances).min(axis=1)
    assert np.all(to_own < distances[apart].min())
    assert np.abs(arms.features).max() < 1.1


def test_arms_are_curved_copies_of_each_other() -> None:
    split = make_spiral(per_arm=400, noise=0)
    top, left = split.base.of_class("top"), split.unseen.of_class("left")
    quarter_turn = np.array([[0, 1], [-1, 0]])
    gaps = np.linalg.norm((top @ quarter_turn)[:, None] - left[None], axis=-1).min(axis=1)
    assert gaps.max() < 0.05
    straightness = np.linalg.svd(top - top.mean(axis=0), compute_uv=False)
    assert straightness[1] / straightness[0] > 0.2


def test_points_do_not_depend_on_the_shots() -> None:
    few, many = make_spiral(shots=1), make_spiral(shots=5)
    assert few.base == many.base
    for name in ("left", "right"):
        np.testing.assert_array_equal(few.shots.of_class(name), many.shots.of_class(name)[:1])


def test_the_seed_decides() -> None:
    assert make_spiral(random_state=1) == make_spiral(random_state=1)
    assert make_spiral(random_state=1) != make_spiral(random_state=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": 0}, "shots is 0"),
        ({"shots": 10, "per_arm": 10}, "class 'left' has 10 examples"),
        ({"per_arm": 0}, "per_arm is 0"),
        ({"noise": -0.1}, r"noise is -0\.1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"random_state": "x"}, "must be None, a Generator or an int"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_spiral(**options)
