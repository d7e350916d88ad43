import math

import numpy as np
import pytest
from scipy.stats import sem
from scipy.stats import t as student

from cpaan.errors import InputError
from cpaan.evaluation.run_folder import mean_interval


def test_interval_is_students() -> None:
    values = [61.0, 58.5, 63.2, 60.1, 59.9]
    low, high = student.interval(0.95, 4, loc=np.mean(values), scale=sem(values))
    found = mean_interval(values)
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        found = mean_interval(rng.normal(3.0, 2.0, size=5).tolist())
        hits += abs(found.mean - 3.0) <= found.half_width
    assert 930 <= hits <= 970


def test_one_trial_has_no_interval_and_none_is_refused() -> None:
    assert math.isnan(mean_interval([1.0]).half_width)
    with pytest.raises(InputError, match="no trial"):
        mean_interval([])
