from pathlib import Path

import numpy as np
import pytest

from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.reporting.figure import new_figure, write_figure
from cpaan.reporting.figures import glyph_figure


def test_glyph_figure_shows_each_character_where_it_belongs() -> None:
    dark, light = np.ones((3, 16)), np.zeros((3, 16))
    made = FeatureSet(np.concatenate([dark, light]), ["A"] * 3 + ["B"] * 3)
    shots = made.take([0, 3])
    figure = glyph_figure(shots, {"ours": made}, ["B", "A"], 2)
    real, ours = (np.asarray(ax.images[0].get_array()) for ax in figure.axes)
    assert real.shape == (8, 4)
    assert ours.shape == (8, 8)
    assert (ours[:4] == 0).all()
    assert (ours[4:] == 1).all()


def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_figure(new_figure(1, 1), tmp_path / "missing" / "figure.png")
    assert list(tmp_path.iterdir()) == []
