"""From images to features to the benchmark, offline: letters in many fonts, 28 × 28 pixels.

python examples/glyph_images.py --out glyph-run

writes the letters as image files, trains a small ResNet-10 on the base letters, extracts the features of all letters
and fills the low-shot table for them, each with the command that is printed.
"""

import argparse
import json
import shlex
from pathlib import Path

import numpy as np
from PIL import Image

from cpaan.cli.app import app
from cpaan.data.toys import GLYPHS, glyph_split, load_glyphs

PIXELS = 28
TEST_FONTS = 4  # of each letter's last images


def name_of(character: str) -> str:
    """Name a character's folder; not all of them can be file names."""
    return f"U+{ord(character):04X}"


def write_images(folder: Path, characters: str = GLYPHS) -> None:
    """Write train/CLASS/*.png and test/CLASS/*.png, with the setup beside them."""
    glyphs = load_glyphs(PIXELS)
    for character in characters:
        images = glyphs.of_class(character).reshape(-1, PIXELS, PIXELS)
        for number, image in enumerate(images):
            part = "test" if number >= len(images) - TEST_FONTS else "train"
            path = folder / "images" / part / name_of(character) / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 * (1 - image)).astype(np.uint8)).save(path)
    base, novel = glyph_split()
    setup = {
        "base": [name_of(character) for character in base if character in characters],
        "novel": [name_of(character) for character in novel if character in characters],
    }
    (folder / "setup.json").write_text(json.dumps(setup, indent=1))


def commands(folder: Path, epochs: int, width: int) -> list[list[str]]:
    """List the commands from images to the table."""
    images, setup, backbone, bank = (str(folder / name) for name in ("images", "setup.json", "backbone", "bank.npz"))
    recipe = ["--recipe", "small", "--size", str(PIXELS), "--epochs", str(epochs)]
    numbers = ["--set", f"width={width}", "--set", "batch_size=64", "--set", "learning_rate=0.1"]
    methods = ["--methods", "nearest-prototype,linear,empirical-bayes", "--shots", "1,5", "--trials", "3"]
    return [
        ["backbone", "train", images, "--setup", setup, *recipe, *numbers, "-o", backbone, "--overwrite"],
        ["features", "extract", images, "--backbone", backbone, "-o", bank],
        ["bench", bank, "--setup", setup, *methods, "--measure", "top1", "-o", str(folder / f"run-{epochs}-{width}")],
    ]


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("glyph-run"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--characters", default=GLYPHS, help="use these alone, for a quicker run")
    given = parser.parse_args()
    write_images(given.out, given.characters)
    for command in commands(given.out, given.epochs, given.width):
        print(f"\n$ cpaan {shlex.join(command)}", flush=True)
        app(command, standalone_mode=False)


if __name__ == "__main__":
    main()
