"""Every example of the README runs as printed, with less training."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cpaan.cli.app import app
from cpaan.data.archive import write_features
from cpaan.data.feature_set import FeatureSet
from cpaan.training import recipe

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("quick", "default"):
        monkeypatch.setitem(recipe.RECIPES, name, replace(recipe.RECIPES[name], episodes=2))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_python_examples_run() -> None:
    found = blocks("python")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), {})


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(30)]
    features = 3 * rng.normal(size=(30, 1, 5)) + rng.normal(size=(30, 40, 5))
    everything = FeatureSet(features.reshape(-1, 5).astype(np.float32), np.repeat(names, 40))
    monkeypatch.chdir(tmp_path)
    write_features("base.npz", everything.select(names[:24]))
    write_features("novel.npz", everything.select(names[24:]).take(np.arange(6) * 40))
    write_features("bank.npz", everything, np.arange(1200) % 40 >= 30)
    Path("setup.json").write_text(f'{{"base": {names[:24]}, "novel": {names[24:]}}}'.replace("'", '"'))
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("cpaan ")]
    assert len(commands) >= 4
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"


def test_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / path).is_file(), path
