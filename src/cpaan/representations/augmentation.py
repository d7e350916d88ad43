"""Random views of a batch of images, computed on the device that holds the pixels.

Each batch draws all its random numbers at once, one row per image, and never reads a value back to the host, so a GPU
does not wait. Few kernels run: crop and flip together are one gather or one interpolation.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from cpaan.data.arguments import as_whole_number
from cpaan.errors import InputError

# Mean and standard deviation of ImageNet's red, green and blue, where white is 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

_WHITE = 255.0
_LUMA = (0.299, 0.587, 0.114)
_CROPS = ("resized", "padded", "none")
_IMAGE_DIMENSIONS = 4
_CHANNELS = 3

# Columns of an image's random numbers. They do not depend on the settings, so a seed always gives the same flips.
_FLIP, _BRIGHTNESS, _CONTRAST, _SATURATION, _TOP, _LEFT, _BOXES = range(7)
_TRIES = 10
_COLUMNS = _BOXES + 2 * _TRIES


def normalize(pixels: Tensor) -> Tensor:
    """Standardise pixels from 0 to 255 by ImageNet's statistics: z = (x / 255 − MEAN) / STD in each channel."""
    _, scale, shift = _constants(pixels.device)
    return torch.addcmul(shift, pixels.float(), scale)


def center_view(pixels: Tensor, size: int) -> Tensor:
    """Crop the centre of n × 3 × H × W bytes to `size` and normalise it, as networks see images at test time."""
    _require_pixels(pixels)
    side = as_whole_number(size, "size", minimum=1)
    top, left = _margin(pixels.shape[-2], side) // 2, _margin(pixels.shape[-1], side) // 2
    return normalize(pixels[:, :, top : top + side, left : left + side])


@dataclass(frozen=True)
class Augmentation:
    """Random crop, flip and colour jitter, drawn independently for each image.

    Boxes are interpolated bilinearly. Where the image is larger than the result, each pixel of the result averages
    k × k points, with k the rounded ratio of the sides, to avoid aliasing.

    Examples
    --------
    >>> augmentation = Augmentation(size=24, crop="padded", padding=4)
    >>> pixels = torch.zeros(2, 3, 24, 24, dtype=torch.uint8)
    >>> augmentation(pixels, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 24, 24])
    """

    size: int  # side of the result
    # "resized": a box of random area and aspect ratio, as usual for ImageNet; "padded": a square of `size` from the
    # image mirrored at its edges by `padding`, as usual for small images; "none": the centre.
    crop: Literal["resized", "padded", "none"] = "resized"
    flip: bool = True  # mirror every second image, on average, left to right
    jitter: float = 0.4  # change brightness, contrast and saturation by factors between 1 − jitter and 1 + jitter
    scale: tuple[float, float] = (0.08, 1.0)  # smallest and largest area of a box, as a fraction of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of its width to its height, drawn on a logarithmic scale
    padding: int | None = None  # `size // 8` by default

    def __post_init__(self) -> None:
        as_whole_number(self.size, "size", minimum=1)
        if self.padding is not None:
            as_whole_number(self.padding, "padding", minimum=0)
        if self.crop not in _CROPS:
            raise InputError(f"crop must be 'resized', 'padded' or 'none', got {self.crop!r}")
        if not 0 <= self.jitter <= 1:
            raise InputError(f"jitter must be a number from 0 to 1, got {self.jitter!r}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be two fractions of the image's area, such as (0.08, 1), got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1] < float("inf"):
            raise InputError(f"ratio must be two ratios of width to height, such as (3 / 4, 4 / 3), got {self.ratio}")

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random, normalised view of each image; the generator must be on the device of the pixels."""
        _require_pixels(pixels)
        if generator.device.type != pixels.device.type:
            raise InputError(
                f"the generator is on {generator.device} but the images are on {pixels.device}; use one device"
            )
        draws = self._draws(pixels, generator)
        view = self._resized(pixels, draws) if self.crop == "resized" else self._shifted(pixels, draws).float()
        return normalize(self._jittered(view, draws) if self.jitter else view)

    def _draws(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        low, span = _bounds(self._ranges(*pixels.shape[-2:]), pixels.device)
        shape = (len(pixels), _COLUMNS)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float32, device=pixels.device)
        return torch.addcmul(low, uniform, span)

    def _ranges(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """Range of each random number of an image, in the order of the columns."""
        # A negative first number flips the image.
        flip = (-1.0, 1.0) if self.flip else (1.0, 1.0)
        colour = (1 - self.jitter, 1 + self.jitter)
        # Half the logarithm of a box's width over height, both as fractions of the image: its square root after exp.
        shape = tuple((math.log(bound) + math.log(height / width)) / 2 for bound in self.ratio)
        boxes = ((self.scale[0], self.scale[1]),) * _TRIES + ((shape[0], shape[1]),) * _TRIES
        return flip, colour, colour, colour, self._places(height), self._places(width), *boxes

    def _places(self, length: int) -> tuple[float, float]:
        if self.crop == "resized":
            return -1.0, 1.0
        padding = self._padding
        if padding >= length:
            raise InputError(f"padding {padding} must be less than the images' {length} pixels")
        margin = _margin(length + 2 * padding, self.size)
        # Truncated to a whole number later; rounding must not reach the position after the last.
        return (float(margin // 2),) * 2 if self.crop == "none" else (0.0, margin + 0.9999)

    @property
    def _padding(self) -> int:
        if self.crop == "none":
            return 0
        return self.size // 8 if self.padding is None else self.padding

    def _shifted(self, pixels: Tensor, draws: Tensor) -> Tensor:
        steps, last = _pixel_steps(self.size, self._padding, tuple(pixels.shape[-2:]), pixels.device)
        places = draws[:, _TOP : _LEFT + 1].long().unsqueeze(2) + steps
        # Reflect positions outside the image at its first and last pixels, without repeating them.
        y, x = (last - (last - places.abs()).abs()).unbind(dim=1)
        x = torch.where(draws[:, _FLIP : _FLIP + 1] < 0, x.flip(1), x)
        images = torch.arange(len(pixels), device=pixels.device).view(-1, 1, 1, 1)
        channels = torch.arange(_CHANNELS, device=pixels.device).view(1, -1, 1, 1)
        return pixels[images, channels, y[:, None, :, None], x[:, None, None, :]]

    def _resized(self, pixels: Tensor, draws: Tensor) -> Tensor:
        # Positions run from −1 at the top or left edge to 1 at the opposite one. affine_grid would compute the same
        # grid by a matrix product, which a GPU may round to 10 bits.
        points = max(1, round(max(pixels.shape[-2:]) / self.size))
        side = self.size * points
        sizes, places = _boxes(draws), draws[:, _TOP : _LEFT + 1]
        centers = torch.addcmul(places, places, sizes, value=-1)
        sizes[:, 1].copysign_(draws[:, _FLIP])
        y, x = torch.addcmul(centers.unsqueeze(2), sizes.unsqueeze(2), _sample_steps(side, pixels.device)).unbind(dim=1)
        grid = torch.stack((x.unsqueeze(1).expand(-1, side, side), y.unsqueeze(2).expand(-1, side, side)), dim=3)
        view = grid_sample(pixels.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
        return view if points == 1 else avg_pool2d(view, points)

    def _jittered(self, view: Tensor, draws: Tensor) -> Tensor:
        luma, _, _ = _constants(view.device)
        brightness, contrast, saturation = (
            draws[:, column].view(-1, 1, 1, 1) for column in (_BRIGHTNESS, _CONTRAST, _SATURATION)
        )
        view = (view * brightness).clamp_(max=_WHITE)
        mean = (view.mean(dim=(2, 3), keepdim=True) * luma).sum(dim=1, keepdim=True)
        view = torch.lerp(mean, view, contrast).clamp_(0, _WHITE)
        grey = (view * luma).sum(dim=1, keepdim=True)
        return torch.lerp(grey, view, saturation).clamp_(0, _WHITE)


def _boxes(draws: Tensor) -> Tensor:
    """Height and width of each box as fractions of the image: the first of several tries that fits inside."""
    area, shape = draws[:, _BOXES:].view(-1, 2, _TRIES).unbind(dim=1)
    side, stretch = area.sqrt(), shape.exp()
    heights, widths = side / stretch, side * stretch
    first = (torch.maximum(heights, widths) <= 1).float().argmax(dim=1)
    sizes = torch.stack((heights, widths), dim=1).gather(2, first.view(-1, 1, 1).expand(-1, 2, 1)).squeeze(2)
    # If none fits, clip the first at the edges.
    return sizes.clamp_(max=1)


# These tensors are the same for every batch and cached, because copying to a GPU takes time. They are created outside
# inference mode, or else training could not use them afterwards.


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Luma weights, and scale and shift of the normalisation."""
    with torch.inference_mode(False):
        mean, std = torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64)
        rows = torch.stack((torch.tensor(_LUMA, dtype=torch.float64), 1 / (_WHITE * std), -mean / std))
        luma, scale, shift = rows.float().to(device).view(3, 1, _CHANNELS, 1, 1)
    return luma, scale, shift


@lru_cache(maxsize=64)
def _bounds(ranges: tuple[tuple[float, float], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lower bound and width of each range."""
    with torch.inference_mode(False):
        low, high = torch.tensor(ranges, dtype=torch.float64).t()
        return low.float().to(device), (high - low).float().to(device)


@lru_cache(maxsize=64)
def _pixel_steps(size: int, padding: int, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixel positions of a crop at the top left of the padding, and the last position along each side of the image."""
    with torch.inference_mode(False):
        last = torch.tensor(shape).view(1, 2, 1) - 1
        return torch.arange(-padding, size - padding, device=device), last.to(device)


@lru_cache(maxsize=64)
def _sample_steps(side: int, device: torch.device) -> Tensor:
    """Centres of `side` equal parts of the interval from −1 to 1."""
    with torch.inference_mode(False):
        return torch.linspace(-1, 1, 2 * side + 1, dtype=torch.float64)[1::2].float().to(device)


def _require_pixels(pixels: Tensor) -> None:
    if pixels.dtype != torch.uint8 or pixels.ndim != _IMAGE_DIMENSIONS or pixels.shape[1] != _CHANNELS:
        raise InputError(
            f"pixels must be uint8 of shape (n, 3, H, W), got {pixels.dtype} of shape {tuple(pixels.shape)}"
        )


def _margin(length: int, size: int) -> int:
    if length < size:
        raise InputError(f"images have only {length} pixels for a crop of {size}; decode them larger or crop less")
    return length - size
