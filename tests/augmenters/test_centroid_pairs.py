"""Lengths of pairs against double precision, and which pairs are too short to have a direction."""

import numpy as np
import torch

from cpaan.augmenters.analogies import SHORTEST, CentroidPairs


def test_classes_of_equal_centroids_have_no_pairs_and_no_nan() -> None:
    pairs = CentroidPairs.between(torch.full((2, 3, 4), 7.0))
    assert (pairs.points == 0).all()
    assert (pairs.closeness == 0).all()


def test_points_are_in_units_in_which_products_neither_over_nor_underflow() -> None:
    centroids = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = CentroidPairs.between(centroids)
    for scale in (1e-150, 1e150):
        found = CentroidPairs.between(centroids * scale)
        torch.testing.assert_close(found.points, expected.points)
        torch.testing.assert_close(found.closeness, expected.closeness)


def test_lengths_of_near_pairs_among_many_keep_their_digits() -> None:
    centroids = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(0)).double()
    centroids[0, 1] = centroids[0, 0] + 1e-3
    pairs = CentroidPairs.between(centroids)
    points = pairs.points[0].double().numpy()
    lengths = np.linalg.norm(points[:, np.newaxis] - points, axis=2) + np.diag(np.full(40, np.inf))
    np.testing.assert_allclose(pairs.closeness[0], 1 / lengths, rtol=1e-5)


def test_what_is_short_is_so_beside_the_longest_pair() -> None:
    longest = torch.ones(64).double()
    for share, kept in ((0.5, False), (2.0, True)):
        centroids = torch.stack([0 * longest, longest, (1 + share * SHORTEST) * longest])
        closeness = CentroidPairs.between(centroids.unsqueeze(0)).closeness[0]
        assert bool(closeness[1, 2] > 0) == kept
        assert closeness[0, 1] > 0
