"""`cpaan fit` that is killed, stopped, resumed, or has no room."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.data.folders import LOCK, TENSORS

NUMBERS = ("width=16", "novel_per_episode=3", "batch_size=60", "center=shots")
FAST = ["--device", "cpu", "--checkpoint-seconds", "0", *(word for number in NUMBERS for word in ("--set", number))]


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    shown = " ".join(result.stderr.split())
    assert message in shown
    assert "Traceback" not in shown


@pytest.fixture
def base(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    features = (4 * rng.normal(size=(6, 1, 5)) + rng.normal(size=(6, 15, 5))).reshape(-1, 5)
    names = np.repeat([f"base{i}" for i in range(6)], 15)
    write_features(tmp_path / "base.npz", FeatureSet(features.astype(np.float32), names))
    return tmp_path / "base.npz"


@pytest.fixture
def half(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder whose training of six episodes was stopped by SIGTERM after the third."""
    from cpaan.gan.loop import TrainingEvent

    calls: list[int] = []
    init = TrainingEvent.__init__

    def signalled(event: TrainingEvent, episode: int, *rest: object) -> None:
        init(event, episode, *rest)  # type: ignore[arg-type]
        calls.append(episode)
        if episode == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingEvent, "__init__", signalled)
        result = cpaan("fit", base, "-o", tmp_path / "model", "--episodes", 6, *FAST)
    assert result.exit_code == 128 + signal.SIGTERM == 143
    expected = "stopped by SIGTERM after episode 3 of 6; the same command with --resume goes on from the checkpoint in"
    assert expected in " ".join(result.stderr.split())
    assert calls == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["checkpoints"]
    return tmp_path / "model"


def test_what_was_stopped_is_refused_or_resumed_to_the_same_bits(tmp_path: Path, base: Path, half: Path) -> None:
    command = ["fit", base, "-o", half, "--episodes", 6, *FAST]
    assert_refused(cpaan(*command), "holds a training that was interrupted; go on with --resume, or --overwrite it")
    assert_refused(cpaan(*command, "--resume", "--seed", 1), "of another training (seed: ")
    # What a kill leaves beside the checkpoints is in nobody's way.
    (half / LOCK).write_text("1 on another boot")
    (half / ".0123456789abcdef.part").touch()
    resumed = cpaan(*command, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert sorted(path.name for path in half.iterdir()) == ["classifier", "config.json", TENSORS]
    whole = tmp_path / "whole"
    assert cpaan("fit", base, "-o", whole, "--episodes", 6, *FAST, "--resume").exit_code == 0  # starts where none is
    for file in (TENSORS, "config.json", f"classifier/{TENSORS}"):
        assert (whole / file).read_bytes() == (half / file).read_bytes()
    done = cpaan(*command, "--resume", "--json")
    assert (done.exit_code, json.loads(done.stdout)["trained_before"]) == (0, True)
    assert "already trained" in cpaan(*command, "--resume").stdout
    assert_refused(cpaan(*command), "holds a model already")
    assert_refused(cpaan(*command, "--resume", "--seed", 1), "trained otherwise (random_state: 0 there, 1 now)")


def test_overwrite_begins_anew_and_with_resume_goes_on(tmp_path: Path, base: Path, half: Path) -> None:
    command = ["fit", base, "-o", half, "--episodes", 6, *FAST]
    assert cpaan(*command, "--overwrite", "--seed", 1).exit_code == 0
    assert not (half / "checkpoints").exists()
    assert cpaan(*command, "--overwrite", "--resume").exit_code == 0  # of another seed: replaced
    assert json.loads((half / "config.json").read_text())["parameters"]["random_state"] == 0
    assert "already trained" in cpaan(*command, "--overwrite", "--resume").stdout


def test_a_model_that_was_torn_while_it_was_saved_is_written_again(base: Path, half: Path) -> None:
    command = ["fit", base, "-o", half, "--episodes", 6, *FAST, "--resume"]
    (half / TENSORS).write_bytes(b"torn")
    assert cpaan(*command).exit_code == 0
    (half / "classifier" / "config.json").unlink()
    assert "trained on 6 base classes" in cpaan(*command).stdout
    assert (half / "classifier" / "config.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_what_was_saved_stays(base: Path, small_disk: Path) -> None:
    model = small_disk / "model"
    command = ["fit", base, "-o", model, "--episodes", 6, *FAST]
    refused = cpaan(*command)
    assert_refused(refused, "No space left on device")
    assert refused.stderr.count("\nerror: ") == 1
    there = sorted(path.name for path in (model / "checkpoints").iterdir())
    assert there
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    resumed = cpaan(*command, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "passed over" not in resumed.stderr


def test_a_disk_that_is_read_only_now_leaves_what_was_saved(base: Path, small_disk: Path) -> None:
    model = small_disk / "model"
    command = ["fit", base, "-o", model, "--episodes", 6, *FAST]
    assert_refused(cpaan(*command), "No space left on device")
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_refused(cpaan(*command, "--resume"), f"cannot write to {model}: Read-only file system")
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before
    assert before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path, base: Path) -> None:
    (tmp_path / "model").mkdir(mode=0o500)
    assert_refused(cpaan("fit", base, "-o", tmp_path / "model", *FAST), "Permission denied")


def test_two_processes_and_kills(tmp_path: Path, base: Path) -> None:
    model = tmp_path / "model"
    words = ["fit", str(base), "-o", str(model), "--episodes", "100000", *FAST]
    command = [sys.executable, "-m", "cpaan", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            # The file is there a moment before it is held; the number of the process is written once it is.
            while process.poll() is None and not ((model / LOCK).exists() and (model / LOCK).read_text()):
                time.sleep(0.01)
            second = cpaan(*words, "--resume")
            assert_refused(second, f"is being written to by process {process.pid} on")
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    short = ["fit", base, "-o", model, "--episodes", 3, "--method", "smote"]
    (model / "checkpoints" / "0000000001").mkdir(parents=True, exist_ok=True)
    assert_refused(cpaan(*short[:4], *short[6:]), "interrupted")  # and the stale lock keeps nobody out
