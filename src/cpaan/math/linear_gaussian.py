"""The two-covariance linear-Gaussian model of classes: class centres vary, and examples vary about their centre.

    c ~ N(μ, Σ_b),   x given c ~ N(c, Σ_w)

Everything is in closed form: both covariances are estimated on classes with many examples, and the centre of a class
with K examples has a Gaussian posterior. Draws take factors F of covariances, Fᵀ F = Σ.

Reference: S. Ioffe, "Probabilistic linear discriminant analysis", ECCV 2006.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.math.prototypes import class_counts

# Below this share of the mean variance a within-class variance is taken for zero that was rounded.
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class ClassMoments:
    """First and second moments of classes, in double precision."""

    means: Tensor  # (C, D)
    counts: Tensor  # (C,)
    within: Tensor  # (D, D), the pooled covariance Σ_i (x_i − l_{y_i})(x_i − l_{y_i})ᵀ / (n − C)


@dataclass(frozen=True)
class LinearGaussian:
    """The model in the coordinates in which both covariances are diagonal.

    Σ_w = A Aᵀ,   Σ_b = A diag(λ) Aᵀ
    """

    mean: Tensor  # (D,), μ
    axes: Tensor  # (D, D), A
    inverse_axes: Tensor  # (D, D), A⁻¹
    ratios: Tensor  # (D,), λ: variance between classes along an axis, in variances within a class


def class_parts(features: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
    """Split examples by class."""
    sorted_by_class = features[labels.argsort(stable=True)]
    parts: tuple[Tensor, ...] = sorted_by_class.split(class_counts(labels, n_classes).tolist())
    return parts


def class_moments(features: Tensor, labels: Tensor, n_classes: int) -> ClassMoments:
    """Compute the moments of classes, one class at a time to keep few examples in double precision.

    `within` is zero where no class has two examples.

    >>> moments = class_moments(torch.tensor([[0.0], [2.0], [7.0]]), torch.tensor([0, 0, 1]), 2)
    >>> moments.means.flatten(), moments.within
    (tensor([1., 7.], dtype=torch.float64), tensor([[2.]], dtype=torch.float64))
    """
    dimension = features.shape[1]
    means = features.new_zeros((n_classes, dimension), dtype=torch.double)
    scatter = features.new_zeros((dimension, dimension), dtype=torch.double)
    for label, part in enumerate(class_parts(features, labels, n_classes)):
        examples = part.double()
        means[label] = examples.mean(0)
        deviations = examples - means[label]
        scatter += deviations.T @ deviations
    return ClassMoments(means, class_counts(labels, n_classes), scatter / max(len(features) - n_classes, 1))


def between_covariance(moments: ClassMoments) -> Tensor:
    """Estimate the covariance of class centres from class means, which also carry the noise of their examples.

    Σ_b = [cov(l_1, …, l_C) − Σ_w · mean of 1/n_c]₊, for two classes or more; []₊ sets negative eigenvalues to zero.
    """
    deviations = moments.means - moments.means.mean(0)
    of_means = deviations.T @ deviations / (len(deviations) - 1)
    noise = moments.within * moments.counts.double().reciprocal().mean()
    values, vectors = torch.linalg.eigh(of_means - noise)
    positive: Tensor = (vectors * values.clamp_min(0)) @ vectors.T
    return positive


def fit_linear_gaussian(moments: ClassMoments, ridge: float = 1.0) -> LinearGaussian:
    """Estimate the model on classes with many examples.

    Each covariance gets a ridge, in multiples of the mean variance of a coordinate, for directions that few classes or
    few examples leave unknown:

    Σ + ridge · tr(Σ) / D · I

    A single class says nothing about how classes differ: λ is infinite, and the posterior follows the shots.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> fit_linear_gaussian(class_moments(x, torch.tensor([0, 0, 1, 1]), 2), ridge=0.0).ratios
    tensor([24.5000], dtype=torch.float64)
    """
    mean, within = moments.means.mean(0), _with_ridge(moments.within, ridge)
    if len(moments.means) == 1:
        return replace(diagonalize(mean, torch.zeros_like(within), within), ratios=torch.full_like(mean, torch.inf))
    return diagonalize(mean, _with_ridge(between_covariance(moments), ridge), within)


def diagonalize(mean: Tensor, between: Tensor, within: Tensor) -> LinearGaussian:
    """Find the coordinates in which both covariances, Σ_b and Σ_w, are diagonal.

    With Σ_w = L Lᵀ and L⁻¹ Σ_b L⁻ᵀ = U diag(λ) Uᵀ, A = L U.
    """
    variances, vectors = torch.linalg.eigh(within)
    largest = max(float(within.diagonal().mean()), float(between.diagonal().mean()))
    deviations = variances.clamp_min(_LEAST_VARIANCE * largest or 1.0).sqrt()
    L, inverse = vectors * deviations, (vectors / deviations).T
    ratios, U = torch.linalg.eigh(inverse @ between @ inverse.T)
    return LinearGaussian(mean, L @ U, U.T @ inverse, ratios.clamp_min(0))


def class_posterior(model: LinearGaussian, centroids: Tensor, shots: Tensor) -> tuple[Tensor, Tensor]:
    """Infer class centres from a few examples of each class.

    The posterior of a centre, given the mean l of K examples, is N(m, V) with

    m = μ + Σ_b (Σ_b + Σ_w / K)⁻¹ (l − μ),   V = Σ_b − Σ_b (Σ_b + Σ_w / K)⁻¹ Σ_b

    and in the model's coordinates, where u = A⁻¹ (l − μ),

    m = μ + A diag(λ / (λ + 1/K)) u,   V = A diag(λ / (λ K + 1)) Aᵀ

    Takes l, (N, D), and K, (N,), of each class; gives m, (N, D), and the diagonal of V in the model's coordinates.

    >>> model = diagonalize(torch.zeros(1), torch.eye(1), torch.eye(1))
    >>> class_posterior(model, torch.tensor([[4.0], [4.0]]), torch.tensor([1, 3]))
    (tensor([[2.],
            [3.]]), tensor([[0.5000],
            [0.2500]]))
    """
    K = shots.to(centroids.dtype).unsqueeze(1)
    precision = 1 / model.ratios  # written with 1/λ, because λ may be infinite
    u = (centroids - model.mean) @ model.inverse_axes.T
    means = model.mean + (u / (1 + precision / K)) @ model.axes.T
    return means, 1 / (precision + K)


def covariance_factor(covariance: Tensor) -> Tensor:
    """Factorise any positive semi-definite Σ, singular ones too, as Fᵀ F."""
    values, vectors = torch.linalg.eigh(covariance)
    factor: Tensor = (vectors * values.clamp_min(0).sqrt()).T
    return factor


def _with_ridge(covariance: Tensor, ridge: float) -> Tensor:
    mean_variance = covariance.diagonal().mean()
    return covariance + torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device) * (
        ridge * mean_variance
    )


def draw_gaussian(factor: Tensor, number: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from N(0, Fᵀ F): x = Fᵀ ε, ε ~ N(0, I).

    Multiplies in single precision, in units in which nothing over- or underflows, whatever those of the factor are.
    """
    unit, size = to_unit(factor, torch.float32)
    drawn = torch.randn((number, len(factor)), generator=generator) @ unit
    return drawn.to(dtype).mul_(size)


def draw_mixed(factors: Tensor, ranks: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from N(0, mean of Σ_c over the classes c of a row), for each row of `classes`, in single precision.

    Independent draws of the single Gaussians add up to one of their mean: no D × D matrix is made or factored.

    Parameters
    ----------
    factors : Tensor of shape (ranks.sum(), D), those of all classes below one another
    ranks : integer Tensor of shape (C,), rows of each class
    classes : integer Tensor of shape (n, k), distinct within a row
    """
    drawn = torch.zeros((len(classes), factors.shape[1]))
    starts = ranks.cumsum(0) - ranks
    for label in classes.unique().tolist():
        rows = (classes == label).any(1).nonzero().squeeze(1)
        factor = factors[int(starts[label]) : int(starts[label] + ranks[label])].float()
        drawn.index_add_(0, rows, torch.randn((len(rows), len(factor)), generator=generator) @ factor)
    return drawn.div_(classes.shape[1] ** 0.5)


def to_unit(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Divide by the largest absolute value, so a narrower floating type can hold the rest; gives that value as well."""
    size = float(values.abs().max()) or 1.0
    return (values / size).to(dtype), size


def add_centers(deviations: Tensor, centers: Tensor, number: Tensor) -> Tensor:
    """Add center i to `number[i]` rows, in place, the first center's rows first."""
    for rows, center in zip(deviations.split(number.tolist()), centers, strict=True):
        rows.add_(center.to(deviations.dtype))
    return deviations
