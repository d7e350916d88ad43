"""Lines of a run that no run writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cpaan.errors import InputError
from cpaan.evaluation.run_folder import RunFolder

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
    with pytest.raises(InputError, match="line 2 is no result"):
        RunFolder(tmp_path).write_csv()
