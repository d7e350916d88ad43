"""The glyph figure: the one real example of a character beside what generators imagine."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cpaan.data.feature_set import FeatureSet
from cpaan.reporting.figure import new_figure


def glyph_figure(shots: FeatureSet, made: Mapping[str, FeatureSet], characters: Sequence[str], number: int) -> Figure:
    """Draw a row for each character: its only example, then `number` synthetic ones of each generator.

    Parameters
    ----------
    shots : one image per character, as square rows of pixels
    made : synthetic images, by the name of their generator
    characters : which to show, in this order
    number : synthetic images of each generator
    """
    figure = new_figure(0.62 * (2 + number * len(made)), 0.62 * len(characters) + 0.6)
    panels = figure.subplots(1, 1 + len(made), width_ratios=[1, *([number] * len(made))], squeeze=False)[0]
    real = [_row(shots.of_class(name), 1) for name in characters]
    panels[0].imshow(np.concatenate(real), cmap="gray_r", vmin=0, vmax=1)
    panels[0].set_title("real", fontsize=9)
    for ax, (name, images) in zip(panels[1:], made.items(), strict=True):
        rows = [_row(images.of_class(character), number) for character in characters]
        ax.imshow(np.concatenate(rows), cmap="gray_r", vmin=0, vmax=1)
        ax.set_title(f"imagined by {name}", fontsize=9)
    for ax in panels:
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def _row(images: NDArray[np.floating], number: int) -> NDArray[np.floating]:
    side = round(images.shape[1] ** 0.5)
    return np.concatenate([image.reshape(side, side) for image in images[:number]], axis=1)
