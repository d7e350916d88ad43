"""Backbones: ResNet-10, the network of the ImageNet low-shot benchmark, with how it was trained and how it sees images.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with one block for each
stage as in B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features", ICCV
2017.
"""

from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from cpaan.data.folders import read_model, write_model
from cpaan.data.untrusted import reading
from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.recipe import NUMBERS, STEMS, BackboneRecipe
from cpaan.training.weights import load_weights

KIND = "backbone"


@dataclass(frozen=True)
class Backbone:
    """A trained network from images to features.

    Examples
    --------
    >>> from cpaan.representations.recipe import make_backbone_recipe
    >>> recipe = make_backbone_recipe("small", size=16, width=2)
    >>> backbone = Backbone(ResNet10(stem="small", width=2), "resnet10", recipe, ("elm", "oak"))
    >>> backbone.features(torch.zeros(5, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([5, 16])
    """

    network: nn.Module  # maps normalised images to features
    kind: str  # "resnet10" or "prototypical", how it was trained
    recipe: BackboneRecipe
    classes: tuple[str, ...]  # the base classes it was trained on
    details: dict[str, Any] = field(default_factory=dict)  # anything else worth keeping, such as losses and accuracies

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Compute the features of decoded images, n × 3 × S × S bytes, from their centre."""
        self.network.eval()
        return encode_images(self.network, center_view(pixels, self.recipe.size))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the backbone to a folder, as `model.safetensors` and `config.json`."""
        config = {
            "backbone": self.kind,
            "numbers": asdict(self.recipe),
            "classes": list(self.classes),
            "details": self.details,
        }
        write_model(folder, KIND, self.network.state_dict(), config)

    @classmethod
    def load(cls, folder: str | PathLike[str], device: torch.device | str = "cpu") -> "Backbone":
        """Load a saved backbone onto any device."""
        tensors, config = read_model(folder, KIND)
        with reading(folder, "holds a damaged backbone, or one of another version of cpaan"):
            if set(config["numbers"]) != set(NUMBERS):
                raise InputError(f"{folder} holds a damaged backbone, or one of another version: other numbers")
            recipe = BackboneRecipe(**config["numbers"])
            network = load_weights(lambda: ResNet10(stem=recipe.stem, width=recipe.width), tensors)
            classes, details = tuple(map(str, config["classes"])), dict(config["details"])
            ready = move_network(network, torch.device(device)).eval()
            return cls(ready, config["backbone"], recipe, classes, details)


class ResNet10(nn.Module):
    """A stem, four residual blocks of two convolutions, and global average pooling.

    h = stem(image);  h = block_i(h) for i = 1 … 4, of widths w, 2w, 4w, 8w, each but the first at half the size

    φ(image) = mean of h over all positions, non-negative and of dimension 8w

    The "large" stem is for images of about 224 pixels (a 7 × 7 convolution and pooling, to a quarter of the size), the
    "small" one for 28 to 96 pixels (a 3 × 3 convolution at full size). The benchmark's w = 64 gives 512 features.
    """

    def __init__(self, *, stem: str = "large", width: int = 64) -> None:
        super().__init__()
        if stem not in STEMS:
            raise InputError(f"stem must be one of {', '.join(STEMS)}, got {stem!r}")
        self.dimension = 8 * width
        if stem == "large":
            self.stem = nn.Sequential(
                _convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
            )
        else:
            self.stem = nn.Sequential(_convolution(3, width, 3, 1), nn.ReLU(inplace=True))
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
        """Compute the features of images, n × 3 × height × width."""
        features: Tensor = self.blocks(self.stem(images)).mean(dim=(2, 3))
        return features


class Block(nn.Module):
    """Two 3 × 3 convolutions plus a shortcut, a 1 × 1 convolution where the shape changes."""

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


def move_network(network: nn.Module, device: torch.device) -> nn.Module:
    """Move a network to a device, in the fastest memory format there."""
    network.to(device, memory_format=_memory_format(device))  # type: ignore[call-overload]
    return network


def encode_images(network: nn.Module, images: Tensor) -> Tensor:
    """Apply a network to normalised images, on a GPU in bfloat16; features are float32."""
    images = images.contiguous(memory_format=_memory_format(images.device))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=images.device.type == "cuda"):
        features: Tensor = network(images)
    return features.float() if isinstance(features, Tensor) else features


def _memory_format(device: torch.device) -> torch.memory_format:
    # On a CPU the backward pass of narrow convolutions with channels last has crashed (torch 2.13).
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format
