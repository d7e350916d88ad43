from pathlib import Path

import numpy as np
import pytest

from cpaan.reporting.results import neighborhood_gains, read_runs


def test_gains_are_paired_differences_to_the_uniform_run(ablation: list[Path], run: Path) -> None:
    runs = read_runs(ablation)
    gains = neighborhood_gains(runs, "top1")
    assert {gain["strategy"] for gain in gains} == {"NBS-S, soft", "NBS-H, hard, k = 2"}
    assert {gain["method"] for gain in gains} == {"ccov-gan"}  # nearest-prototype has no neighbourhood
    found = next(g for g in gains if (g["strategy"], g["setting"], g["shots"]) == ("NBS-H, hard, k = 2", "GLSL", 1))

    def top1(index: int) -> list[float]:
        rows = [row for row in runs[index].rows if row["method"] == "ccov-gan"]
        return [row["top1"] for row in rows if (row["setting"], row["shots"]) == ("GLSL", 1)]

    assert found["mean"] == pytest.approx(np.mean(np.subtract(top1(2), top1(0))))
    assert neighborhood_gains(runs[1:], "top1") == []  # without a uniform run there is nothing to compare to
    assert neighborhood_gains(read_runs([ablation[0], run]), "top1") == []  # other settings differ as well
