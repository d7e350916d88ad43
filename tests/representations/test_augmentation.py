"""Random views against slow formulas for one image at a time, and against Pillow."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn.functional import interpolate, pad
from torch.overrides import TorchFunctionMode

from cpaan.errors import InputError
from cpaan.representations.augmentation import MEAN, STD, Augmentation, center_view, normalize


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, height: int, width: int | None = None) -> Tensor:
    shape = (n, 3, height, height if width is None else width)
    return torch.randint(0, 256, shape, generator=seeded(9), dtype=torch.uint8)


def restored(view: Tensor) -> Tensor:
    """Undo the normalisation."""
    return (view * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


def furthest(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def test_normalize_is_its_formula() -> None:
    pixels = noise(2, 5, 7)
    normal = normalize(pixels)
    assert normal.dtype == torch.float32
    for channel in range(3):
        expected = (pixels[:, channel].double() / 255 - MEAN[channel]) / STD[channel]
        assert furthest(normal[:, channel], expected) < 1e-6
    with torch.inference_mode():
        normalize(pixels)
    weights = torch.ones(1, requires_grad=True)
    (normalize(pixels) * weights).sum().backward()


def test_center_view_is_a_slice() -> None:
    pixels = noise(2, 9, 12)
    assert torch.equal(center_view(pixels, 6), normalize(pixels[:, :, 1:7, 3:9]))
    assert torch.equal(center_view(pixels, 9), normalize(pixels[:, :, :, 1:10]))
    with pytest.raises(InputError, match="only 9 pixels for a crop of 10"):
        center_view(pixels, 10)


def padded_crops(image: Tensor, size: int, padding: int) -> dict[tuple[int, int, bool], Tensor]:
    """All possible crops, by slicing."""
    wide = pad(image.float().unsqueeze(0), [padding] * 4, mode="reflect")[0]
    crops = {}
    for top in range(wide.shape[1] - size + 1):
        for left in range(wide.shape[2] - size + 1):
            crop = wide[:, top : top + size, left : left + size]
            crops[top, left, False] = crop
            crops[top, left, True] = torch.flip(crop, dims=(2,))
    return crops


@pytest.mark.parametrize(("height", "width", "size", "padding"), [(6, 6, 6, 2), (6, 9, 5, 1), (8, 8, 9, 2)])
def test_a_padded_crop_is_a_slice_of_the_mirrored_image(height: int, width: int, size: int, padding: int) -> None:
    pixels = noise(60, height, width)
    views = restored(Augmentation(size, crop="padded", padding=padding, jitter=0)(pixels, seeded()))
    found = []
    for image, view in zip(pixels, views, strict=True):
        crops = padded_crops(image, size, padding)
        place = min(crops, key=lambda place: furthest(crops[place], view))
        assert furthest(crops[place], view) < 1e-3
        found.append(place)
    tops, lefts, flips = zip(*found, strict=True)
    assert set(tops) == set(range(height + 2 * padding - size + 1))
    assert set(lefts) >= {0, width + 2 * padding - size}
    assert 15 < sum(flips) < 45


def test_padding_is_an_eighth_of_the_size() -> None:
    pixels = noise(4, 16)
    given = Augmentation(16, crop="padded", padding=2)(pixels, seeded())
    assert torch.equal(Augmentation(16, crop="padded")(pixels, seeded()), given)


def test_flips_alone() -> None:
    pixels = noise(50, 6)
    views = Augmentation(6, crop="none", jitter=0)(pixels, seeded())
    plain, mirrored = normalize(pixels), normalize(torch.flip(pixels, dims=(3,)))
    is_plain = (views == plain).flatten(1).all(dim=1)
    is_mirrored = (views == mirrored).flatten(1).all(dim=1)
    assert bool((is_plain ^ is_mirrored).all())
    assert 10 < int(is_mirrored.sum()) < 40
    assert torch.equal(Augmentation(6, crop="none", jitter=0, flip=False)(pixels, seeded()), plain)
    larger = noise(3, 9, 8)
    assert torch.equal(Augmentation(6, crop="none", jitter=0, flip=False)(larger, seeded()), center_view(larger, 6))


def test_a_seed_gives_the_same_flips_whatever_the_crop() -> None:
    pixels = noise(20, 6)
    views = [
        Augmentation(6, crop="none", jitter=0),
        Augmentation(6, crop="padded", padding=0, jitter=0),
        Augmentation(6, crop="resized", scale=(1, 1), ratio=(1, 1), jitter=0),
    ]
    none, padded, resized = (augmentation(pixels, seeded(3)) for augmentation in views)
    assert torch.equal(none, padded)
    assert furthest(none, resized) < 1e-4


def test_a_resized_crop_of_everything_is_the_image_itself() -> None:
    pixels = noise(3, 16)
    whole = Augmentation(16, scale=(1, 1), ratio=(1, 1), flip=False, jitter=0)
    assert furthest(restored(whole(pixels, seeded())), pixels) < 0.01


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 16), (20, 20), (32, 32)])
def test_a_resized_crop_of_everything_is_a_plain_resize(height: int, width: int) -> None:
    pixels = noise(3, height, width)
    whole = Augmentation(16, scale=(1, 1), ratio=(1, 1), flip=False, jitter=0)
    view = restored(whole(pixels, seeded()))
    if height <= 20:
        expected = interpolate(pixels.float(), size=16, mode="bilinear", align_corners=False)
    else:
        # Four points between the pixels of each 2 × 2 block: their mean is a smooth average around the block.
        points = interpolate(pixels.float(), size=height, mode="bilinear", align_corners=False)
        expected = torch.nn.functional.avg_pool2d(points, height // 16)
    assert furthest(view, expected) < 0.01


def test_fine_patterns_do_not_alias() -> None:
    stripes = torch.zeros(8, 3, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 255
    views = restored(Augmentation(16, scale=(0.7, 1), jitter=0)(stripes, seeded()))
    assert float((views - 127.5).abs().max()) < 64


def box_of(view: Tensor) -> tuple[float, float, float, float]:
    """Read top, bottom, left and right of a crop off ramps, which bilinear interpolation keeps exactly."""
    x, y = view[0], view[1]
    size = view.shape[-1]
    step_x, step_y = (x[0, -1] - x[0, 0]) / (size - 1), (y[-1, 0] - y[0, 0]) / (size - 1)
    return (
        float(y[0, 0] - step_y / 2),
        float(y[-1, 0] + step_y / 2),
        float(x[0, 0] - step_x / 2),
        float(x[0, -1] + step_x / 2),
    )


@pytest.mark.parametrize(("height", "width"), [(100, 100), (90, 180)])
def test_boxes_have_the_areas_and_shapes_asked_for(height: int, width: int) -> None:
    ramps = torch.zeros(400, 3, height, width, dtype=torch.uint8)
    ramps[:, 0] = torch.arange(width, dtype=torch.uint8)
    ramps[:, 1] = torch.arange(height, dtype=torch.uint8).view(-1, 1)
    augmentation = Augmentation(100, scale=(0.1, 0.4), jitter=0)
    # Away from the edges, where half a pixel is not interpolated.
    boxes = np.array([box_of(view[:, 10:-10, 10:-10]) for view in restored(augmentation(ramps, seeded()))])
    tops, bottoms, lefts, rights = boxes.T + 0.5
    heights, widths = (bottoms - tops) / 0.8, (rights - lefts) / 0.8
    flipped = widths < 0
    widths = np.abs(widths)
    areas, ratios = heights * widths / (height * width), widths / heights
    assert areas.min() > 0.1 - 1e-3
    assert areas.max() < 0.4 + 1e-3
    assert abs(areas.mean() - 0.25) < 0.02
    assert ratios.min() > 3 / 4 - 1e-2
    assert ratios.max() < 4 / 3 + 1e-2
    assert abs(np.log(ratios).mean()) < 0.04
    assert abs(flipped.mean() - 0.5) < 0.1
    # Uniform over all places where the box is inside.
    shares = (tops - heights / 10) / (height - heights)
    assert shares.min() > -0.01
    assert shares.max() < 1.01
    assert abs(shares.mean() - 0.5) < 0.06
    assert np.abs(np.corrcoef([areas, np.log(ratios), shares, flipped]) - np.eye(4)).max() < 0.2


def test_boxes_that_never_fit_are_cut_off() -> None:
    pixels = noise(5, 4, 40)
    views = Augmentation(8, scale=(1, 1))(pixels, seeded())
    assert views.shape == (5, 3, 8, 8)
    assert bool(views.isfinite().all())


def drawn_factors(jitter: float, n: int, column: int) -> Tensor:
    """The numbers of the module: a row of 26 for each image, brightness, contrast and saturation after the flip."""
    return 1 + jitter * (2 * torch.rand((n, 26), generator=seeded())[:, column] - 1)


def as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def test_colours_change_as_in_pillow() -> None:
    pixels = noise(12, 10)
    views = restored(Augmentation(10, crop="none", flip=False, jitter=0.4)(pixels, seeded()))
    factors = [drawn_factors(0.4, 12, column).tolist() for column in (1, 2, 3)]
    for image, view, brightness, contrast, saturation in zip(pixels, views, *factors, strict=True):
        # Pillow cuts fractions off after each of the three.
        expected = ImageEnhance.Brightness(as_image(image)).enhance(brightness)
        expected = ImageEnhance.Contrast(expected).enhance(contrast)
        expected = ImageEnhance.Color(expected).enhance(saturation)
        assert furthest(view, torch.from_numpy(np.array(expected)).permute(2, 0, 1)) <= 4
    assert max(map(max, factors)) - min(map(min, factors)) > 0.6


@pytest.mark.parametrize(
    ("column", "enhancer"), [(1, ImageEnhance.Brightness), (2, ImageEnhance.Contrast), (3, ImageEnhance.Color)]
)
def test_each_change_of_colours_alone(column: int, enhancer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(12, 10)
    factors = drawn_factors(0.9, 12, column)
    draws = torch.full((12, 26), 0.5)
    draws[:, column] = (factors - 1) / 0.9 / 2 + 0.5
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draws)
    views = restored(Augmentation(10, crop="none", flip=False, jitter=0.9)(pixels, seeded()))
    for image, view, factor in zip(pixels, views, factors.tolist(), strict=True):
        expected = enhancer(as_image(image)).enhance(factor)
        assert furthest(view, torch.from_numpy(np.array(expected)).permute(2, 0, 1)) <= 1.5


SETTINGS = [
    Augmentation(8),
    Augmentation(8, crop="padded", padding=3),
    Augmentation(8, crop="none"),
    Augmentation(5, scale=(0.3, 0.9), jitter=1),
    Augmentation(24, jitter=0),
]


@pytest.mark.parametrize("augmentation", SETTINGS, ids=str)
def test_the_generator_alone_decides(augmentation: Augmentation) -> None:
    pixels = noise(6, 24)
    before = torch.get_rng_state()
    views = augmentation(pixels, seeded(1))
    assert views.shape == (6, 3, augmentation.size, augmentation.size)
    assert views.dtype == torch.float32
    assert torch.equal(augmentation(pixels, seeded(1)), views)
    assert not torch.equal(augmentation(pixels, seeded(2)), views)
    generator = seeded(1)
    augmentation(pixels, generator)
    assert not torch.equal(augmentation(pixels, generator), views)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(pixels, noise(6, 24))


@pytest.mark.parametrize("augmentation", SETTINGS, ids=str)
def test_images_do_not_touch_each_other(augmentation: Augmentation) -> None:
    pixels = noise(6, 24)
    views = augmentation(pixels, seeded())
    changed = pixels.clone()
    changed[[0, 2, 5]] = 255 - changed[[0, 2, 5]]
    others = augmentation(changed, seeded())
    assert torch.equal(others[[1, 3, 4]], views[[1, 3, 4]])
    same = augmentation(pixels[:1].expand(6, -1, -1, -1), seeded())
    assert all(not torch.equal(same[0], view) for view in same[1:]) or augmentation.crop == "none"


@pytest.mark.parametrize("augmentation", SETTINGS, ids=str)
def test_values_stay_between_black_and_white(augmentation: Augmentation) -> None:
    views = restored(augmentation(noise(30, 24), seeded()))
    assert float(views.min()) > -0.01
    assert float(views.max()) < 255.01


class Calls(TorchFunctionMode):
    """Record which functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("augmentation", SETTINGS, ids=str)
def test_no_value_is_read_on_the_host_and_no_image_is_handled_alone(augmentation: Augmentation) -> None:
    lists = []
    for n in (2, 64):
        augmentation(noise(n, 24), seeded())
        with Calls() as calls:
            augmentation(noise(n, 24), seeded())
        lists.append(calls.names)
    assert lists[0] == lists[1]
    assert not {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"} & set(lists[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size .*0"),
        ({"crop": "random"}, "crop must be 'resized', 'padded' or 'none', got 'random'"),
        ({"jitter": 1.5}, "jitter must be a number from 0 to 1, got 1.5"),
        ({"jitter": math.nan}, "jitter .* got nan"),
        ({"scale": (0, 1)}, r"scale .* got \(0, 1\)"),
        ({"scale": (0.5, 0.4)}, r"scale .* got \(0.5, 0.4\)"),
        ({"ratio": (-1, 1)}, r"ratio .* got \(-1, 1\)"),
        ({"padding": -1}, "padding .*-1"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Augmentation(**{"size": 8, **options})


def test_wrong_pixels_are_refused() -> None:
    with pytest.raises(InputError, match=r"pixels must be uint8 .* got torch\.float32 of shape \(2, 3, 8, 8\)"):
        Augmentation(8)(noise(2, 8).float(), seeded())
    with pytest.raises(InputError, match="shape \\(3, 8, 8\\)"):
        Augmentation(8)(noise(2, 8)[0], seeded())
    with pytest.raises(InputError, match="only 8 pixels for a crop of 9"):
        Augmentation(9, crop="none")(noise(2, 8), seeded())
    with pytest.raises(InputError, match="only 10 pixels for a crop of 11"):
        Augmentation(11, crop="padded", padding=1)(noise(2, 8), seeded())
    with pytest.raises(InputError, match="padding 8 must be less than the images' 8 pixels"):
        Augmentation(8, crop="padded", padding=8)(noise(2, 8), seeded())
