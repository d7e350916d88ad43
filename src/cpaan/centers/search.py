"""The constants of `cpaan.centers.class_center`, chosen on base classes held out as if novel, and what they gain.

The gain is that of the nearest prototype with the estimated centre over the nearest prototype with the mean of the
shots. Values of several folds overlap in their base classes, so that the interval of their mean is that of C. Nadeau
and Y. Bengio, "Inference for the generalization error", Machine Learning 52, 2003: Student's t with the variance
(1/n + held out / remaining) s².
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from cpaan.centers.class_center import (
    PERPLEXITY,
    CenterConstants,
    CenterModel,
    at_length,
    class_centers,
    common_length_share,
    fit_center_model,
    lengths_about,
)
from cpaan.centers.held_out import (
    AS_THEY_ARE,
    FOLDS,
    Fold,
    Shift,
    Trial,
    affordable_rounds,
    class_sample,
    draw_folds,
    draw_trial,
    usable_shots,
)
from cpaan.math.linear_gaussian import ClassMoments, between_covariance
from cpaan.math.neighborhood import calibrated_temperature
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.threads import threads_for
from cpaan.training.bank import ClassBank

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
LENGTHS = torch.arange(8, 27).double() / 20  # ρ from 0.4 to 1.3
# Lengths whose accuracy is so near the best, in points, count as equally good, and their mean is taken.
TOLERANCE = 0.15
# Of ridges that are so near the best, which the draw of folds decides among, the smallest is taken.
RIDGE_TOLERANCE = 0.05
CONFIDENCE = 0.95
# Numbers that the covariance within classes is estimated from at most.
MOST_FITTED = 64 * NUMBERS_IN_BLOCK


@dataclass(frozen=True)
class Gains:
    """What estimated centres gain over means of shots on held-out classes, in points of accuracy.

    Attributes
    ----------
    shots : numbers of shots K
    lsl, glsl : for each K the gain in each fold
    """

    shots: tuple[int, ...] = ()
    lsl: tuple[tuple[float, ...], ...] = ()
    glsl: tuple[tuple[float, ...], ...] = ()

    def expected(self) -> dict[str, Any]:
        """Give for each K the mean and the half-width of its 95 % interval."""
        return {
            "shots": self.shots,
            "lsl": [corrected_interval(values) for values in self.lsl],
            "glsl": [corrected_interval(values) for values in self.glsl],
        }


def corrected_interval(values: Sequence[float], ratio: float = 1 / (FOLDS - 1)) -> tuple[float, float]:
    """Give the mean over overlapping folds and the half-width of its interval, infinite for a single fold.

    >>> mean, half_width = corrected_interval([1.0, 2.0, 3.0], ratio=0.0)
    >>> mean, round(half_width, 4)
    (2.0, 2.4841)
    """
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return mean, float("inf")
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    return mean, quantile * float(np.std(values, ddof=1)) * (1 / n + ratio) ** 0.5


def search_center_model(bank: ClassBank, rounds: int, seed: int) -> tuple[CenterModel, Gains]:
    """Choose the constants on held-out base classes and fit the model on all of them.

    With too few base classes or examples to hold any out, the constants are plain ones, and no gain is told.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = class_sample(bank, generator)
    rounds = affordable_rounds(rounds, bank.dimension)
    with threads_for(search_multiplications(bank.dimension)):
        constants = choose_constants(sample, rounds, generator)
        gains = held_out_gains(sample, constants, rounds, generator)
        return _fitted(bank, constants), gains


def search_multiplications(dimension: int) -> float:
    """Count those of a Cholesky factor, of which the search computes hundreds."""
    return dimension**3 / 6


def choose_constants(sample: Sequence[Tensor], rounds: int, generator: torch.Generator) -> CenterConstants:
    """Choose ridge and lengths by the accuracy of nearest prototypes on held-out classes, mean of LSL and GLSL."""
    accuracy: dict[int, list[Tensor]] = {k: [] for k in usable_shots(sample)}
    posterior: dict[int, list[Tensor]] = {k: [] for k in accuracy}
    for fold in draw_folds(sample, rounds, generator) if accuracy else ():
        if not fold.center_length:
            continue
        between = between_covariance(fold.moments)
        for k, of_k in accuracy.items():
            trial = draw_trial(fold, k, generator)
            if trial is not None:
                found, lengths = _try_all(fold, between, trial, k)
                of_k.append(found)
                posterior[k].append(lengths)
    tried = {k: torch.stack(of_k).mean(0) for k, of_k in accuracy.items() if of_k}  # (ridges, lengths)
    if not tried:
        return CenterConstants()
    of_ridges = torch.stack([of_k.amax(1) for of_k in tried.values()]).mean(0)
    best = int((of_ridges >= of_ridges.max() - RIDGE_TOLERANCE).nonzero()[0])
    # A class that is better known is not nearer to the mean of all.
    growing = np.maximum.accumulate([_middle_of_best(of_k[best]) for of_k in tried.values()])
    return CenterConstants(
        ridge=RIDGES[best],
        shots=tuple(tried),
        lengths=tuple(map(float, growing)),
        posterior_lengths=tuple(float(torch.stack(posterior[k]).mean(0)[best]) for k in tried),
    )


def held_out_gains(
    sample: Sequence[Tensor],
    constants: CenterConstants,
    rounds: int,
    generator: torch.Generator,
    shift: Shift = AS_THEY_ARE,
) -> Gains:
    """Measure on fresh draws what centres with given constants gain over means of shots."""
    gains: dict[int, list[NDArray[np.float64]]] = {k: [] for k in usable_shots(sample)}
    for fold in draw_folds(sample, rounds, generator, shift) if gains else ():
        if not fold.center_length:
            continue
        temperature = calibrated_temperature(fold.moments.means, PERPLEXITY)
        model = fit_center_model(fold.moments, fold.example_length, constants, temperature)
        for k, of_k in gains.items():
            trial = draw_trial(fold, k, generator)
            if trial is not None:
                of_k.append(_gain(model, trial, k))
    found = {k: np.stack(of_k) for k, of_k in gains.items() if of_k}
    lsl, glsl = (tuple(tuple(map(float, of_k[:, i])) for of_k in found.values()) for i in (0, 1))
    return Gains(tuple(found), lsl, glsl)


def _gain(model: CenterModel, trial: Trial, k: int) -> NDArray[np.float64]:
    n = len(trial.shots)
    shots = trial.shots.flatten(0, 1) + model.gaussian.mean
    centers = class_centers(model, shots, torch.arange(n).repeat_interleave(k), n) - model.gaussian.mean
    gain: NDArray[np.float64] = (trial.of_centers(centers) - trial.of_centers(trial.shots.mean(1))).numpy()
    return gain


def _try_all(fold: Fold, between: Tensor, trial: Trial, k: int) -> tuple[Tensor, Tensor]:
    """Give the accuracy with every ridge and length (ridges, lengths), and λ_K with every ridge.

    The turn to similar base classes is left out: it changes no length.
    """
    origin = torch.zeros_like(fold.mean)
    moved = at_length(trial.shots, origin, fold.example_length).mean(1)
    share = common_length_share(torch.tensor(k))
    accuracy, relative = [], []
    for ridge in RIDGES:
        m = posterior_means(between, fold.moments.within, ridge, moved, k)
        own = lengths_about(m, origin)
        average = own.mean().clamp_min(torch.finfo(own.dtype).tiny)  # zero where base classes differ by noise alone
        relative.append(average / fold.center_length)
        lengths = (LENGTHS.view(-1, 1, 1) * fold.center_length * (own / average) ** (1 - share)).float()
        # Single precision from here: scores are many, and are only compared.
        along = (trial.queries @ at_length(m, origin, 1.0).T).float()
        accuracy.append(trial.accuracies(lengths * (2 * along - lengths)).mean(-1))
    return torch.stack(accuracy), torch.stack(relative)


def posterior_means(between: Tensor, within: Tensor, ridge: float, centroids: Tensor, k: int) -> Tensor:
    """Give Σ_b (Σ_b + Σ_w / K)⁻¹ l with a ridge on both; about μ.

    As `class_posterior` does, but for one ridge and one K by a single Cholesky factor, which is several times faster
    than coordinates that serve every K.
    """
    dimension = len(within)
    b = between + torch.eye(dimension, dtype=between.dtype) * (ridge * between.diagonal().mean())
    w = within + torch.eye(dimension, dtype=within.dtype) * (ridge * within.diagonal().mean())
    solved = torch.cholesky_solve(centroids.T, torch.linalg.cholesky(b + w / k))
    return solved.T @ b


def _middle_of_best(accuracy: Tensor) -> float:
    return float(LENGTHS[accuracy >= accuracy.max() - TOLERANCE].mean())


def _fitted(bank: ClassBank, constants: CenterConstants) -> CenterModel:
    """Fit on all base classes; of a large bank, on some examples of each class."""
    means = bank.prototypes.cpu().double()
    mean, counts = means.mean(0), bank.counts.cpu()
    most = max(1, MOST_FITTED // bank.dimension // bank.n_classes)
    scatter, total, length = torch.zeros((bank.dimension, bank.dimension)).double(), 0, 0.0
    for label in range(bank.n_classes):
        start, stop = int(bank.starts[label]), int(bank.starts[label]) + min(int(counts[label]), most)
        examples = bank.rows[start:stop].cpu().double()
        deviations = examples - means[label]
        scatter += deviations.T @ deviations
        length += float(lengths_about(examples, mean).sum())
        total += len(examples)
    moments = ClassMoments(means, counts, scatter / max(total - bank.n_classes, 1))
    return fit_center_model(moments, length / total, constants, calibrated_temperature(means, PERPLEXITY))
