"""Training that is killed again and again, and whether its weights come out as if it had not been.

Usage: python benchmarks/crashes.py [--kills 60] [--runs 4] [--output crashes.json]

Each run trains one variant with `cpaan fit`, once without interruption and once killed with SIGKILL at random moments
and resumed, until it has been killed often enough and then to the end. Every tensor of the two models is compared bit
by bit. A kill may fall anywhere: before training, in an episode, while a checkpoint is written, or while the model is.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.data.folders import CONFIG, TENSORS
from cpaan.gan.objective import VARIANTS
from cpaan.reporting.tables import markdown_table
from cpaan.training.checkpoints import list_checkpoints

N_CLASSES, PER_CLASS, DIMENSION = 12, 30, 16
LONGEST = 2.0  # seconds from the start of training, or of a process, to its kill
PATIENCE = 300.0
# Processes are forked from one that has imported all this: killing begins where training does, and not in imports.
PRELOADED = ["cpaan.cli.app", "cpaan.low_shot.classifier", "cpaan.methods", "cpaan.gan.callbacks"]
PROCESSES = get_context("forkserver")


@dataclass
class Outcome:
    """What became of one run."""

    variant: str
    kills: int = 0
    resumed_from: list[int] = field(default_factory=list)  # episodes of the newest checkpoint after each kill
    when: dict[str, int] = field(default_factory=dict)  # kills by what was going on
    same_weights: bool = False
    same_history: bool = False


def main() -> None:
    """Kill, resume, compare; print a table and write the single figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="of all runs together")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="decides the moments of the kills")
    parser.add_argument("--output", type=Path, default=Path("crashes.json"))
    options = parser.parse_args()
    PROCESSES.set_forkserver_preload(PRELOADED)
    moments = random.Random(options.seed)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        bank = write_bank(Path(folder) / "bank.npz")
        for number in range(options.runs):
            variant = list(VARIANTS)[-1 - number % len(VARIANTS)]
            kills = (number + 1) * options.kills // options.runs - number * options.kills // options.runs
            command = fit_command(bank, variant, number, options.episodes)
            outcomes.append(run(command, Path(folder) / f"run{number}", Outcome(variant), kills, moments))
    options.output.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    header = ["variant", "kills", "of which: before training, training, writing", "weights", "history"]
    sys.stdout.write(markdown_table(header, [row_of(outcome) for outcome in outcomes]) + "\n")
    equal = all(outcome.same_weights and outcome.same_history for outcome in outcomes)
    sys.stdout.write(f"{sum(outcome.kills for outcome in outcomes)} kills; {'all equal' if equal else 'NOT EQUAL'}\n")
    sys.exit(not equal)


def row_of(outcome: Outcome) -> list[str]:
    """Give a run as a row of the table."""
    when = " / ".join(str(outcome.when.get(name, 0)) for name in ("before training", "training", "writing"))
    same = ["bitwise equal" if same else "NOT EQUAL" for same in (outcome.same_weights, outcome.same_history)]
    return [outcome.variant, str(outcome.kills), when, *same]


def write_bank(path: Path) -> Path:
    """Write a small bank of features."""
    rng = np.random.default_rng(0)
    features = 3 * rng.normal(size=(N_CLASSES, 1, DIMENSION)) + rng.normal(size=(N_CLASSES, PER_CLASS, DIMENSION))
    names = np.repeat([f"class {i}" for i in range(N_CLASSES)], PER_CLASS)
    write_features(path, FeatureSet(features.reshape(-1, DIMENSION).astype(np.float32), names))
    return path


def fit_command(bank: Path, variant: str, seed: int, episodes: int) -> Callable[[Path], list[str]]:
    """Give the command line of a training, whose folder is still to be named."""
    numbers = ("width=32", "novel_per_episode=4", "batch_size=120", "noise_dimension=8", "center=shots")
    changed = [word for number in numbers for word in ("--set", number)]
    words = ["fit", str(bank), "--method", variant, "--episodes", str(episodes), "--seed", str(seed), *changed]
    words += ["--device", "cpu", "--checkpoint-seconds", "0"]
    return lambda folder: [*words, "-o", str(folder)]


def fit(words: list[str]) -> None:
    """Run the command line in this process."""
    from cpaan.cli.app import app

    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        app(words)


def started(words: list[str]) -> BaseProcess:
    """Start the command line in a process of its own."""
    process = PROCESSES.Process(target=fit, args=(words,))
    process.start()
    return process


def finish(words: list[str]) -> None:
    """Run the command line to its end."""
    process = started(words)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"cpaan {' '.join(words)} ended with {process.exitcode}")


def run(
    command: Callable[[Path], list[str]], folder: Path, outcome: Outcome, kills: int, moments: random.Random
) -> Outcome:
    """Train once without and once with kills, and compare."""
    whole, killed = folder / "whole", folder / "killed"
    finish(command(whole))
    when: Counter[str] = Counter()
    while outcome.kills < kills:
        if not killed_once([*command(killed), "--resume"], killed, moments, when):
            shutil.rmtree(killed)  # it was done too soon: from the beginning again
            continue
        outcome.kills += 1
        outcome.resumed_from.append(newest(killed))
    finish([*command(killed), "--resume"])
    outcome.when = dict(when)
    outcome.same_weights = (whole / TENSORS).read_bytes() == (killed / TENSORS).read_bytes()
    histories = [json.loads((path / CONFIG).read_bytes())["history"] for path in (whole, killed)]
    outcome.same_history = histories[0] == histories[1]
    return outcome


def killed_once(command: list[str], folder: Path, moments: random.Random, when: Counter[str]) -> bool:
    """Start a training and kill it after a random time; False where it was done before that."""
    before = newest(folder)
    process = started(command)
    end = time.monotonic() + PATIENCE
    # Most of the time goes into starting Python: mostly wait until it trains, so that kills fall into training.
    if moments.random() < 0.9:
        while process.is_alive() and newest(folder) <= before and time.monotonic() < end:
            time.sleep(0.005)
        wait = moments.uniform(0, 0.6)
    else:
        wait = moments.uniform(0, LONGEST)
    time.sleep(wait)
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return False
    torn = any(folder.rglob(".*.part")) or any(not (path / CONFIG).exists() for path in checkpoints(folder))
    when["writing" if torn else "training" if newest(folder) > before else "before training"] += 1
    return True


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a training, torn ones included."""
    try:
        return list_checkpoints(folder / "checkpoints")
    except OSError:  # removed while it was looked at
        return []


def newest(folder: Path) -> int:
    """Give the episode of the newest checkpoint, 0 where there is none."""
    there = checkpoints(folder)
    return int(there[0].name) if there else 0


if __name__ == "__main__":
    main()
