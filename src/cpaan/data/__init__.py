"""Features with labels: the set itself, readers and writers, low-shot splits, toy and bundled sets."""

from cpaan.data.archive import Bank, read_bank, read_features, write_features
from cpaan.data.dataset_rows import features_from
from cpaan.data.feature_set import FeatureSet
from cpaan.data.glyphs import glyph_split, load_glyphs
from cpaan.data.spiral import make_spiral
from cpaan.data.split import LowShotSplit, draw_shots, low_shot_split

__all__ = [
    "Bank",
    "FeatureSet",
    "LowShotSplit",
    "draw_shots",
    "features_from",
    "glyph_split",
    "load_glyphs",
    "low_shot_split",
    "make_spiral",
    "read_bank",
    "read_features",
    "write_features",
]
