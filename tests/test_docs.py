"""Every python and sh block of the README and of the documentation runs, on small data and with little training.

The blocks of a page run in their order, in an empty folder: those of Python share their names, commands run one by
one. A page that starts from files finds them in its folder (`PREPARE`). Blocks of text are outputs, or need real data.
"""

import io
import json
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.data.hdf5 import Hdf5Features
from cpaan.gan import recipe

pytest.importorskip("matplotlib", reason="needs the extra 'report'")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}
# What makes a command short; all else is as printed.
SHORTER = {
    "backbone": "--size 16 --epochs 1 --device cpu --workers 0 --set width=2 --set batch_size=16 --set ways=4 "
    "--set queries=2",
    "features": "--device cpu --workers 0",
    "bench": "--device cpu --set episodes=2 --set width=8 --set noise_dimension=4 --shots 1,2 --trials 2",
    "fit": "--device cpu --episodes 2",
    "intents.py": "--episodes 2",
    "long_tailed_table.py": "--episodes 2",
    "glyph_images.py": "--epochs 3 --width 4 --characters ABCDEFGHKMRSWY2345",
}


class Page:
    """Runs the blocks of one page and keeps what they printed."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text, self.monkeypatch = path.read_text(encoding="utf-8"), monkeypatch
        self.names: dict[str, Any] = {"__name__": path.stem}
        self.outputs: dict[str, str] = {}

    def run(self) -> None:
        for language, block in re.findall(r"^```(python|sh)\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE):
            if language == "python":
                self.run_python(block)
            else:
                for command in block.replace("\\\n", " ").splitlines():
                    self.outputs[command] = self.run_command(shlex.split(command, comments=True))

    def run_python(self, block: str) -> None:
        named = re.match(r"# (\w+\.py)\n", block)
        if named:  # a file that a later command uses
            Path(named[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, "page", "exec"), self.names)

    def run_command(self, words: list[str]) -> str:
        name = Path(words[0]).name if words else "#"
        runners: dict[str, Callable[[list[str]], str]] = {
            "#": lambda _: "",
            "cpaan": self.run_cpaan,
            "torchrun": run_torchrun,
            "make": run_make,
            "python": self.run_script,
            "python3": make_environment,
            "mkdir": lambda words: subprocess.check_output(words, text=True),
        }
        assert name in runners, f"say in this test how to run {words}"
        return runners[name](words)

    def run_cpaan(self, words: list[str]) -> str:
        shorter = [] if "--from-paper" in words or len(words) < 2 else SHORTER.get(words[1], "").split()
        result = CliRunner().invoke(app, [*words[1:], *shorter])
        assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"
        return result.output

    def run_script(self, words: list[str]) -> str:
        """Run a script in this process: to start Python and torch would take longer than most of them."""
        if words[1:4] == ["-m", "pip", "install"]:
            return check_installation(words[4:])
        here = Path(words[1])
        script = here if here.exists() else ROOT / here
        self.monkeypatch.setattr(sys, "argv", [str(script), *words[2:], *SHORTER.get(here.name, "").split()])
        runpy.run_path(str(script), run_name="__main__")
        return ""


def write_quickly(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure small and once, in place of a PDF and a large PNG: that is tested with the figures."""
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=20)
    return [path, path]


def run_make(words: list[str]) -> str:
    """See that make knows the target; what it would do is tested elsewhere."""
    return subprocess.check_output([*words, "--dry-run", "--directory", str(ROOT)], text=True)


def make_environment(words: list[str]) -> str:
    assert words[1:3] == ["-m", "venv"]
    return subprocess.check_output([sys.executable, *words[1:], "--without-pip"], text=True)


def check_installation(words: list[str]) -> str:
    """Look up what an installation names, instead of installing it."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"^(\w+) = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE)
    asked = [name for word in words for name in re.findall(r"\[(.*)\]", word)]
    assert set(",".join(asked).split(",")) <= set(extras)
    assert (ROOT / words[words.index("-c") + 1]).is_file()
    return ""


def run_torchrun(words: list[str]) -> str:
    """Start as many machines as the command speaks of, with one process each, or two processes on one machine."""
    command = shlex.join(words)
    machines = 2 if "--nnodes 2" in command else 1
    smaller = command.replace("--nproc-per-node 8", f"--nproc-per-node {3 - machines}")
    smaller = smaller.replace("node0:29500", f"localhost:{free_port()}")
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *shlex.split(smaller)[1:], *SHORTER["backbone"].split()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(machines)
    ]
    outputs = [process.communicate(timeout=1800)[0] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(outputs)
    return "\n".join(outputs)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port: int = listening.getsockname()[1]
        return port


def write_image(path: Path, rng: np.random.Generator, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noisy = np.array(colour) + rng.integers(-30, 31, (24, 20, 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG")
    path.write_bytes(file.getvalue())


def write_classes(root: Path, names: list[str], train: int, test: int) -> None:
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        colour = (60 * (number % 4) + 30, 60 * (number // 4 % 4) + 30, 120)
        for part, count in (("train", train), ("val", test)):
            for i in range(count):
                write_image(root / part / name / f"{name}_{i}.JPEG", rng, colour)


def prepare_bank() -> None:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(30)]
    features = 3 * rng.normal(size=(30, 1, 5)) + rng.normal(size=(30, 40, 5))
    everything = FeatureSet(features.reshape(-1, 5).astype(np.float32), np.repeat(names, 40))
    write_features("base.npz", everything.select(names[:24]))
    write_features("novel.npz", everything.select(names[24:]).take(np.arange(6) * 40))
    write_features("bank.npz", everything, np.arange(1200) % 40 >= 30)
    Path("setup.json").write_text(json.dumps({"base": names[:24], "novel": names[24:]}))


def prepare_images() -> None:
    names = [f"kind{number:02d}" for number in range(10)]
    write_classes(Path("images"), names, train=8, test=2)
    Path("setup.json").write_text(json.dumps({"base": names[:6], "novel": names[6:]}))


IMAGENET = [f"n{100 + (7 * number) % 16:08d}" for number in range(16)]  # not sorted, as in the official file
IMAGENET_PARTS = {"base_classes_1": [0, 3, 5, 9], "base_classes_2": [1, 2, 8, 15]}
IMAGENET_BASE = sorted(label for part in IMAGENET_PARTS.values() for label in part)


def prepare_imagenet() -> None:
    write_classes(Path("imagenet"), IMAGENET, train=22, test=2)
    novel = {"novel_classes_1": [4, 6, 7, 10], "novel_classes_2": [11, 12, 13, 14]}
    labels = {"label_names": IMAGENET, "base_classes": IMAGENET_BASE, **IMAGENET_PARTS, **novel}
    Path("label_idx.json").write_text(json.dumps(labels))
    for trial in range(1, 6):
        rng = np.random.default_rng(trial)
        rows = [(22 * label + rng.permutation(22)[:20]).tolist() for label in range(16)]
        Path(f"splitfile_{trial}.json").write_text(json.dumps(rows))


PREPARE: dict[str, Callable[[], None]] = {
    "README.md": prepare_bank,
    "docs/choosing-a-method.md": prepare_bank,
    "docs/images-to-features.md": prepare_images,
    "docs/reproduce-imagenet.md": prepare_imagenet,
    "docs/training.md": prepare_bank,
}


def check_imagenet(page: Page) -> None:
    trained = json.loads(Path("backbones/resnet10/config.json").read_text())
    assert trained["classes"] == [IMAGENET[label] for label in IMAGENET_BASE]
    train = Hdf5Features("features/resnet10-train.h5")
    assert train.labels.tolist() == np.repeat(np.arange(16), 22).tolist()
    assert "already trained" in next(text for command, text in page.outputs.items() if "--resume" in command)
    assert "ccov-gan" in Path("runs/resnet10-1/results.csv").read_text()
    for processes in (8, 16):
        assert json.loads(Path(f"backbones/resnet10-{processes}/config.json").read_text())["details"]["parts"] == 2
    assert "Published" in next(text for command, text in page.outputs.items() if "--from-paper" in command)
    assert Path("figures/neighborhood-ablation.png").exists()


def check_glyphs(_: Page) -> None:
    """What comes out beats chance by far."""
    lines = Path("glyph-run/run-3-4/results.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    found = [float(row["top1"]) for row in rows if (row["setting"], row["shots"]) == ("LSL", "5")]
    novel = len(json.loads(Path("glyph-run/setup.json").read_text())["novel"])
    assert np.mean(found) > 2 * 100 / novel


CHECK: dict[str, Callable[[Page], None]] = {
    "docs/reproduce-imagenet.md": check_imagenet,
    "docs/examples.md": check_glyphs,
}


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cpaan.reporting.run_figures.write_both", write_quickly)
    monkeypatch.setitem(recipe.RECIPES, "quick", replace(recipe.QUICK, episodes=2))
    monkeypatch.setattr("cpaan.centers.calibrated.affordable_rounds", lambda rounds, dimension: 1)
    monkeypatch.delitem(sys.modules, "mymodels", raising=False)
    if name in PREPARE:
        PREPARE[name]()
    page = Page(PAGES[name], monkeypatch)
    page.run()
    if name in CHECK:
        CHECK[name](page)


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_are_there(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", PAGES[name].read_text(encoding="utf-8")):
        assert (PAGES[name].parent / target).exists(), target


def test_every_page_has_a_place() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    placed = {f"docs/{path}" for path in re.findall(r": (\S+\.md)", navigation)}
    assert placed == set(PAGES) - {"README.md"}


def test_every_example_is_run() -> None:
    text = PAGES["docs/examples.md"].read_text(encoding="utf-8")
    assert all(f"python examples/{script.name}" in text for script in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", PAGES)
def test_no_block_escapes(name: str) -> None:
    """A block of any other language, or one that is indented, would not be run."""
    fences = re.findall(r"^(.*?)```(.*)$", PAGES[name].read_text(encoding="utf-8"), re.MULTILINE)
    assert {indent for indent, _ in fences} <= {""}
    assert {language for _, language in fences} <= {"", "python", "sh", "text"}
    assert [bool(language) for _, language in fences] == [True, False] * (len(fences) // 2)
