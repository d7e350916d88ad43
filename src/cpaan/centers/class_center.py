"""Where the centre of a class lies of which a few examples are known: a better estimate than their mean.

With μ the mean of the base class means l_b, R the mean of ‖x − μ‖ over base examples and r̄ the mean of ‖l_b − μ‖,
the centre P of a class with K shots x is found in four steps:

1. every shot is moved to the length of a base example, x̃ = μ + R (x − μ) / ‖x − μ‖, because the length of one
   example says little of its class; l̃ is the mean of the K moved shots;
2. m is the posterior mean of the centre given l̃ and K, in the linear-Gaussian model of base classes;
3. P keeps the direction of m − μ, with the length ρ_K r̄ (‖m − μ‖ / (λ_K r̄))^(1 − γ_K), γ_K = ⅔ min(1, 5/K):
   classes with few shots get nearly a common length, and those with many keep their own;
4. P is turned a little to the base classes that are like it, (P − μ) + (0.2 / √K) (Σ_b α_b l_b − μ) with
   α = softmax(−‖P − l_b‖² / T), at an unchanged length.

ρ_K, λ_K and the ridge of the model are constants that are chosen on base classes held out as if novel.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpaan.math.linear_gaussian import ClassMoments, LinearGaussian, class_posterior, fit_linear_gaussian
from cpaan.math.prototypes import class_counts, prototypes, squared_distances

# Effective number of base classes that a centre is turned to, and how far at one shot.
PERPLEXITY, ATTRACTION = 5.0, 0.2
# How much of the length of a class is common to all classes, and up to how many shots.
COMMON_LENGTH, SHOTS_OF_COMMON_LENGTH = 2 / 3, 5
# Spread beyond that of a class which stands for what is unknown of the centre, and falls with the shots.
_NOISE_SHOTS, _NOISE = (1, 2, 5, 10, 20), (1.78, 1.78, 1.78, 0.178, 0.0)


@dataclass(frozen=True)
class CenterConstants:
    """What is chosen on held-out base classes.

    Attributes
    ----------
    ridge : of the linear-Gaussian model
    shots : numbers of shots K that the following were chosen for; without any, P keeps the length of m
    lengths : ρ_K, mean length of a centre in mean lengths of base class means
    posterior_lengths : λ_K, mean length of m − μ in the same unit
    """

    ridge: float = 1.0
    shots: tuple[int, ...] = ()
    lengths: tuple[float, ...] = ()
    posterior_lengths: tuple[float, ...] = ()


@dataclass(frozen=True)
class CenterModel:
    """All that tells where the centre of a class lies.

    Attributes
    ----------
    gaussian : LinearGaussian, of base classes, in double precision; its mean is μ
    base_means : Tensor of shape (C, D), l_b
    example_length, center_length : R and r̄; zero where base examples, or base classes, are all the same
    within_deviation : √(tr Σ_w / D), the standard deviation of a feature within a class
    temperature : T
    constants : CenterConstants

    Examples
    --------
    >>> from cpaan.math.linear_gaussian import class_moments
    >>> x = torch.tensor([[0.0, 1.0], [0.0, -1.0], [8.0, 1.0], [8.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    >>> moments = class_moments(x, torch.tensor([0, 0, 1, 1, 2, 2]), 3)
    >>> model = fit_center_model(moments, 3.0, CenterConstants(ridge=0.01), temperature=1.0)
    >>> class_centers(model, torch.tensor([[7.0, 3.0]]), torch.tensor([0]), 1).round(decimals=1)
    tensor([[6.1000, 0.1000]], dtype=torch.float64)
    """

    gaussian: LinearGaussian
    base_means: Tensor
    example_length: float
    center_length: float
    within_deviation: float
    temperature: float
    constants: CenterConstants


def fit_center_model(
    moments: ClassMoments, example_length: float, constants: CenterConstants, temperature: float
) -> CenterModel:
    """Put a model together from the moments of base classes and R."""
    gaussian = fit_linear_gaussian(moments, constants.ridge)
    differ = bool(gaussian.ratios.max() > 0)  # by more than the noise of their means
    return CenterModel(
        gaussian=gaussian,
        base_means=moments.means,
        example_length=example_length,
        center_length=float(lengths_about(moments.means, gaussian.mean).mean()) if differ else 0.0,
        within_deviation=float(moments.within.diagonal().mean()) ** 0.5,
        temperature=temperature,
        constants=constants,
    )


def class_centers(model: CenterModel, shots: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Estimate the centres of classes from a few examples of each.

    Where all base classes have one mean, they tell nothing, and centres are means of shots.

    Parameters
    ----------
    model : CenterModel
    shots : Tensor of shape (n, D)
    labels : integer Tensor of shape (n,), each from 0 to n_classes − 1
    n_classes : int
        Every class must have at least one shot.

    Returns
    -------
    Tensor of shape (n_classes, D), P of each class, in double precision
    """
    shots = shots.double()
    if not model.center_length or not model.example_length:
        return prototypes(shots, labels, n_classes)
    counts = class_counts(labels, n_classes)
    moved = at_length(shots, model.gaussian.mean, model.example_length)
    m, _ = class_posterior(model.gaussian, prototypes(moved, labels, n_classes), counts)
    return _toward_neighbors(model, _at_wanted_length(model, m, counts), counts)


def at_length(points: Tensor, origin: Tensor, length: float | Tensor) -> Tensor:
    """Move points along their direction from the origin to a length; one that lies at the origin stays there.

    >>> at_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2), 10.0)
    tensor([[6., 8.],
            [0., 0.]])
    """
    difference = points - origin
    own = difference.norm(dim=-1, keepdim=True)
    return origin + difference / torch.where(own > 0, own, 1.0) * length


def lengths_about(points: Tensor, origin: Tensor) -> Tensor:
    """Give ‖x − o‖ of every row.

    >>> lengths_about(torch.tensor([[3.0, 5.0]]), torch.tensor([0.0, 1.0]))
    tensor([5.])
    """
    found: Tensor = (points - origin).norm(dim=-1)
    return found


def common_length_share(shots: Tensor) -> Tensor:
    """Give γ_K.

    >>> common_length_share(torch.tensor([1, 5, 10]))
    tensor([0.6667, 0.6667, 0.3333], dtype=torch.float64)
    """
    share: Tensor = COMMON_LENGTH * (SHOTS_OF_COMMON_LENGTH / shots.double()).clamp_max(1.0)
    return share


def center_noise(model: CenterModel, shots: Tensor) -> Tensor:
    """Give the standard deviation, for each class, of the isotropic noise that its examples get beside their own.

    It grows with the ridge, which tells how little of a class is known from base classes; where these tell enough that
    one mean variance will do as a ridge, there is none. For a linear classifier it does what a stronger weight decay
    would do for these classes alone. To classifiers that look at single examples it does harm.
    """
    unit = max(model.constants.ridge**0.5 - 1, 0.0) * model.within_deviation
    noise: Tensor = unit * _interpolated(shots, _NOISE_SHOTS, _NOISE)
    return noise


def within_covariance(model: CenterModel) -> Tensor:
    """Give Σ_w of the base classes, without the ridge that the linear-Gaussian model has on it."""
    ridge = model.constants.ridge * model.within_deviation**2
    covariance: Tensor = model.gaussian.axes @ model.gaussian.axes.T
    return covariance - ridge * torch.eye(len(covariance), dtype=covariance.dtype)


def _at_wanted_length(model: CenterModel, m: Tensor, counts: Tensor) -> Tensor:
    constants, mean = model.constants, model.gaussian.mean
    if not constants.shots:
        return m
    own = lengths_about(m, mean)
    average = _interpolated(counts, constants.shots, constants.posterior_lengths) * model.center_length
    relative = (own / average) ** (1 - common_length_share(counts))
    wanted = _interpolated(counts, constants.shots, constants.lengths) * model.center_length * relative
    return at_length(m, mean, wanted.unsqueeze(1))


def _toward_neighbors(model: CenterModel, centers: Tensor, counts: Tensor) -> Tensor:
    mean = model.gaussian.mean
    alpha = torch.softmax(-squared_distances(centers, model.base_means) / model.temperature, dim=1)
    pull = ATTRACTION / counts.double().sqrt().unsqueeze(1)
    turned = centers + pull * (alpha @ model.base_means - mean)
    return at_length(turned, mean, lengths_about(centers, mean).unsqueeze(1))


def _interpolated(counts: Tensor, shots: tuple[int, ...], values: tuple[float, ...]) -> Tensor:
    """Interpolate linearly in log K, constant beyond the ends."""
    return torch.as_tensor(np.interp(np.log(counts.numpy()), np.log(shots), values))
