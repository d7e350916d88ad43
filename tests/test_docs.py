"""Every command and example of the documentation runs, on small images and with little training."""

import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cpaan.cli.app import app
from cpaan.data.hdf5 import Hdf5Features

DOCS = Path(__file__).parents[1] / "docs"
# What makes a command short; all else is as printed.
SHORTER = {
    "backbone": "--size 16 --epochs 1 --device cpu --workers 0 --set width=2 --set batch_size=16 --set ways=4 "
    "--set queries=2",
    "features": "--device cpu --workers 0",
    "bench": "--device cpu --set episodes=2 --set width=8 --set noise_dimension=4 --shots 1,2 --trials 2",
}


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


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


def run(command: str) -> str:
    words = shlex.split(command)
    if words[0] == "cpaan":
        extra = SHORTER[words[1]] if "--from-paper" not in words else ""
        result = CliRunner().invoke(app, [*words[1:], *shlex.split(extra)])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return result.output
    if words[0] == "torchrun":
        return run_with_torchrun(command)
    subprocess.run(words, check=True)
    return ""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port: int = listening.getsockname()[1]
        return port


def run_with_torchrun(command: str) -> str:
    """Start as many machines as the command speaks of, with one process each, or two processes on one machine."""
    machines = 2 if "--nnodes 2" in command else 1
    smaller = command.replace("--nproc-per-node 8", f"--nproc-per-node {3 - machines}")
    smaller = smaller.replace("node0:29500", f"localhost:{free_port()}")
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(smaller)[1:], *SHORTER["backbone"].split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(machines)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(outputs)
    return "\n".join(outputs)


def test_imagenet_is_reproduced_on_a_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"n{100 + (7 * number) % 16:08d}" for number in range(16)]  # not sorted, as in the official file
    write_classes(tmp_path / "imagenet", names, train=22, test=2)
    part = {"base_classes_1": [0, 3, 5, 9], "base_classes_2": [1, 2, 8, 15]}
    novel = {"novel_classes_1": [4, 6, 7, 10], "novel_classes_2": [11, 12, 13, 14]}
    base = sorted(part["base_classes_1"] + part["base_classes_2"])
    Path("label_idx.json").write_text(json.dumps({"label_names": names, "base_classes": base, **part, **novel}))
    for trial in range(1, 6):
        rng = np.random.default_rng(trial)
        rows = [(22 * label + rng.permutation(22)[:20]).tolist() for label in range(16)]
        Path(f"splitfile_{trial}.json").write_text(json.dumps(rows))
    listed = commands("reproduce-imagenet.md")
    assert len(listed) >= 13
    outputs = {command: run(command) for command in listed}
    trained = json.loads(Path("backbones/resnet10/config.json").read_text())
    assert trained["classes"] == [names[label] for label in base]
    train = Hdf5Features("features/resnet10-train.h5")
    assert train.labels.tolist() == np.repeat(np.arange(16), 22).tolist()
    assert "already trained" in next(text for command, text in outputs.items() if "--resume" in command)
    assert "ccov-gan" in Path("runs/resnet10-1/results.csv").read_text()
    for processes in (8, 16):
        assert json.loads(Path(f"backbones/resnet10-{processes}/config.json").read_text())["details"]["parts"] == 2
    assert "Published" in outputs[listed[-1]]


def test_the_page_on_images_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"kind{number:02d}" for number in range(10)]
    write_classes(tmp_path / "images", names, train=8, test=2)
    Path("setup.json").write_text(json.dumps({"base": names[:6], "novel": names[6:]}))
    (module,) = blocks("images-to-features.md", "python")
    Path("mymodels.py").write_text(module)
    monkeypatch.delitem(sys.modules, "mymodels", raising=False)
    for command in commands("images-to-features.md"):
        run(command)
    assert Path("own.npz").exists()


def test_the_glyph_example_goes_from_images_to_the_table(tmp_path: Path) -> None:
    """The whole way offline at tiny size; what comes out beats chance by far."""
    pytest.importorskip("matplotlib")
    script = DOCS.parent / "examples" / "glyph_images.py"
    characters = "ABCDEFGHKMRSWY2345"
    command = [sys.executable, str(script), "--out", str(tmp_path), "--epochs", "3", "--width", "4"]
    done = subprocess.run(
        [*command, "--characters", characters],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run-3-4" / "results.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    found = [float(row["top1"]) for row in rows if (row["setting"], row["shots"]) == ("LSL", "5")]
    novel = len(json.loads((tmp_path / "setup.json").read_text())["novel"])
    assert np.mean(found) > 2 * 100 / novel
