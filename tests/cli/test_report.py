"""The command `cpaan report` from a bank on disk to a page."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(9)]
    features = 3 * rng.normal(size=(9, 1, 4)) + rng.normal(size=(9, 15, 4))
    everything = FeatureSet(features.reshape(-1, 4).astype(np.float32), np.repeat(names, 15))
    write_features(tmp_path / "bank.npz", everything, np.arange(135) % 15 >= 10)
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:6], "novel": names[6:]}))
    command = ["bench", tmp_path / "bank.npz", "--setup", tmp_path / "setup.json", "--methods", "linear,smote"]
    assert cpaan(*command, "--shots", "1,2", "--trials", 2, "-o", tmp_path / "run").exit_code == 0
    return tmp_path / "run"


def test_a_run_becomes_a_page_that_says_how_it_was_made(run: Path, tmp_path: Path) -> None:
    result = cpaan("report", run, "-o", tmp_path / "page.html", "--measure", "top1", "--pixels", "2x2")
    assert result.exit_code == 0, result.output
    assert "page.html" in result.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"cpaan bench {tmp_path / 'bank.npz'} --setup {tmp_path / 'setup.json'}" in page
    assert "top-1" in page


def test_wrong_input_is_refused_and_nothing_written(run: Path, tmp_path: Path) -> None:
    def refused(message: str, *arguments: object) -> None:
        result = cpaan("report", *arguments)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())
        assert not list(tmp_path.glob("*.html"))

    page = tmp_path / "page.html"
    refused("holds no benchmark run", tmp_path / "nothing", "-o", page)
    refused("--measure must be top1 or top5", run, "-o", page, "--measure", "top3")
    refused("'maml' is not one of the methods", run, "-o", page, "--reference", "maml")
    refused("HEIGHTxWIDTH", run, "-o", page, "--pixels", "two")
    refused("does not exist", run, "-o", tmp_path / "missing" / "page.html")
    refused("--images or --pixels, not both", run, "-o", page, "--pixels", "2x2", "--images", tmp_path)
