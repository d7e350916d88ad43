"""Coverage and energy distance against SciPy."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance as scipy_energy_distance

from cpaan.errors import InputError
from cpaan.evaluation import realism as row_blocks
from cpaan.evaluation.realism import coverage, energy_distance


@pytest.mark.parametrize("most_entries", [1, 100, 2**22])
def test_both_against_all_pairs_at_once(most_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "MOST_ENTRIES", most_entries)
    generator = np.random.default_rng(0)
    A, B = generator.normal(size=(31, 2)), 0.5 + generator.normal(size=(17, 2))
    for radius in (0.1, 0.4, 2.0):
        assert coverage(A, B, radius) == pytest.approx((cdist(A, B).min(axis=1) <= radius).mean())
    expected = 2 * cdist(A, B).mean() - cdist(A, A).mean() - cdist(B, B).mean()
    assert energy_distance(A, B) == pytest.approx(expected)


def test_in_one_dimension_it_is_the_square_of_scipys() -> None:
    generator = np.random.default_rng(1)
    A, B = generator.normal(size=40), generator.exponential(size=25)
    squared = scipy_energy_distance(A, B) ** 2
    assert energy_distance(A[:, np.newaxis], B[:, np.newaxis]) == pytest.approx(squared)


def test_energy_distance_is_a_distance_of_distributions() -> None:
    generator = np.random.default_rng(2)
    A, B = generator.normal(size=(50, 3)), generator.normal(size=(40, 3))
    assert energy_distance(A, A[::-1]) == pytest.approx(0.0, abs=1e-12)
    assert energy_distance(A, np.repeat(A, 3, axis=0)) == pytest.approx(0.0, abs=1e-12)
    assert energy_distance(A, B) == pytest.approx(energy_distance(B, A))
    assert energy_distance(A + 1e4, B + 1e4) == pytest.approx(energy_distance(A, B), abs=1e-8)
    assert 0 < energy_distance(A, B) < energy_distance(A, B + 1.0) < energy_distance(A, B + 2.0)


def test_coverage_grows_and_misses_what_is_not_generated() -> None:
    real = np.concatenate([np.zeros((5, 2)), np.full((15, 2), 10.0)])
    assert coverage(real, [[0.0, 0.0]], 0.0) == 0.25
    assert coverage(real, real + np.array([3.0, 4.0]), 5.0) == 1.0
    assert coverage(real, real + np.array([3.0, 4.0]), 4.999) == 0.0
    # Many synthetic examples in one place cover no more than one.
    assert coverage(real, np.zeros((100, 2)), 1.0) == 0.25


def test_wrong_inputs_are_named() -> None:
    for radius in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="radius"):
            coverage([[0.0]], [[0.0]], radius)
    with pytest.raises(InputError, match="real has 1 features but synthetic has 2"):
        coverage([[0.0]], [[0.0, 1.0]], 1.0)
    with pytest.raises(InputError, match="first has 1 features but second has 2"):
        energy_distance([[0.0]], [[0.0, 1.0]])
    with pytest.raises(InputError, match="second is NaN"):
        energy_distance([[0.0]], [[np.nan]])
