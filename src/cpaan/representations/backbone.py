"""A trained backbone: the network, and how images are brought to it."""

from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from cpaan.data.folders import read_model, write_model
from cpaan.data.untrusted import reading
from cpaan.representations.augmentation import center_view
from cpaan.representations.recipe import BackboneRecipe
from cpaan.representations.resnet10 import ResNet10
from cpaan.training.weights import load_weights

KIND = "backbone"


@dataclass(frozen=True)
class Backbone:
    """A network from images to features.

    Attributes
    ----------
    network : from normalised images to features
    kind : ``"resnet10"`` or ``"prototypical"``, how it was trained
    recipe : with what numbers
    classes : base classes that it was trained on
    details : whatever else is worth keeping, such as losses and accuracies

    Examples
    --------
    >>> from cpaan.representations.recipe import make_backbone_recipe
    >>> recipe = make_backbone_recipe("small", size=16, width=2)
    >>> backbone = Backbone(ResNet10(stem="small", width=2), "resnet10", recipe, ("elm", "oak"))
    >>> backbone.features(torch.zeros(5, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([5, 16])
    """

    network: nn.Module
    kind: str
    recipe: BackboneRecipe
    classes: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Give the features of decoded images, n × 3 × S × S bytes, from their centre."""
        self.network.eval()
        return encoded(self.network, center_view(pixels, self.recipe.size))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write it to a folder, as `model.safetensors` and `config.json`."""
        config = {
            "backbone": self.kind,
            "numbers": asdict(self.recipe),
            "classes": list(self.classes),
            "details": self.details,
        }
        write_model(folder, KIND, self.network.state_dict(), config)

    @classmethod
    def load(cls, folder: str | PathLike[str], device: torch.device | str = "cpu") -> "Backbone":
        """Read what `save` wrote, onto any device."""
        tensors, config = read_model(folder, KIND)
        with reading(folder, "holds a damaged backbone, or one of another version of cpaan"):
            recipe = BackboneRecipe(**config["numbers"])
            network = load_weights(lambda: ResNet10(stem=recipe.stem, width=recipe.width), tensors)
            classes, details = tuple(map(str, config["classes"])), dict(config["details"])
            ready = placed(network, torch.device(device)).eval()
            return cls(ready, config["backbone"], recipe, classes, details)


def placed(network: nn.Module, device: torch.device) -> nn.Module:
    """Move a network to a device, laid out as is best there."""
    network.to(device, memory_format=_layout(device))  # type: ignore[call-overload]
    return network


def encoded(network: nn.Module, images: Tensor) -> Tensor:
    """Apply a network to normalised images: on a GPU in half precision, results in single precision."""
    images = images.contiguous(memory_format=_layout(images.device))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=images.device.type == "cuda"):
        features: Tensor = network(images)
    return features.float() if isinstance(features, Tensor) else features


def _layout(device: torch.device) -> torch.memory_format:
    # On a CPU the backward pass of narrow convolutions with channels last has crashed (torch 2.13).
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format
