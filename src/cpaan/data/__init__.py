"""Features with labels: the set itself, readers and writers, low-shot splits, toy and bundled sets."""

from cpaan.data.datasets import features_from
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import Bank, read_bank, read_features, write_features
from cpaan.data.low_shot import LowShotSplit, draw_shots, low_shot_split
from cpaan.data.toys import glyph_split, load_glyphs, make_spiral

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
