import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features


def ablate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ablate", *map(str, arguments)])


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(12)]
    centers = 2 * rng.normal(size=(12, 1, 6))
    everything = FeatureSet((centers + rng.normal(size=(12, 20, 6))).reshape(-1, 6), np.repeat(names, 20))
    write_features(tmp_path / "bank.npz", everything, np.arange(240) % 20 >= 15)
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:8], "novel": names[8:]}))
    return tmp_path / "bank.npz"


def test_each_run_has_a_folder_and_a_row(bank: Path) -> None:
    folder = bank.parent / "runs"
    options = ("--shots", 1, "--trials", 2, "--set", "episodes=2", "--set", "center=shots", "--classifier")
    arguments = (bank, "--setup", bank.parent / "setup.json", *options, "nearest-prototype", "-o", folder)
    result = ablate(*arguments, "--groups", "losses,spread")
    assert result.exit_code == 0, result.output
    assert (folder / "without-the-covariance" / "DONE").exists()
    accuracy, difference, diversity = (part.splitlines() for part in result.stdout.split("\n\n")[1::2])
    assert len(accuracy) == 2 + 11
    assert [line.split("|")[1].strip() for line in difference][2:5] == [
        "without the adversarial loss",
        "without the cycle",
        "without the covariance",
    ]
    made = {line.split("|")[1].strip(): float(line.split("|")[2]) for line in diversity[2:]}
    assert made["deviations times 0"] == 0
    assert made["deviations times 2"] == pytest.approx(2 * made["as it is"], abs=0.002)
    assert made["real examples"] > 0
    again = ablate(*arguments, "--groups", "losses,spread")
    assert again.stdout == result.stdout  # from the folders, without a run


def test_what_is_wrong_is_refused_before_anything_runs(bank: Path) -> None:
    arguments = (bank, "--setup", bank.parent / "setup.json", "-o", bank.parent / "runs")
    assert "choose from neighborhood, losses, departures, spread" in ablate(*arguments, "--groups", "x").output
    assert ablate(*arguments, "--measure", "top3").exit_code == 2
    assert not (bank.parent / "runs").exists()
