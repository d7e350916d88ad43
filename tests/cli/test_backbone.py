"""The commands from images to features: what they print, what they refuse, and how they go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from cpaan.cli.app import app

FAST = ["--recipe", "small", "--device", "cpu", "--workers", "0", "--set", "width=2", "--set", "batch_size=8"]
FAST += ["--size", "12"]


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in range(3):
        for number in range(12):
            path = tmp_path / "images" / ("train" if number < 10 else "val") / f"kind{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 80, (12, 12, 3), dtype=np.uint8) + np.uint8(80 * label)).save(path)
    return tmp_path / "images"


def test_a_backbone_is_trained_described_and_used(images: Path, tmp_path: Path) -> None:
    model, bank = tmp_path / "model", tmp_path / "bank.npz"
    result = cpaan("backbone", "train", images, "-o", model, *FAST, "--epochs", 4)
    assert result.exit_code == 0, result.output
    assert "resnet10, trained on 30 images of 3 classes" in result.output
    assert "base classes, test images: top-1" in result.output
    shown = cpaan("info", model).output
    assert "backbone, resnet10, 4 epochs" in shown
    assert "12 pixels, small stem" in shown
    result = cpaan("features", "extract", images, "--backbone", model, "-o", bank, "--device", "cpu", "--workers", 0)
    assert result.exit_code == 0, result.output
    assert "36 images of 3 classes, 16 features" in result.output
    refused(cpaan("augment", model, bank, "-o", tmp_path / "made.npz"), "which makes no examples")


def test_a_folder_with_a_model_is_kept(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    command = ["backbone", "train", images, "-o", model, *FAST, "--epochs", 1]
    assert cpaan(*command).exit_code == 0
    before = (model / "model.safetensors").read_bytes()
    refused(cpaan(*command), "holds a model already; give another folder, or --overwrite")
    again = cpaan(*command, "--resume")
    assert again.exit_code == 0
    assert "already trained" in again.output
    assert (model / "model.safetensors").read_bytes() == before
    refused(cpaan(*command, "--resume", "--seed", 1), "trained otherwise (seed 0 there, 1 now)")
    assert cpaan(*command, "--overwrite", "--seed", 1).exit_code == 0
    assert (model / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGINT, True)])
def test_an_interrupted_training_says_how_to_go_on(
    images: Path, tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    """The signal comes to one process, or to all of its group as from a terminal or a scheduler."""
    model = tmp_path / "model"
    command = ["backbone", "train", str(images), "-o", str(model), *FAST, "--epochs", "100000"]
    command += ["--workers", "1", "--cache", "never"] if group else []
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "begun"), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    os.killpg(process.pid, number) if group else process.send_signal(number)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 130, output
    assert "the same command with --resume goes on" in output
    assert len(list((model / "checkpoints").iterdir())) == 1
    refused(cpaan(*command), "was interrupted; go on with --resume, or --overwrite it")
    short = [word if word != "100000" else "1" for word in command]
    refused(cpaan(*short, "--resume"), "of another run (other numbers)")
    assert cpaan(*short, "--overwrite").exit_code == 0
    assert not (model / "checkpoints").exists()


# Tells when the first step is done, so that the signal comes while training is under way.
WAITING = """
import sys
from pathlib import Path
from cpaan.cli.app import app
from cpaan.representations import training

step = training.BackboneStep.__call__
begun = Path(sys.argv[1])

def noted(self, *arguments):
    begun.touch()
    return step(self, *arguments)

training.BackboneStep.__call__ = noted
training.LOGGINGS = 10**9
app(sys.argv[2:])
"""


def test_wrong_arguments_are_refused_with_nothing_written(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    train = ["backbone", "train", images, "-o", model, "--device", "cpu", "--workers", 0]
    refused(cpaan(*train, "--kind", "resnet11"), "kind must be one of resnet10, prototypical")
    refused(cpaan(*train, "--recipe", "huge"), "choose one of paper, small")
    refused(cpaan(*train, "--set", "colour=1"), "has no colour")
    refused(cpaan("backbone", "train", tmp_path / "nothing", "-o", model), "nothing")
    refused(cpaan(*train, "--recipe", "small"), "fewer than a batch of 256; give a smaller batch_size")
    refused(cpaan(*train, *FAST, "--kind", "prototypical"), "give fewer ways")
    (tmp_path / "setup.json").write_text('{"base": ["kind0", "kind7"], "novel": ["kind1"]}')
    refused(cpaan(*train, *FAST, "--setup", tmp_path / "setup.json"), "kind7")
    extract = ["features", "extract", images, "-o", tmp_path / "bank.npz", "--device", "cpu"]
    refused(cpaan(*extract, "--backbone", "nothing"), "neither the folder of a backbone nor a name like")
    refused(cpaan(*extract, "--backbone", "nothing", "--only", "val"), "--only must be train or test")
    assert not model.exists()
    assert not (tmp_path / "bank.npz").exists()


def test_help_says_that_code_is_run() -> None:
    assert "RUNS THAT CODE, so name only what you trust" in " ".join(
        cpaan("features", "extract", "--help").output.replace("│", " ").split()
    )


def test_unreadable_images_are_listed(images: Path, tmp_path: Path) -> None:
    (images / "train" / "kind1" / "3.png").write_bytes(b"no image")
    model = tmp_path / "model"
    train = ["backbone", "train", images, "-o", model, *FAST, "--epochs", 1]
    refused(cpaan(*train), "3.png cannot be read")
    assert cpaan(*train, "--on-bad", "skip").exit_code == 0
    extract = ["features", "extract", images, "--backbone", model, "-o", tmp_path / "bank.npz", "--workers", 0]
    result = cpaan(*extract, "--on-bad", "skip", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "left out: train/kind1/3.png" in result.output
    assert "35 images" in result.output
    assert "train/kind1/3.png" in (tmp_path / "bank.npz.skipped.txt").read_text()


def test_an_overwriting_run_that_is_killed_leaves_no_model_behind(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    command = ["backbone", "train", images, "-o", model, *FAST]
    assert cpaan(*command, "--epochs", 1).exit_code == 0
    # As a run with --overwrite leaves it that dies after its first checkpoint.
    (model / "checkpoints" / "0000000001").mkdir(parents=True)
    refused(cpaan(*command, "--epochs", 1), "was interrupted")
    again = cpaan(*command, "--epochs", 1, "--resume")
    assert again.exit_code == 0, again.output
    assert "already trained" not in again.output
    assert "starting over" in again.output


def test_folders_of_others_are_not_written_to(images: Path, tmp_path: Path) -> None:
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "diary.txt").write_text("dear diary")
    train = ["backbone", "train", images, *FAST, "--epochs", 1]
    refused(cpaan(*train, "-o", tmp_path / "stuff", "--resume"), "is not empty and holds no model")
    refused(cpaan(*train, "-o", tmp_path / "stuff", "--overwrite"), "is not empty and holds no model")
    refused(cpaan(*train, "-o", tmp_path / "stuff" / "diary.txt", "--resume"), "it is a file")


def test_what_is_passed_over_is_told(images: Path, tmp_path: Path) -> None:
    (images / "train" / "kind0" / "photo.HEIC").write_bytes(b"")
    (images / "validation").mkdir()
    result = cpaan("backbone", "train", images, "-o", tmp_path / "model", *FAST, "--epochs", 1)
    assert "ignored 1 files ending in .heic, folder validation/" in " ".join(result.output.split())


def test_folders_that_the_setup_does_not_name_do_not_matter(images: Path, tmp_path: Path) -> None:
    (images / "train" / "junk").mkdir()
    (tmp_path / "setup.json").write_text('{"base": ["kind0", "kind1"], "novel": ["kind2"]}')
    train = ["backbone", "train", images, "-o", tmp_path / "model", *FAST, "--epochs", 1]
    refused(cpaan(*train), "no image in the class folders 'train/junk'")
    assert cpaan(*train, "--setup", tmp_path / "setup.json").exit_code == 0
