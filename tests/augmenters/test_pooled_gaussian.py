"""The Gaussian with pooled covariance against the covariance computed directly."""

import numpy as np

from cpaan import PooledGaussian


def test_examples_have_the_mean_of_the_shots_and_the_pooled_covariance() -> None:
    rng = np.random.default_rng(0)
    sizes = [3, 40, 11]
    mixing = rng.normal(size=(3, 3))
    parts = [rng.normal(size=(n, 3)) @ mixing + 9 * rng.normal(size=3) for n in sizes]
    y = np.repeat([0, 1, 2], sizes)
    augmenter = PooledGaussian(random_state=0).fit(np.concatenate(parts), y)
    shots = rng.normal(size=(5, 3))
    made, names = augmenter.augment(shots, [8, 8, 9, 9, 9], per_class=200_000)
    pooled = sum((n - 1) * np.cov(part.T) for n, part in zip(sizes, parts, strict=True)) / (sum(sizes) - 3)
    for name, of_class in ((8, shots[:2]), (9, shots[2:])):
        found = made[names == name]
        np.testing.assert_allclose(found.mean(0), of_class.mean(0), atol=0.02)
        np.testing.assert_allclose(np.cov(found.T), pooled, atol=0.02 * np.abs(pooled).max())


def test_base_classes_of_one_example_tell_nothing_of_the_spread() -> None:
    augmenter = PooledGaussian(random_state=0).fit([[1.0, 2.0], [3.0, 5.0]], ["a", "b"])
    made, _ = augmenter.augment([[1.0, 1.0], [3.0, 3.0]], ["c", "c"], per_class=4)
    np.testing.assert_array_equal(made, np.full((4, 2), 2.0))
