import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.cli.tune import _as_text
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.evaluation import tuning
from cpaan.evaluation.tuning import Setting, Tuning

pytest.importorskip("optuna", reason="needs the extra 'tune'")

FIXED = ["episodes=2", "width=8", "noise_dimension=4", "center=shots", "novel_per_episode=3", "ky_fan_rank=4"]
FAST = ["--device", "cpu", "--folds", "2", "--draws", "1", "--trials", "2", *(w for n in FIXED for w in ("--set", n))]


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(16)]
    features = (2 * rng.normal(size=(16, 1, 5)) + rng.normal(size=(16, 20, 5))).reshape(-1, 5).astype(np.float32)
    write_features(tmp_path / "bank.npz", FeatureSet(features, np.repeat(names, 20)), np.arange(320) % 20 >= 16)
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:12], "novel": names[12:]}))
    return tmp_path / "bank.npz"


def tune(bank: Path, *arguments: Any) -> Result:
    study = bank.parent / "study.log"
    command = ["tune", str(bank), "--setup", str(bank.parent / "setup.json"), "-o", str(study), *FAST]
    return CliRunner().invoke(app, [*command, *map(str, arguments)])


def test_it_finds_numbers_goes_on_and_tells_programs_the_same(bank: Path) -> None:
    result = tune(bank)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    header = [cell.strip() for cell in lines[3].split("|")[1:-1]]
    assert header == ["setting", "score", "gain", "cycle_weight", "covariance_weight", "shots_per_episode"]
    assert [line.split()[1] for line in lines if line.startswith(("| trial", "| recipe"))][-1] == "recipe"
    found = json.loads(tune(bank, "--json").stdout)
    assert len(found["settings"]) + found["given_up"] == 2
    assert found["own"]["numbers"] == {"cycle_weight": 50.0, "covariance_weight": 10.0, "shots_per_episode": 5}
    best = found["settings"][0]
    assert best["mean"] == pytest.approx(np.mean(best["scores"]))
    assert best["gain"]["mean"] == pytest.approx(best["mean"] - np.mean(found["own"]["scores"]))
    assert f"{best['mean']:.2f}" in result.stdout
    more = json.loads(tune(bank, "--json", "--trials", 3).stdout)
    assert len(more["settings"]) + more["given_up"] == 3


def test_neither_novel_classes_nor_test_examples_are_looked_at(bank: Path) -> None:
    before = json.loads(tune(bank, "--json").stdout)
    (bank.parent / "study.log").unlink()
    archive = dict(np.load(bank, allow_pickle=False))
    archive["features"][archive["is_test"]] = 0
    archive["features"][240:] = 7  # the novel classes
    np.savez(bank, **archive)
    assert json.loads(tune(bank, "--json").stdout) == before


def test_stopping_it_prints_what_was_found(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(bank)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "_work", stop)
    result = tune(bank, "--trials", 9)
    assert result.exit_code == 130
    assert "trial" in result.stdout
    assert "the same command goes on" in result.stderr


def test_what_is_given_wrongly_is_refused(bank: Path) -> None:
    for arguments, message in (
        (["--trials", 0], "must be at least 1"),
        (["--space", "narrow"], "unknown space 'narrow'"),
        (["--classifier", "nearest-prototype", "--set", "center=calibrated"], "scores all numbers alike"),
        (["--shots", "1,50"], "too few for 2 folds"),
    ):
        result = tune(bank, *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert not (bank.parent / "study.log").exists()


OWN: dict[str, Any] = {"cycle_weight": 50.0, "ky_fan_rank": 10}
BEST = Setting(3, {"cycle_weight": 250.0, "ky_fan_rank": 10}, (60.0, 62.0))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Tuning((), (), 2), "no setting was tried in every fold yet; 2 were given up"),
        (Tuning((50.0,), (BEST,), 0), "The recipe's own numbers are not scored in every fold yet."),
        (Tuning((70.0, 70.0), (BEST,), 0), "None is better than the recipe's own numbers: keep those."),
        (Tuning((50.0, 52.0), (BEST,), 0), "Best, not measured afresh: --set cycle_weight=250.0"),
        (Tuning((50.0, 52.0), (BEST,), 0, ((50.0, 51.0), (52.0, 53.0))), "it was the best by luck. Keep"),
        (
            Tuning((50.0, 52.0), (BEST,), 0, ((52.0, 59.0), (50.0, 51.0))),
            "points, which may be chance. For cpaan bench",
        ),
        (Tuning((50.0, 52.0), (BEST,), 0, ((57.0, 58.0), (50.0, 51.0))), "gains +7.00 ± 0.00 points. For cpaan bench"),
    ],
)
def test_the_verdict_is_plain(found: Tuning, sentence: str) -> None:
    assert sentence in _as_text(found, OWN)
