"""The maps of a page: points with their class and kind, and what is shown when one is pointed at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.evaluation.sample import Indices, RealSample
from cpaan.reporting.runs import RunRecord
from cpaan.reporting.thumbnails import Album, ClassImages, pixel_pictures

Data = dict[str, Any]
Pictures = Sequence[int | None] | None


def map_data(run: RunRecord, album: Album, images: Path | None, pixels: tuple[int, int] | None) -> Data:
    """Give the points of a run's map; `run` has a sample."""
    found = run.feature_map
    assert run.sample is not None
    assert found is not None
    real = run.sample.real
    class_images = None if images is None else ClassImages(images, real, album)

    def drawn(features: NDArray[np.floating]) -> Pictures:
        return None if pixels is None else pixel_pictures(features, pixels, album)

    own = drawn(real.real[found.kept]) if class_images is None else class_images.of_real(found.kept.tolist())
    return {
        "run": run.label,
        "shots_per_class": real.shots_per_class,
        # A bank keeps no names of images, so that which image is whose follows from their order alone.
        "picture_note": "" if class_images is None else "its image, by the order of the test images",
        "classes": [_class(real, index, class_images) for index in range(len(real.classes))],
        "real": _points(*found.real, own),
        "shots": _points(*found.shots, drawn(real.shots)),
        "made": [
            {"method": name, **_points(*points, drawn(run.sample.made[name].made[found.kept_made[name]]))}
            for name, points in found.made.items()
        ],
    }


def _class(real: RealSample, index: int, images: ClassImages | None) -> Data:
    pairs = zip(real.nearest[index], real.distances[index], strict=True)
    return {
        "name": real.classes[index],
        "nearest": [[real.base_classes[base], float(f"{distance:.3g}")] for base, distance in pairs],
        "pictures": [] if images is None else images.of_class[index],
    }


def _points(places: NDArray[np.float64], labels: Indices, pictures: Pictures) -> Data:
    return {
        "x": np.round(places[:, 0], 4).tolist(),
        "y": np.round(places[:, 1], 4).tolist(),
        "class": labels.tolist(),
        "pictures": None if pictures is None else list(pictures),
    }
