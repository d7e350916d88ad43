"""Means over trials with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from cpaan.errors import InputError


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its confidence interval (NaN for a single trial)."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half_width:.1f}" if np.isfinite(self.half_width) else f"{self.mean:.1f}"


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Give the mean of repeated trials with Student's t interval.

    x̄ ± t s / √n, with t the quantile of n − 1 degrees of freedom

    >>> str(mean_interval([50.0, 52.0, 54.0]))
    '52.0 ± 5.0'
    >>> str(mean_interval([50.0]))
    '50.0'
    """
    if not len(values):
        raise InputError("no trial to average; give at least one value")
    n = len(values)
    if n == 1:
        return Interval(float(values[0]), float("nan"))
    quantile = float(student.ppf((1 + confidence) / 2, n - 1))
    return Interval(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / n**0.5)
