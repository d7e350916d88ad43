"""What synthetic examples are worth before anyone makes them, predicted from base classes held out as if novel.

Features that were trained on the base classes set these further apart than any novel class, and their examples lie
nearer to their class mean than new ones will. A prediction from held-out base classes is then far too high. What the
examples of novel classes show of it is how far these classes lie apart,

s² = (tr cov(l_1, …, l_N) − tr Σ_w · mean of 1/n) / tr Σ_b,   1 where it is not below 1 by more than chance,

and held-out classes are pulled together as far, x → μ + s (l_b − μ) + (x − l_b). How new examples of the base classes
will lie nobody has seen: between the given ones (1) and those of classes that the features do not know (s). The
prediction for all classes takes the middle, √s, and its interval covers both ends. One number does not tell all of how
novel classes differ from base classes either: the interval for novel classes alone covers the uncorrected one too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.centers.base import choose_units
from cpaan.centers.calibrated import choose_constants, held_out_gains, search_multiplications
from cpaan.centers.cross_validation import (
    FEWEST_CLASSES,
    FEWEST_QUERIES,
    Shift,
    affordable_rounds,
    class_sample,
    corrected_interval,
    part_labels,
)
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import ClassMoments, class_moments
from cpaan.threads import threads_for
from cpaan.training.bank import lay_out

# A gain of fewer points is none that anyone would notice.
NEGLIGIBLE = 0.5
LEAST_SEPARATION = 0.05
# So many standard errors of s² are chance.
STANDARD_ERRORS = 2.0
LSL, GLSL = range(2)


@dataclass(frozen=True)
class Prediction:
    """An expected gain in points of accuracy, and its 95 % interval.

    >>> Prediction(3.0, 1.0, 5.0).verdict, Prediction(0.1, -0.2, 0.4).verdict, Prediction(1.0, -1.0, 3.0).verdict
    ('helps', 'will not help', 'cannot tell')
    """

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Say in words whether synthetic examples are worth making."""
        if self.low > 0:
            return "helps"
        return "will not help" if self.high < NEGLIGIBLE else "cannot tell"


@dataclass(frozen=True)
class Advice:
    """What is expected of synthetic examples about estimated centres, with the nearest prototype.

    Attributes
    ----------
    separation : s, how far apart novel classes lie, in terms of base classes; 1 where there is nothing to correct
    shots : numbers of shots K
    lsl, glsl : for each K, the gain on novel classes alone and on all
    plain_lsl, plain_glsl : the same as if novel classes were like base classes
    """

    separation: float
    shots: tuple[int, ...]
    lsl: tuple[Prediction, ...]
    glsl: tuple[Prediction, ...]
    plain_lsl: tuple[Prediction, ...]
    plain_glsl: tuple[Prediction, ...]


def advise_on(base: FeatureSet, novel: FeatureSet, *, rounds: int = 5, seed: int = 0) -> Advice:
    """Predict what synthetic examples gain.

    Parameters
    ----------
    base : examples of base classes
    novel : the examples of novel classes that are known, one of each at least; the more, the better s is known
    rounds : how often base classes are parted into folds
    seed : decides every random draw

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(20, 1, 9)) * np.r_[np.ones(3), np.zeros(6)] + rng.normal(size=(20, 40, 9)) * 0.7
    >>> base = FeatureSet(X[:15].reshape(-1, 9), np.repeat(np.arange(15), 40))
    >>> novel = FeatureSet(X[15:, :5].reshape(-1, 9), np.repeat(np.arange(15, 20), 5))
    >>> advice = advise_on(base, novel, rounds=2)
    >>> advice.shots, advice.separation, advice.lsl[0].mean > 0
    ((1, 2, 5, 10, 20), 1.0, True)
    """
    with threads_for(search_multiplications(base.dimension)):
        return _advise(base, novel, rounds, seed)


def _advise(base: FeatureSet, novel: FeatureSet, rounds: int, seed: int) -> Advice:
    scaling = choose_units(base)
    bank = lay_out(base, scaling, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    sample = class_sample(bank, generator)
    rounds = affordable_rounds(rounds, bank.dimension)
    constants = choose_constants(sample, rounds, generator)
    if not constants.shots:
        raise InputError(
            f"a prediction needs {FEWEST_CLASSES} base classes that differ, of {FEWEST_QUERIES + 1} examples or more; "
            "there are too few to hold any out"
        )
    features, labels = novel.to_torch()
    known = class_moments(scaling.apply(features.double()), labels, novel.n_classes)
    s = class_separation(_moments(sample), known)
    plain = held_out_gains(sample, constants, rounds, generator)
    shifts = () if s == 1 else (Shift(s, s**0.5), Shift(s, s), Shift(s, 1.0))
    pulled = [held_out_gains(sample, constants, rounds, generator, shift) for shift in shifts] or [plain]
    return Advice(
        separation=s,
        shots=tuple(plain),
        lsl=_predictions([pulled[0], plain], LSL),
        glsl=_predictions(pulled, GLSL),
        plain_lsl=_predictions([plain], LSL),
        plain_glsl=_predictions([plain], GLSL),
    )


def class_separation(base: ClassMoments, novel: ClassMoments) -> float:
    """Estimate s; 1 where it is not below 1 by more than chance, and for a single novel class.

    >>> means, within, counts = torch.arange(99.0).reshape(-1, 1), torch.zeros(1, 1), torch.ones(99)
    >>> round(class_separation(ClassMoments(means, counts, within), ClassMoments(means / 2, counts, within)), 6)
    0.5
    """
    of_base = _variance_of_centers(base, base.within)
    if len(novel.means) == 1 or of_base <= 0:
        return 1.0
    # With hardly two examples a class, base classes tell better how examples vary.
    few = int(novel.counts.sum()) < 2 * len(novel.counts)
    share = _variance_of_centers(novel, base.within if few else novel.within) / of_base
    by_chance = STANDARD_ERRORS * (2 / _freedom(base) + 2 / _freedom(novel)) ** 0.5
    if share >= 1 - by_chance:
        return 1.0
    return float(max(share, LEAST_SEPARATION**2) ** 0.5)


def _freedom(moments: ClassMoments) -> float:
    """Give the degrees of freedom ν of the variance of class means, whose relative error is about √(2/ν)."""
    deviations = moments.means - moments.means.mean(0)
    variances = torch.linalg.svdvals(deviations).square()
    if not variances.any():
        return 1.0
    return float((len(deviations) - 1) * variances.sum() ** 2 / variances.square().sum())


def _variance_of_centers(moments: ClassMoments, within: Tensor) -> float:
    noise = within.diagonal().sum() * moments.counts.double().reciprocal().mean()
    return float(moments.means.var(0).sum() - noise)


def _moments(sample: tuple[Tensor, ...]) -> ClassMoments:
    return class_moments(torch.cat(sample), part_labels(sample), len(sample))


def _predictions(readings: list[dict[int, list[Tensor]]], setting: int) -> tuple[Prediction, ...]:
    """Take the mean of the first reading, and an interval that covers those of all."""
    found = []
    for of_k in zip(*(gains.values() for gains in readings), strict=True):
        intervals = [corrected_interval([float(fold[setting]) for fold in folds]) for folds in of_k]
        low, high = min(m - h for m, h in intervals), max(m + h for m, h in intervals)
        found.append(Prediction(intervals[0][0], low, high))
    return tuple(found)
