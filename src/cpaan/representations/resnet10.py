"""ResNet-10, the network of the ImageNet low-shot benchmark.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with one block for each
stage as in B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features", ICCV
2017.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

from cpaan.errors import InputError

STEMS = ("large", "small")


class ResNet10(nn.Module):
    """Images to features: a stem, four residual blocks of two convolutions, and the mean over all places.

    h = stem(image);  h = block_i(h) for i = 1 … 4, of widths w, 2w, 4w, 8w, each but the first at half the size

    φ(image) = mean over places of h, which is non-negative and of dimension 8w

    Parameters
    ----------
    stem : {"large", "small"}
        For images of about 224 pixels (a 7 × 7 convolution and pooling, to a quarter of the size) or for small ones of
        about 28 to 96 pixels (a 3 × 3 convolution at full size).
    width : int
        w; the benchmark's 64 gives 512 features.

    Attributes
    ----------
    dimension : int
        Number of features.

    Examples
    --------
    >>> import torch
    >>> ResNet10(stem="small")(torch.zeros(2, 3, 28, 28)).shape
    torch.Size([2, 512])
    """

    def __init__(self, *, stem: str = "large", width: int = 64) -> None:
        super().__init__()
        if stem not in STEMS:
            raise InputError(f"stem must be one of {', '.join(STEMS)}, not {stem!r}")
        self.dimension = 8 * width
        self.stem = _large_stem(width) if stem == "large" else _small_stem(width)
        self.blocks = nn.Sequential(
            Block(width, width, stride=1),
            Block(width, 2 * width, stride=2),
            Block(2 * width, 4 * width, stride=2),
            Block(4 * width, 8 * width, stride=2),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Give the features of images, n × 3 × height × width."""
        features: Tensor = self.blocks(self.stem(images)).mean(dim=(2, 3))
        return features


class Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut, which is a 1 × 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride)
        self.second = _convolution(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else _convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Transform feature maps."""
        return relu(self.second(relu(self.first(images))) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def _large_stem(width: int) -> nn.Sequential:
    return nn.Sequential(_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1))


def _small_stem(width: int) -> nn.Sequential:
    return nn.Sequential(_convolution(3, width, 3, 1), nn.ReLU(inplace=True))
