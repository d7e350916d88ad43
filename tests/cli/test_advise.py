import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.centers.advice import Advice, Prediction
from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features


def advise(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["advise", *map(str, arguments)])


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(48)]
    centers = rng.normal(size=(48, 1, 30)) * (np.arange(30) < 20)
    everything = FeatureSet((centers + rng.normal(size=(48, 40, 30))).reshape(-1, 30), np.repeat(names, 40))
    write_features(tmp_path / "bank.npz", everything, np.arange(1920) % 40 >= 30)
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:32], "novel": names[32:]}))
    (tmp_path / "few.json").write_text(json.dumps({"base": names[:4], "novel": names[32:]}))
    return tmp_path / "bank.npz"


def test_it_says_plainly_where_augmentation_helps(bank: Path) -> None:
    result = advise(bank, "--setup", bank.parent / "setup.json", "--rounds", 2)
    assert result.exit_code == 0, result.output
    assert "novel classes (LSL)" in result.stdout
    assert "Novel classes lie" in result.stdout
    assert "On all classes, augmentation: helps at K = 1" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[4:9]] == ["1", "2", "5", "10", "20"]


def test_programs_get_the_same_numbers(bank: Path) -> None:
    arguments = (bank, "--setup", bank.parent / "setup.json", "--rounds", 2)
    found = json.loads(advise(*arguments, "--json").stdout)
    assert found["shots"] == [1, 2, 5, 10, 20]
    assert 0 < found["separation"] <= 1
    for name in ("lsl", "glsl", "uncorrected_lsl", "uncorrected_glsl"):
        assert all(row["low"] <= row["gain"] <= row["high"] for row in found[name])
    assert found == json.loads(advise(*arguments, "--json").stdout)
    assert f"{found['lsl'][0]['gain']:+.1f}" in advise(*arguments).stdout


def test_test_examples_are_not_looked_at(bank: Path) -> None:
    arguments = ("--setup", bank.parent / "setup.json", "--rounds", 1, "--json")
    before = advise(bank, *arguments).stdout
    archive = dict(np.load(bank, allow_pickle=False))
    archive["features"][archive["is_test"]] = 0
    np.savez(bank, **archive)
    assert advise(bank, *arguments).stdout == before


def test_what_cannot_be_predicted_is_refused(bank: Path) -> None:
    few = advise(bank, "--setup", bank.parent / "few.json")
    assert few.exit_code == 2
    assert "needs 6 base classes" in " ".join(few.stderr.split())
    none = advise(bank, "--setup", bank.parent / "setup.json", "--rounds", 0)
    assert none.exit_code == 2


def test_an_unbounded_interval_is_null_for_programs(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold leaves an interval without bounds, and JSON has no infinity."""
    unknown = Prediction(1.0, -np.inf, np.inf)
    found = Advice(1.0, (1,), (unknown,), (unknown,), (unknown,), (unknown,))
    monkeypatch.setattr("cpaan.centers.advice.advise_on", lambda *_, **__: found)
    result = advise(bank, "--setup", bank.parent / "setup.json", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    printed = json.loads(result.stdout, parse_constant=refuse)
    assert printed["lsl"] == [{"gain": 1.0, "low": None, "high": None, "verdict": "cannot tell"}]
