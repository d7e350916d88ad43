"""The two-covariance model against the joint Gaussian of a centre and its examples, written out."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from cpaan.math.linear_gaussian import (
    ClassMoments,
    LinearGaussian,
    between_covariance,
    class_moments,
    class_parts,
    class_posterior,
    covariance_factor,
    diagonalize,
    fit_linear_gaussian,
)

FloatArray = npt.NDArray[np.float64]
RNG = np.random.default_rng(0)
D = 4


def random_covariance(rank: int = D) -> FloatArray:
    root = RNG.normal(size=(rank, D))
    found: FloatArray = root.T @ root
    return found


MU, BETWEEN, WITHIN = RNG.normal(size=D), random_covariance(), random_covariance()


def model(mean: FloatArray = MU, between: FloatArray = BETWEEN, within: FloatArray = WITHIN) -> LinearGaussian:
    return diagonalize(*map(torch.tensor, (mean, between, within)))


def conditioned(shots: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Condition the joint Gaussian of (centre, x_1, …, x_K) on the examples, without any shortcut."""
    K = len(shots)
    joint = np.kron(np.ones((K + 1, K + 1)), BETWEEN)
    for i in range(1, K + 1):
        joint[i * D : (i + 1) * D, i * D : (i + 1) * D] += WITHIN
    cross: FloatArray = np.asarray(joint[:D, D:] @ np.linalg.inv(joint[D:, D:]), np.float64)
    mean = MU + cross @ (shots - MU).ravel()
    return mean, np.asarray(joint[:D, :D] - cross @ joint[D:, :D], np.float64)


def test_the_posterior_is_the_joint_gaussian_conditioned_on_the_examples() -> None:
    found = model()
    classes = [RNG.normal(size=(K, D)) * 3 for K in (1, 2, 5)]
    centroids = torch.tensor(np.stack([shots.mean(0) for shots in classes]))
    means, variances = class_posterior(found, centroids, torch.tensor([1, 2, 5]))
    for shots, mean, variance in zip(classes, means, variances, strict=True):
        expected_mean, expected_covariance = conditioned(shots)
        np.testing.assert_allclose(mean, expected_mean)
        np.testing.assert_allclose(found.axes @ variance.diag() @ found.axes.T, expected_covariance, atol=1e-10)


def test_the_posterior_mean_is_the_formula_of_the_docstring() -> None:
    centroids, shots = RNG.normal(size=(3, D)), np.array([1, 3, 20])
    means, _ = class_posterior(model(), torch.tensor(centroids), torch.tensor(shots))
    for centroid, K, mean in zip(centroids, shots, means, strict=True):
        expected = MU + BETWEEN @ np.linalg.inv(BETWEEN + WITHIN / K) @ (centroid - MU)
        np.testing.assert_allclose(mean, expected)


def test_both_covariances_are_diagonal_in_the_axes() -> None:
    found = model()
    A = found.axes
    np.testing.assert_allclose(A @ A.T, WITHIN, atol=1e-12)
    np.testing.assert_allclose(A @ found.ratios.diag() @ A.T, BETWEEN, atol=1e-12)
    np.testing.assert_allclose(found.inverse_axes @ A, np.eye(D), atol=1e-9)


def one_posterior(found: LinearGaussian, shots: float) -> tuple[Tensor, Tensor]:
    means, variances = class_posterior(found, torch.full((1, D), 7.0, dtype=torch.double), torch.tensor([shots]))
    return means[0], variances[0]


def test_the_limits_of_the_posterior() -> None:
    zero = np.zeros((D, D))
    many, variance = one_posterior(model(), 1e9)
    np.testing.assert_allclose(many, np.full(D, 7.0), rtol=1e-6)
    assert variance.max() < 1e-8
    np.testing.assert_allclose(one_posterior(model(between=zero), 1)[0], MU, atol=1e-12)
    np.testing.assert_allclose(one_posterior(model(within=zero), 1)[0], np.full(D, 7.0), rtol=1e-6)
    np.testing.assert_allclose(one_posterior(model(between=zero, within=zero), 1)[0], MU, atol=1e-12)


def test_directions_that_one_covariance_lacks_follow_the_other() -> None:
    """Between classes the first coordinate varies alone, within classes the second: no shrinkage, full shrinkage."""
    between, within = np.diag([1.0, 0, 0, 0]), np.diag([0, 1.0, 0, 0])
    mean, _ = one_posterior(model(np.zeros(D), between, within), 1)
    np.testing.assert_allclose(mean[:2], [7.0, 0.0], atol=1e-6)


def labelled(n_classes: int, per_class: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    labels = np.repeat(np.arange(n_classes), per_class)
    centres = RNG.multivariate_normal(MU, BETWEEN, size=n_classes)
    examples = centres[labels] + RNG.multivariate_normal(np.zeros(D), WITHIN, size=len(labels))
    return torch.tensor(examples), torch.tensor(labels)


def test_moments_are_those_of_each_class() -> None:
    counts = np.array([1, 4, 9])
    x, y = labelled(3, counts)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    moments = class_moments(x[order], y[order], 3)
    parts = [x[y == c].numpy() for c in range(3)]
    np.testing.assert_allclose(moments.means, [part.mean(0) for part in parts])
    assert moments.counts.tolist() == counts.tolist()
    scatter = sum(np.cov(part.T, bias=True) * len(part) for part in parts[1:])
    np.testing.assert_allclose(moments.within, scatter / (14 - 3))


def test_parts_keep_the_order_of_the_examples() -> None:
    labels = torch.tensor(RNG.permutation(np.repeat(np.arange(3), 40)))
    for label, part in enumerate(class_parts(torch.arange(120.0).unsqueeze(1), labels, 3)):
        assert part.flatten().tolist() == (labels == label).nonzero().flatten().tolist()


def test_covariances_are_found_again_though_class_means_are_noisy() -> None:
    x, y = labelled(20_000, np.full(20_000, 2))
    moments = class_moments(x, y, 20_000)
    np.testing.assert_allclose(moments.within, WITHIN, atol=0.05 * np.abs(WITHIN).max())
    np.testing.assert_allclose(between_covariance(moments), BETWEEN, atol=0.05 * np.abs(BETWEEN).max())
    naive = np.cov(moments.means.T.numpy())
    assert np.abs(naive - BETWEEN).max() > 0.3 * np.abs(WITHIN).max()


def test_between_covariance_is_never_negative() -> None:
    x, y = labelled(5, np.full(5, 2))
    moments = class_moments(x, y, 5)
    noisy = ClassMoments(moments.means, moments.counts, 100 * moments.within)
    assert torch.linalg.eigvalsh(between_covariance(noisy)).min() > -1e-9


@pytest.mark.parametrize("ridge", [0.0, 1.0, 2.5])
def test_the_ridge_is_in_mean_variances_of_each_covariance(ridge: float) -> None:
    moments = class_moments(*labelled(30, np.full(30, 8)), 30)
    found = fit_linear_gaussian(moments, ridge)
    between = between_covariance(moments)
    eye = torch.eye(D, dtype=torch.double)
    A = found.axes
    torch.testing.assert_close(A @ A.T, moments.within + ridge * moments.within.trace() / D * eye)
    torch.testing.assert_close(A @ found.ratios.diag() @ A.T, between + ridge * between.trace() / D * eye)
    torch.testing.assert_close(found.mean, moments.means.mean(0))


def test_the_ridge_is_one_unless_told_otherwise() -> None:
    moments = class_moments(*labelled(30, np.full(30, 8)), 30)
    torch.testing.assert_close(fit_linear_gaussian(moments).ratios, fit_linear_gaussian(moments, 1.0).ratios)


def test_after_a_single_class_the_posterior_follows_the_shots() -> None:
    x, y = labelled(1, np.array([50]))
    found = fit_linear_gaussian(class_moments(x, y, 1))
    mean, variances = one_posterior(found, 4)
    np.testing.assert_allclose(mean, np.full(D, 7.0))
    np.testing.assert_allclose(variances, np.full(D, 0.25))


@pytest.mark.parametrize("rank", [1, 2, D])
def test_factors_give_back_their_covariance(rank: int) -> None:
    covariance = torch.tensor(random_covariance(rank))
    factor = covariance_factor(covariance)
    torch.testing.assert_close(factor.T @ factor, covariance)
