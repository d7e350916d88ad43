import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COLOURS = ((220, 40, 40), (40, 200, 40), (40, 40, 220), (210, 200, 40))


def coloured_image(rng: np.random.Generator, colour: tuple[int, int, int], size: int) -> bytes:
    noisy = np.array(colour) + rng.integers(-35, 36, (size, size, 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def coloured(tmp_path: Path) -> Callable[..., Path]:
    """Write train/CLASS/*.png and val/CLASS/*.png of noisy coloured squares, which are easy to classify."""

    def make(name: str = "images", train: int = 12, test: int = 3, size: int = 12) -> Path:
        rng = np.random.default_rng(0)
        for label, colour in enumerate(COLOURS):
            for part, number in (("train", train), ("val", test)):
                folder = tmp_path / name / part / f"colour{label}"
                folder.mkdir(parents=True)
                for i in range(number):
                    (folder / f"{i:02d}.png").write_bytes(coloured_image(rng, colour, size))
        return tmp_path / name

    return make
