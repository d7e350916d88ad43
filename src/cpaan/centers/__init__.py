"""Estimates of class centres from a few shots."""

from cpaan.centers.base import Center
from cpaan.centers.calibrated import Calibrated
from cpaan.centers.posterior_mean import PosteriorMean
from cpaan.centers.shot_mean import ShotMean

CENTERS: dict[str, type[Center]] = {"shots": ShotMean, "posterior": PosteriorMean, "calibrated": Calibrated}

__all__ = ["CENTERS", "Calibrated", "Center", "PosteriorMean", "ShotMean"]
