"""ResNet-10 against convolutions written out one by one, and its size."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from cpaan.errors import InputError
from cpaan.representations.backbone import ResNet10


def by_hand(state: dict[str, Tensor], images: Tensor, stem: str) -> Tensor:
    """The network of the paper's Table 1 with one block a stage, from its weights alone."""

    def layer(name: str, x: Tensor, stride: int, padding: int) -> Tensor:
        y = conv2d(x, state[f"{name}.0.weight"], stride=stride, padding=padding)
        mean, variance = state[f"{name}.1.running_mean"], state[f"{name}.1.running_var"]
        return batch_norm(y, mean, variance, state[f"{name}.1.weight"], state[f"{name}.1.bias"])

    x = layer("stem.0", images, *((2, 3) if stem == "large" else (1, 1))).clamp_min(0)
    if stem == "large":
        x = max_pool2d(x, 3, 2, 1)
    for number, stride in enumerate((1, 2, 2, 2)):
        inner = layer(f"blocks.{number}.first", x, stride, 1).clamp_min(0)
        shortcut = x if number == 0 else layer(f"blocks.{number}.shortcut", x, stride, 0)
        x = (layer(f"blocks.{number}.second", inner, 1, 1) + shortcut).clamp_min(0)
    return x.flatten(2).mean(2)


@pytest.mark.parametrize("stem", ["large", "small"])
def test_it_computes_what_the_paper_draws(stem: str) -> None:
    torch.manual_seed(0)
    network = ResNet10(stem=stem, width=3)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point() and value.ndim == 1:
                value.copy_(torch.rand_like(value) + (0.5 if name.endswith("var") else 0))
        images = torch.randn(2, 3, 40, 36)
        found = network.eval()(images)
        torch.testing.assert_close(found, by_hand(network.state_dict(), images, stem))
    assert found.shape == (2, 24)
    assert (found >= 0).all()


def test_it_has_the_size_of_the_benchmark() -> None:
    """Convolutions 7·7·3·64 + 2·9·64² + 9·64·128 + 9·128² + 64·128 + … and two numbers for each channel."""
    widths = (64, 128, 256, 512)
    expected = 7 * 7 * 3 * 64 + 2 * 64 + 2 * (9 * 64**2 + 2 * 64)
    for before, width in pairwise(widths):
        expected += 9 * before * width + 9 * width**2 + before * width + 3 * 2 * width
    assert sum(parameter.numel() for parameter in ResNet10().parameters()) == expected == 4_905_792
    assert ResNet10().dimension == 512


@pytest.mark.parametrize(("stem", "size", "places"), [("large", 224, 7), ("small", 64, 8), ("small", 28, 4)])
def test_images_shrink_as_they_should(stem: str, size: int, places: int) -> None:
    network: Any = ResNet10(stem=stem, width=1)
    assert network.blocks(network.stem(torch.zeros(2, 3, size, size))).shape == (2, 8, places, places)


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(InputError, match="one of large, small, got 'tiny'"):
        ResNet10(stem="tiny")
