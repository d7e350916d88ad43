"""Random views of images, a whole batch at once on the device where its pixels are.

All random numbers of a batch are drawn in one go, a row of them for each image, and nothing is ever looked at on the
host, so that a GPU need not wait. Kernels are few: crop and flip are one gather, or one interpolation.
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

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue, where white is 1."""
STD = (0.229, 0.224, 0.225)
"""Their standard deviation."""

_WHITE = 255.0
_LUMA = (0.299, 0.587, 0.114)
_CROPS = ("resized", "padded", "none")
_IMAGE_DIMENSIONS = 4
_CHANNELS = 3

# Columns of the random numbers of an image. The same in all settings, so that a seed gives the same flips whatever
# else is switched on.
_FLIP, _BRIGHTNESS, _CONTRAST, _SATURATION, _TOP, _LEFT, _BOXES = range(7)
_TRIES = 10
_COLUMNS = _BOXES + 2 * _TRIES


def normalize(pixels: Tensor) -> Tensor:
    """Shift and scale pixels to mean 0 and standard deviation 1 over ImageNet.

    z = (x / 255 − MEAN) / STD in each channel.

    Parameters
    ----------
    pixels : Tensor of shape (n, 3, H, W)
        From 0 to 255, uint8 or float.

    Returns
    -------
    Tensor of float32 of the same shape
        On the same device.

    Examples
    --------
    >>> normalize(torch.tensor([124, 116, 104], dtype=torch.uint8).view(1, 3, 1, 1)).abs().max() < 0.02
    tensor(True)
    """
    _, scale, shift = _constants(pixels.device)
    return torch.addcmul(shift, pixels.float(), scale)


def center_view(pixels: Tensor, size: int) -> Tensor:
    """Cut out the centre and normalise it: what a network is shown when it is tested.

    Parameters
    ----------
    pixels : Tensor of uint8 of shape (n, 3, H, W)
        The images.
    size : int
        Sides of what is cut out.

    Returns
    -------
    Tensor of float32 of shape (n, 3, size, size)
        On the same device.

    Raises
    ------
    InputError
        Where the images are smaller.

    Examples
    --------
    >>> center_view(torch.zeros(2, 3, 10, 8, dtype=torch.uint8), 6).shape
    torch.Size([2, 3, 6, 6])
    """
    _require_pixels(pixels)
    side = as_whole_number(size, "size", minimum=1)
    top, left = _margin(pixels.shape[-2], side) // 2, _margin(pixels.shape[-1], side) // 2
    return normalize(pixels[:, :, top : top + side, left : left + side])


@dataclass(frozen=True)
class Augmentation:
    """Random crop, flip and change of colours, different for each image.

    Parameters
    ----------
    size : int
        Sides of the result.
    crop : {"resized", "padded", "none"}, default="resized"
        "resized": a box of random area and shape anywhere in the image, interpolated to `size` (as it is usual for
        ImageNet). "padded": a square of `size` anywhere in the image mirrored at its edges by `padding` (as it is
        usual for small images). "none": the centre.
    flip : bool, default=True
        Mirror left and right in every second image.
    jitter : float, default=0.4
        Brightness, contrast and saturation are changed, in this order, by factors between 1 − jitter and 1 + jitter;
        values are kept between black and white after each. 0 switches it off.
    scale : tuple of two float, default=(0.08, 1)
        Least and greatest area of a box, as a share of the image.
    ratio : tuple of two float, default=(3/4, 4/3)
        Least and greatest width of a box divided by its height; drawn on a logarithmic scale.
    padding : int, optional
        Pixels by which the image is mirrored; `size // 8` by default.

    Raises
    ------
    InputError
        Where a setting makes no sense.

    Notes
    -----
    Boxes are interpolated bilinearly at points, which is as good as it gets where a box is not larger than the result.
    Where the image is larger, k × k points in each pixel of the result are averaged, with k the rounded quotient of
    both sides, so that fine patterns do not alias.

    Examples
    --------
    >>> augmentation = Augmentation(size=24, crop="padded", padding=4)
    >>> pixels = torch.zeros(2, 3, 24, 24, dtype=torch.uint8)
    >>> augmentation(pixels, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 24, 24])
    """

    size: int
    crop: Literal["resized", "padded", "none"] = "resized"
    flip: bool = True
    jitter: float = 0.4
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int | None = None

    def __post_init__(self) -> None:
        as_whole_number(self.size, "size", minimum=1)
        if self.padding is not None:
            as_whole_number(self.padding, "padding", minimum=0)
        if self.crop not in _CROPS:
            raise InputError(f"crop is {self.crop!r}; give 'resized', 'padded' or 'none'")
        if not 0 <= self.jitter <= 1:
            raise InputError(f"jitter is {self.jitter!r}; give a number from 0 to 1")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale is {self.scale}; give two shares of the image's area, such as (0.08, 1)")
        if not 0 < self.ratio[0] <= self.ratio[1] < float("inf"):
            raise InputError(f"ratio is {self.ratio}; give two quotients of width and height, such as (3 / 4, 4 / 3)")

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Make a random view of each image.

        Parameters
        ----------
        pixels : Tensor of uint8 of shape (n, 3, H, W)
            The images.
        generator : torch.Generator
            Gives every random number; of the same device as the images.

        Returns
        -------
        Tensor of float32 of shape (n, 3, size, size)
            Normalised.

        Raises
        ------
        InputError
            Where the images are too small, or the generator is of another device.
        """
        _require_pixels(pixels)
        if generator.device.type != pixels.device.type:
            raise InputError(f"the generator is on {generator.device}, but the images are on {pixels.device}")
        draws = self._draws(pixels, generator)
        view = self._resized(pixels, draws) if self.crop == "resized" else self._shifted(pixels, draws).float()
        return normalize(self._jittered(view, draws) if self.jitter else view)

    def _draws(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        low, span = _bounds(self._ranges(*pixels.shape[-2:]), pixels.device)
        shape = (len(pixels), _COLUMNS)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float32, device=pixels.device)
        return torch.addcmul(low, uniform, span)

    def _ranges(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """Give the least and the greatest of every number drawn for an image."""
        # Mirrored is where the first one is negative.
        flip = (-1.0, 1.0) if self.flip else (1.0, 1.0)
        colour = (1 - self.jitter, 1 + self.jitter)
        # Width over height as shares of the image's, as a logarithm, and half of it: the square root.
        shape = tuple((math.log(bound) + math.log(height / width)) / 2 for bound in self.ratio)
        boxes = ((self.scale[0], self.scale[1]),) * _TRIES + ((shape[0], shape[1]),) * _TRIES
        return flip, colour, colour, colour, self._places(height), self._places(width), *boxes

    def _places(self, length: int) -> tuple[float, float]:
        if self.crop == "resized":
            return -1.0, 1.0
        padding = self._padding
        if padding >= length:
            raise InputError(f"padding is {padding}, but images have only {length} pixels; give less")
        margin = _margin(length + 2 * padding, self.size)
        # Fractions are cut off; a number that rounds up must not come to the place after the last one.
        return (float(margin // 2),) * 2 if self.crop == "none" else (0.0, margin + 0.9999)

    @property
    def _padding(self) -> int:
        if self.crop == "none":
            return 0
        return self.size // 8 if self.padding is None else self.padding

    def _shifted(self, pixels: Tensor, draws: Tensor) -> Tensor:
        steps, last = _pixel_steps(self.size, self._padding, tuple(pixels.shape[-2:]), pixels.device)
        places = draws[:, _TOP : _LEFT + 1].long().unsqueeze(2) + steps
        # Mirror what is outside at the first and last pixels, which are not repeated.
        y, x = (last - (last - places.abs()).abs()).unbind(dim=1)
        x = torch.where(draws[:, _FLIP : _FLIP + 1] < 0, x.flip(1), x)
        images = torch.arange(len(pixels), device=pixels.device).view(-1, 1, 1, 1)
        channels = torch.arange(_CHANNELS, device=pixels.device).view(1, -1, 1, 1)
        return pixels[images, channels, y[:, None, :, None], x[:, None, None, :]]

    def _resized(self, pixels: Tensor, draws: Tensor) -> Tensor:
        # Places are from −1 at the upper or left edge to 1 at the other. affine_grid would give the same grid by a
        # matrix product, which a GPU may round to 10 bits.
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
    """Give height and width of each box as shares of the image's: of the first of some tries that fits into it."""
    area, shape = draws[:, _BOXES:].view(-1, 2, _TRIES).unbind(dim=1)
    side, stretch = area.sqrt(), shape.exp()
    heights, widths = side / stretch, side * stretch
    first = (torch.maximum(heights, widths) <= 1).float().argmax(dim=1)
    sizes = torch.stack((heights, widths), dim=1).gather(2, first.view(-1, 1, 1).expand(-1, 2, 1)).squeeze(2)
    # Where none fits, it is the first one, cut off at the edges.
    return sizes.clamp_(max=1)


# What follows is the same for every batch and made once, as a copy to a GPU takes time. It is never made in inference
# mode, for then it could not be used in training afterwards.


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Give the weights of brightness, and scale and shift of the normalisation."""
    with torch.inference_mode(False):
        mean, std = torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64)
        rows = torch.stack((torch.tensor(_LUMA, dtype=torch.float64), 1 / (_WHITE * std), -mean / std))
        luma, scale, shift = rows.float().to(device).view(3, 1, _CHANNELS, 1, 1)
    return luma, scale, shift


@lru_cache(maxsize=64)
def _bounds(ranges: tuple[tuple[float, float], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Give the least of each number, and how far above it the greatest is."""
    with torch.inference_mode(False):
        low, high = torch.tensor(ranges, dtype=torch.float64).t()
        return low.float().to(device), (high - low).float().to(device)


@lru_cache(maxsize=64)
def _pixel_steps(size: int, padding: int, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Give the places of a crop's pixels if it lies at the upper left of the padding, and the image's last places."""
    with torch.inference_mode(False):
        last = torch.tensor(shape).view(1, 2, 1) - 1
        return torch.arange(-padding, size - padding, device=device), last.to(device)


@lru_cache(maxsize=64)
def _sample_steps(side: int, device: torch.device) -> Tensor:
    """Give the centres of equal parts of the range from −1 to 1."""
    with torch.inference_mode(False):
        return torch.linspace(-1, 1, 2 * side + 1, dtype=torch.float64)[1::2].float().to(device)


def _require_pixels(pixels: Tensor) -> None:
    if pixels.dtype != torch.uint8 or pixels.ndim != _IMAGE_DIMENSIONS or pixels.shape[1] != _CHANNELS:
        raise InputError(f"pixels are {pixels.dtype} of shape {tuple(pixels.shape)}; give uint8 of shape (n, 3, H, W)")


def _margin(length: int, size: int) -> int:
    if length < size:
        raise InputError(f"images have only {length} pixels for a crop of {size}; decode them larger, or give less")
    return length - size
