"""Rows of a run: damaged lines, averages over trials and differences."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import sem
from scipy.stats import t as student

from cpaan.errors import InputError
from cpaan.evaluation.run_folder import RunFolder, mean_interval, paired_differences, summarize_rows

ROW: dict[str, Any] = {"method": "oak", "setting": "LSL", "shots": 1, "trial": 0, "top1": 50.0, "top5": None}


def test_a_line_that_is_torn_is_as_if_never_written(tmp_path: Path) -> None:
    line = json.dumps(ROW)
    (tmp_path / "results.jsonl").write_text(f"{line}\n{line[:30]}")
    assert RunFolder(tmp_path).rows() == [ROW]


@pytest.mark.parametrize(
    "wrong",
    [
        {"shots": "one"},
        {"trial": True},
        {"top1": "high"},
        {"classifier": ["linear"]},
        {"classifier": "\ud800"},
        {"\udfff": 1},
    ],
)
def test_a_line_that_is_no_result_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, (ROW, {**ROW, **wrong}))))
    with pytest.raises(InputError, match="line 2 is not a result; remove the line"):
        RunFolder(tmp_path).write_csv()


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


def test_paired_differences_remove_what_trials_have_in_common() -> None:
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 5, size=6)
    same = {"representation": "r", "setting": "LSL", "shots": 1}
    rows = [
        {**same, "method": m, "trial": t, "top5": 50 + luck[t] + gain + rng.normal(0, 0.1)}
        for m, gain in (("ours", 2.0), ("theirs", 0.0))
        for t in range(6)
    ]
    difference = paired_differences(rows, "theirs")[("ours", "r"), "LSL", 1]
    assert difference.mean == pytest.approx(2.0, abs=0.2)
    assert difference.half_width < 0.1 * summarize_rows(rows)[("ours", "r"), "LSL", 1].half_width
    with pytest.raises(InputError, match="'nobody' is not in the run, which has ours, theirs"):
        paired_differences(rows, "nobody")
