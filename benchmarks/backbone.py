"""Measure how many images per second the backbone pipeline decodes, trains on and encodes; extrapolate to ImageNet.

python benchmarks/backbone.py [--images 4000] [--device cuda] [--workers 15]

Writes JPEG files of 500 × 375 pixels, about the size of ImageNet's, and measures in one run: decoding alone, training
with pixels held on the device (the speed of the network), training with pixels decoded in every epoch, and extraction.
The ratios show whether decoding or computing limits training. Prints a table and writes backbone.json.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cpaan.representations.backbone import Backbone, ResNet10
from cpaan.representations.encoders import make_encoder
from cpaan.representations.extraction import extract_features
from cpaan.representations.images import ImageIndex, index_images
from cpaan.representations.loading import ImageLoader
from cpaan.representations.recipe import BackboneRecipe, BackboneSettings, make_backbone_recipe
from cpaan.representations.training import train_backbone
from cpaan.training.device import choose_device

CLASSES = 8
BASE_IMAGES, ALL_IMAGES = 498_000, 1_331_167  # of 389 base classes; of all classes, including test images


def write_images(folder: Path, number: int) -> ImageIndex:
    """Write JPEG files with about as much detail as photographs."""
    rng = np.random.default_rng(0)
    for i in range(number):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(coarse, dtype=np.int16) + rng.integers(-24, 25, (375, 500, 1), dtype=np.int16)
        path = folder / f"class{i % CLASSES}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return index_images(folder)


class Clock:
    """Time from the first to the last progress report, which leaves out the start of the workers."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []

    def __call__(self, title: str, unit: str) -> Callable[..., None]:
        """Open a progress bar."""
        self.times = []  # only the last bar counts
        return self.tell

    def tell(self, done: int, total: int, note: str = "") -> None:
        """Record a report."""
        self.times.append((time.perf_counter(), done))

    @property
    def rate(self) -> float:
        """Images per second between the first and the last report."""
        (start, first), (end, last) = self.times[0], self.times[-1]
        return (last - first) / (end - start)


def decoding_rate(index: ImageIndex, size: int, given: argparse.Namespace) -> float:
    """Measure decoded images per second."""
    clock = Clock()
    for batch in ImageLoader(index, size, workers=given.workers).batches(np.arange(len(index)), given.batch_size):
        clock.tell(len(batch.rows) + (clock.times[-1][1] if clock.times else 0), 0)
    return clock.rate


def training_rate(index: ImageIndex, recipe: BackboneRecipe, cache: str, given: argparse.Namespace) -> float:
    """Measure trained images per second."""
    clock = Clock()
    settings = BackboneSettings(
        "resnet10", recipe, device=given.device, workers=given.workers, cache=cache, log_every=2
    )
    with tempfile.TemporaryDirectory() as folder:
        train_backbone(index, settings, Path(folder), bars=clock)
    return clock.rate


def extraction_rate(index: ImageIndex, recipe: BackboneRecipe, given: argparse.Namespace) -> float:
    """Measure encoded images per second, from file to file."""
    clock = Clock()
    backbone = Backbone(ResNet10(stem=recipe.stem, width=recipe.width), "resnet10", recipe, index.classes)
    encoder = make_encoder(backbone, device=choose_device(given.device))
    with tempfile.TemporaryDirectory() as folder:
        extract_features(
            index,
            encoder,
            Path(folder) / "bank.npz",
            batch_size=given.batch_size,
            workers=given.workers,
            tell=clock.tell,
        )
    return clock.rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("backbone.json"))
    given = parser.parse_args()
    if given.images < 4 * given.batch_size:
        parser.error(f"--images must be at least four batches, {4 * given.batch_size}")
    recipe = make_backbone_recipe("paper", epochs=given.epochs, batch_size=given.batch_size, width=given.width)
    with tempfile.TemporaryDirectory() as folder:
        index = write_images(Path(folder), given.images)
        rates = {
            "decoding": decoding_rate(index, recipe.stored, given),
            "training, pixels held": training_rate(index, replace(recipe, epochs=4 * given.epochs), "always", given),
            "training, pixels decoded": training_rate(index, recipe, "never", given),
            "extraction": extraction_rate(index, recipe, given),
        }
    per_process = rates["decoding"] / max(1, given.workers)
    hours = {
        "90 epochs of 389 base classes": 90 * BASE_IMAGES / rates["training, pixels decoded"] / 3600,
        "the same, if decoding were free": 90 * BASE_IMAGES / rates["training, pixels held"] / 3600,
        "features of all images": ALL_IMAGES / rates["extraction"] / 3600,
    }
    needed = rates["training, pixels held"] / per_process
    for name, rate in rates.items():
        print(f"{name:<28} {rate:10,.0f} images/s")
    print(f"decoding alone / training with pixels held: {rates['decoding'] / rates['training, pixels held']:.2f}")
    print(f"training decoded / held: {rates['training, pixels decoded'] / rates['training, pixels held']:.2f}")
    print(f"one process decodes {per_process:,.0f} images/s; {needed:.0f} would keep the network busy")
    for name, value in hours.items():
        print(f"{name:<34} {value:6.1f} h")
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = {"images_per_second": rates, "hours": hours, "workers": given.workers, "machine": machine}
    given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
