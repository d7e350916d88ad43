"""The calibrated centre: the posterior mean, with lengths and a ridge chosen by cross-validation over base classes.

With μ the mean of the base class means l_b, R the mean of ‖x − μ‖ over base examples and r̄ the mean of ‖l_b − μ‖,
the centre P of a class with K shots x is found in four steps:

1. every shot is moved to the length of a base example, x̃ = μ + R (x − μ) / ‖x − μ‖, because the length of one
   example says little about its class; l̃ is the mean of the K moved shots;
2. m is the posterior mean of the centre given l̃ and K, in the linear-Gaussian model of base classes;
3. P keeps the direction of m − μ, with the length ρ_K r̄ (‖m − μ‖ / (λ_K r̄))^(1 − γ_K), γ_K = ⅔ min(1, 5/K):
   classes with few shots get nearly a common length, and those with many keep their own;
4. P is turned a little to the base classes that are like it, (P − μ) + (0.2 / √K) (Σ_b α_b l_b − μ) with
   α = softmax(−‖P − l_b‖² / T), at an unchanged length.

ρ_K, λ_K and the ridge of the model are chosen on base classes held out as if novel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cpaan.centers.base import Center, Noise, choose_units
from cpaan.centers.cross_validation import (
    AS_THEY_ARE,
    Fold,
    Shift,
    Trial,
    affordable_rounds,
    class_sample,
    corrected_interval,
    cross_validate,
    lengths_about,
)
from cpaan.centers.posterior_mean import GAUSSIAN_FORMS, finite
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import (
    ClassMoments,
    LinearGaussian,
    between_covariance,
    class_posterior,
    fit_linear_gaussian,
)
from cpaan.math.neighborhood import calibrated_temperature
from cpaan.math.prototypes import class_counts, prototypes, squared_distances
from cpaan.math.rows import NUMBERS_IN_BLOCK
from cpaan.math.scaling import Scaling
from cpaan.threads import threads_for
from cpaan.training.bank import ClassBank

# Effective number of base classes that a centre is turned to, and how far at one shot.
PERPLEXITY, ATTRACTION = 5.0, 0.2
# How much of the length of a class is common to all classes, and up to how many shots.
COMMON_LENGTH, SHOTS_OF_COMMON_LENGTH = 2 / 3, 5
# Standard deviation of the noise about a centre by K, in multiples of (√ridge − 1) times that of a class.
_NOISE_SHOTS, _NOISE = (1, 2, 5, 10, 20), (1.78, 1.78, 1.78, 0.178, 0.0)
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
LENGTHS = torch.arange(8, 27).double() / 20  # ρ from 0.4 to 1.3
# Lengths whose accuracy is so near the best, in points, count as equally good, and their mean is taken.
TOLERANCE = 0.15
# Of ridges that are so near the best, which the draw of folds decides among, the smallest is taken.
RIDGE_TOLERANCE = 0.05
# Numbers that the covariance within classes is estimated from at most.
MOST_FITTED = 64 * NUMBERS_IN_BLOCK


@dataclass(frozen=True)
class Constants:
    """What is chosen on held-out base classes."""

    ridge: float = 1.0  # of the linear-Gaussian model
    shots: tuple[int, ...] = ()  # K that the following were chosen for; without any, P keeps the length of m
    lengths: tuple[float, ...] = ()  # ρ_K, mean length of a centre in mean lengths of base class means
    posterior_lengths: tuple[float, ...] = ()  # λ_K, mean length of m − μ in the same unit


class Calibrated(Center):
    """Estimate a class centre from a few shots, more accurately than their mean.

    The posterior mean of the centre, with a length that was calibrated on base classes held out as if novel; see the
    head of this file for the four steps. With too few base classes to hold any out, the constants are plain ones.
    Where all base classes have one mean they say nothing about others, and centres are shot means.

    Parameters
    ----------
    rounds : int
        How often base classes are parted into four folds to choose the constants.
    noise : float
        Scale of the noise that models uncertainty about the centre; it grows with the ridge and falls with the shots.
        For a linear classifier it works like a stronger weight decay for these classes alone. Classifiers that look at
        single examples do better with 0.

    Attributes
    ----------
    constants_ : Constants, chosen by cross-validation
    expected_gain_ : dict or None
        Gain of the nearest prototype over shot means, in points of accuracy, on held-out base classes: ``"shots"``, and
        for each the mean and the half-width of its 95 % interval on held-out classes (``"lsl"``) and on all
        (``"glsl"``).

    Examples
    --------
    >>> x = torch.tensor([[0.0, 1.0], [0.0, -1.0], [8.0, 1.0], [8.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    >>> bank = ClassBank.from_examples(x, torch.tensor([0, 0, 1, 1, 2, 2]), 3)
    >>> Calibrated().fit(bank).estimate(torch.tensor([[7.0, 3.0]]), torch.tensor([0]), 1).round(decimals=1)
    tensor([[6.1000, 1.6000]], dtype=torch.float64)
    """

    learned: ClassVar[Mapping[str, str]] = {
        **GAUSSIAN_FORMS,
        "base_means_": "CD float64",
        "example_length_": "float64",  # R
        "center_length_": "float64",  # r̄; zero where base classes do not differ
        "within_deviation_": "float64",  # √(tr Σ_w / D), the standard deviation of a feature within a class
        "temperature_": "float64",  # T
    }

    mean_: Tensor
    axes_: Tensor
    inverse_axes_: Tensor
    ratios_: Tensor
    base_means_: Tensor
    example_length_: Tensor
    center_length_: Tensor
    within_deviation_: Tensor
    temperature_: Tensor
    constants_: Constants
    expected_gain_: dict[str, Any] | None = None

    def __init__(self, *, rounds: int = 5, noise: float = 1.0) -> None:
        self.rounds = rounds
        self.noise = noise

    def units(self, base: FeatureSet) -> Scaling:
        """Return units in which squares neither over- nor underflow."""
        return choose_units(base)

    def fit(self, bank: ClassBank, *, seed: int = 0) -> "Calibrated":
        """Choose the constants on held-out base classes, and fit the model to all of them."""
        self.check()
        generator = torch.Generator().manual_seed(seed)
        sample = class_sample(bank, generator)
        rounds = affordable_rounds(self.rounds, bank.dimension)
        with threads_for(search_multiplications(bank.dimension)):
            self.constants_ = choose_constants(sample, rounds, generator)
            gains = held_out_gains(sample, self.constants_, rounds, generator)
            self.expected_gain_ = expected_gain(gains) if gains else None
            return self._fit_bank(bank)

    def refit(self, bank: ClassBank) -> "Calibrated":
        """Return a copy fitted to other base classes, with the same constants."""
        found = self.but()
        found.constants_ = self.constants_
        return found._fit_bank(bank)

    def fit_moments(self, moments: ClassMoments, example_length: float, constants: Constants) -> "Calibrated":
        """Put the model together from the moments of base classes, R and given constants."""
        self.constants_ = constants
        gaussian = fit_linear_gaussian(moments, constants.ridge)
        self.mean_, self.axes_, self.inverse_axes_ = gaussian.mean, gaussian.axes, gaussian.inverse_axes
        self.ratios_, self.base_means_ = finite(gaussian.ratios), moments.means
        differ = bool(gaussian.ratios.max() > 0)  # by more than the noise of their means
        center_length = float(lengths_about(moments.means, gaussian.mean).mean()) if differ else 0.0
        within_deviation = float(moments.within.diagonal().mean()) ** 0.5
        numbers = (example_length, center_length, within_deviation, calibrated_temperature(moments.means, PERPLEXITY))
        self.example_length_, self.center_length_, self.within_deviation_, self.temperature_ = (
            torch.tensor(number, dtype=torch.double) for number in numbers
        )
        return self

    def estimate(self, shots: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        """Return P of each class."""
        shots = shots.double()
        if not self.center_length_ or not self.example_length_:
            return prototypes(shots, labels, n_classes)
        counts = class_counts(labels, n_classes)
        moved = at_length(shots, self.mean_, self.example_length_)
        gaussian = LinearGaussian(self.mean_, self.axes_, self.inverse_axes_, self.ratios_)
        m, _ = class_posterior(gaussian, prototypes(moved, labels, n_classes), counts)
        return self._toward_neighbors(self._at_wanted_length(m, counts), counts)

    def uncertainty(self, counts: Tensor) -> Noise:
        """Return isotropic noise; none where base classes say enough that one mean variance will do as a ridge."""
        unit = max(self.constants_.ridge**0.5 - 1, 0.0) * float(self.within_deviation_)
        return Noise(self.noise * (unit * _interpolated(counts, _NOISE_SHOTS, _NOISE)))

    def within_covariance(self) -> Tensor:
        """Return Σ_w without its ridge."""
        ridge = self.constants_.ridge * float(self.within_deviation_) ** 2
        covariance: Tensor = self.axes_ @ self.axes_.T
        return covariance - ridge * torch.eye(len(covariance), dtype=covariance.dtype)

    def details(self) -> dict[str, Any]:
        """Return the constants and the expected gain."""
        return {"constants": asdict(self.constants_), "expected_gain": self.expected_gain_}

    def restore(self, tensors: Mapping[str, Tensor], details: Mapping[str, Any], **sizes: int) -> None:
        """Take what `tensors` and `details` returned."""
        super().restore(tensors, details, **sizes)
        for name in ("example_length_", "center_length_", "within_deviation_", "temperature_"):
            positive_number(float(tensors[name]), name, or_zero=True)
        lists = {name: tuple(details["constants"][name]) for name in ("shots", "lengths", "posterior_lengths")}
        for name, values in lists.items():
            for value in values:
                positive_number(value, name, or_zero=True)
        if len({len(values) for values in lists.values()}) > 1:
            raise InputError("the constants of the centre differ in number")
        ridge = positive_number(details["constants"]["ridge"], "ridge", or_zero=True)
        self.constants_ = Constants(ridge, *lists.values())
        gain = details["expected_gain"]
        if gain is not None:
            intervals = {name: [tuple(pair) for pair in gain[name]] for name in ("lsl", "glsl")}
            self.expected_gain_ = {"shots": tuple(gain["shots"]), **intervals}

    def check(self) -> None:
        """Refuse rounds or a noise out of range."""
        as_whole_number(self.rounds, "rounds", minimum=1)
        positive_number(self.noise, "noise", or_zero=True)

    def _fit_bank(self, bank: ClassBank) -> "Calibrated":
        """Fit to all base classes; of a large bank, to some examples of each class."""
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
        return self.fit_moments(moments, length / total, self.constants_)

    def _at_wanted_length(self, m: Tensor, counts: Tensor) -> Tensor:
        constants, unit = self.constants_, float(self.center_length_)
        if not constants.shots:
            return m
        average = _interpolated(counts, constants.shots, constants.posterior_lengths) * unit
        relative = (lengths_about(m, self.mean_) / average) ** (1 - common_length_share(counts))
        wanted = _interpolated(counts, constants.shots, constants.lengths) * unit * relative
        return at_length(m, self.mean_, wanted.unsqueeze(1))

    def _toward_neighbors(self, centers: Tensor, counts: Tensor) -> Tensor:
        alpha = torch.softmax(-squared_distances(centers, self.base_means_) / float(self.temperature_), dim=1)
        pull = ATTRACTION / counts.double().sqrt().unsqueeze(1)
        turned = centers + pull * (alpha @ self.base_means_ - self.mean_)
        return at_length(turned, self.mean_, lengths_about(centers, self.mean_).unsqueeze(1))


def at_length(points: Tensor, origin: Tensor, length: float | Tensor) -> Tensor:
    """Move points along their direction from the origin to a length; one at the origin stays there.

    >>> at_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2), 10.0)
    tensor([[6., 8.],
            [0., 0.]])
    """
    difference = points - origin
    own = difference.norm(dim=-1, keepdim=True)
    return origin + difference / torch.where(own > 0, own, 1.0) * length


def common_length_share(shots: Tensor) -> Tensor:
    """Return γ_K = ⅔ min(1, 5/K)."""
    share: Tensor = COMMON_LENGTH * (SHOTS_OF_COMMON_LENGTH / shots.double()).clamp_max(1.0)
    return share


def search_multiplications(dimension: int) -> float:
    """Count those of a Cholesky factor, of which the search computes hundreds."""
    return dimension**3 / 6


def choose_constants(sample: Sequence[Tensor], rounds: int, generator: torch.Generator) -> Constants:
    """Choose ridge and lengths by the accuracy of nearest prototypes on held-out classes, mean of LSL and GLSL."""
    found = cross_validate(sample, rounds, generator, _try_all)
    if not found:
        return Constants()
    tried = {k: torch.stack([accuracy for accuracy, _ in of_k]).mean(0) for k, of_k in found.items()}
    of_ridges = torch.stack([of_k.amax(1) for of_k in tried.values()]).mean(0)
    best = int((of_ridges >= of_ridges.max() - RIDGE_TOLERANCE).nonzero()[0])
    # A class that is better known is not nearer to the mean of all.
    growing = np.maximum.accumulate([_middle_of_best(of_k[best]) for of_k in tried.values()])
    posterior = (torch.stack([lengths for _, lengths in of_k]).mean(0)[best] for of_k in found.values())
    return Constants(RIDGES[best], tuple(tried), tuple(map(float, growing)), tuple(map(float, posterior)))


def held_out_gains(
    sample: Sequence[Tensor],
    constants: Constants,
    rounds: int,
    generator: torch.Generator,
    shift: Shift = AS_THEY_ARE,
) -> dict[int, list[Tensor]]:
    """Measure on fresh draws what centres gain over shot means: for each K, LSL and GLSL in points for each fold."""

    def prepare(fold: Fold) -> Callable[[Trial, int], Tensor]:
        model = Calibrated().fit_moments(fold.moments, fold.example_length, constants)
        return lambda trial, k: _gain(model, trial, k)

    return cross_validate(sample, rounds, generator, prepare, shift)


def expected_gain(gains: Mapping[int, Sequence[Tensor]]) -> dict[str, Any]:
    """Return for each K the mean over folds and the half-width of its 95 % interval."""
    intervals = {
        name: [corrected_interval([float(fold[i]) for fold in of_k]) for of_k in gains.values()]
        for i, name in enumerate(("lsl", "glsl"))
    }
    return {"shots": tuple(gains), **intervals}


def _gain(model: Calibrated, trial: Trial, k: int) -> Tensor:
    n, shots = len(trial.shots), trial.shots.flatten(0, 1) + model.mean_
    centers = model.estimate(shots, torch.arange(n).repeat_interleave(k), n) - model.mean_
    return trial.of_centers(centers) - trial.of_centers(trial.shots.mean(1))


def _try_all(fold: Fold) -> Callable[[Trial, int], tuple[Tensor, Tensor]]:
    """Return what gives the accuracy with every ridge and length (ridges, lengths), and λ_K with every ridge.

    The turn to similar base classes is left out: it changes no length.
    """
    between, within, origin = between_covariance(fold.moments), fold.moments.within, torch.zeros_like(fold.mean)

    def evaluate(trial: Trial, k: int) -> tuple[Tensor, Tensor]:
        moved = at_length(trial.shots, origin, fold.example_length).mean(1)
        share = common_length_share(torch.tensor(k))
        accuracy, relative = [], []
        for ridge in RIDGES:
            m = posterior_means(between, within, ridge, moved, k)
            own = lengths_about(m, origin)
            average = own.mean().clamp_min(torch.finfo(own.dtype).tiny)  # zero where classes differ by noise alone
            relative.append(average / fold.center_length)
            lengths = (LENGTHS.view(-1, 1, 1) * fold.center_length * (own / average) ** (1 - share)).float()
            # Single precision from here: scores are many, and are only compared.
            along = (trial.queries @ at_length(m, origin, 1.0).T).float()
            accuracy.append(trial.accuracies(lengths * (2 * along - lengths)).mean(-1))
        return torch.stack(accuracy), torch.stack(relative)

    return evaluate


def posterior_means(between: Tensor, within: Tensor, ridge: float, centroids: Tensor, k: int) -> Tensor:
    """Return Σ_b (Σ_b + Σ_w / K)⁻¹ l with a ridge on both; about μ.

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


def _interpolated(counts: Tensor, shots: tuple[int, ...], values: tuple[float, ...]) -> Tensor:
    """Interpolate linearly in log K, constant beyond the ends."""
    return torch.as_tensor(np.interp(np.log(counts.numpy()), np.log(shots), values))
