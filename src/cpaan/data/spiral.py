"""The toy of the paper: a spiral of four arms, two of them known by a handful of points."""

import math
from numbers import Real

import numpy as np
import numpy.typing as npt

from cpaan.data.arguments import RandomState, as_generator, as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.split import LowShotSplit, low_shot_split
from cpaan.errors import InputError

BASE_ARMS = ("top", "bottom")
NOVEL_ARMS = ("left", "right")

_QUARTERS = {"right": 0, "top": 1, "left": 2, "bottom": 3}
_INNER_RADIUS = 0.15
_TURN = 0.75 * math.pi
# Where along an arm it points in the direction of its name: past the middle, as the outer half is longer.
_NAMED_AT = 0.65


def make_spiral(
    shots: int = 4, *, per_arm: int = 500, noise: float = 0.025, random_state: RandomState = 0
) -> LowShotSplit:
    """Draw a four-arm spiral in the plane.

    Point t ∈ [0, 1] of an arm lies at radius r₀ + (1 − r₀) t and angle φ + τ (t − t₀), plus Gaussian noise;
    each arm is the one before turned by 90°.

    Parameters
    ----------
    shots : int, default=4
        How many points of each novel arm are known.
    per_arm : int, default=500
        How many points an arm has.
    noise : float, default=0.025
        Standard deviation of the noise. With the default, arms do not touch.
    random_state : int, numpy.random.Generator or None, default=0
        Seed of the points and of the draw; the points do not depend on `shots`.

    Returns
    -------
    LowShotSplit
        Base arms "top" and "bottom", novel arms "left" and "right".

    Examples
    --------
    >>> split = make_spiral(shots=4)
    >>> split.base
    FeatureSet(1000 examples of 2 classes, 2 features, float32)
    >>> split.novel_classes, len(split.shots), len(split.unseen)
    (('left', 'right'), 8, 992)
    """
    count = as_whole_number(per_arm, "per_arm", minimum=1)
    if not isinstance(noise, Real) or not 0 <= noise < math.inf:
        raise InputError(f"noise is {noise!r}; give a standard deviation of at least 0")
    generator = as_generator(random_state)
    names = BASE_ARMS + NOVEL_ARMS
    points = np.concatenate([_arm(name, count, noise, generator) for name in names])
    arms = FeatureSet(points.astype(np.float32), np.repeat(np.arange(len(names)), count), names)
    return low_shot_split(arms, BASE_ARMS, NOVEL_ARMS, shots, generator)


def _arm(name: str, count: int, noise: float, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    along = generator.uniform(size=count)
    radius = _INNER_RADIUS + (1 - _INNER_RADIUS) * along
    angle = _QUARTERS[name] * math.pi / 2 + _TURN * (along - _NAMED_AT)
    exact = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points: npt.NDArray[np.float64] = exact + noise * generator.standard_normal((count, 2))
    return points
