"""The same seed and number of threads give the same bits in every process, whatever was computed there before."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cpaan import CPAAN
from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import write_features
from cpaan.methods import CLASSIFIERS, Settings, augmenter_classes, make_classifier, set_numbers

STEPS: dict[str, Any] = {"episodes": 3, "iterations": 3, "base_episodes": 3, "width": 8, "centroids": 4}
CPAAN_SIZES = {"batch_size": 40, "novel_per_episode": 2, "rounds": 1}


def classes(n_classes: int, per_class: int, dimension: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = 4 * rng.normal(size=(n_classes, 1, dimension)) + rng.normal(size=(n_classes, per_class, dimension))
    return X.reshape(-1, dimension), np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


def small(estimator: Any) -> Any:
    """Shorten the training of an estimator, whatever its numbers are called."""
    numbers = {**STEPS, **(CPAAN_SIZES if isinstance(estimator, CPAAN) else {}), "device": "cpu", "random_state": 5}
    return set_numbers(estimator, numbers, strict=False)


def bits_of_augmenter(kind: Any) -> bytes:
    # Wide enough for torch to divide sums among threads.
    made, _ = small(kind()).fit(*classes(8, 10, 40, seed=0)).augment(*classes(3, 2, 40, seed=1), per_class=30)
    found: bytes = made.tobytes()
    return found


def bits_of_classifier(name: str) -> bytes:
    classifier, base = small(make_classifier(name, Settings(device="cpu"))), classes(8, 10, 40, seed=0)
    if hasattr(classifier, "meta_fit"):
        classifier.meta_fit(*base)
    found: bytes = classifier.fit(*base).scores(base[0]).tobytes()
    return found


def digests(*, backwards: bool) -> dict[str, str]:
    """Give a digest of what every augmenter and classifier gives."""
    work: list[tuple[str, Any, Any]] = [(kind.__name__, bits_of_augmenter, kind) for kind in augmenter_classes()]
    work += [(name, bits_of_classifier, name) for name in CLASSIFIERS]
    return {name: hashlib.sha256(bits(what)).hexdigest() for name, bits, what in work[:: -1 if backwards else 1]}


def in_a_process(order: str, threads: int, hash_seed: int) -> subprocess.Popen[str]:
    environment = {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    path = os.pathsep.join(filter(None, [*sys.path, str(Path(__file__).parent)]))
    return subprocess.Popen(
        [sys.executable, __file__, order],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_processes_give_the_same_bits_in_any_order_of_work(threads: int) -> None:
    processes = [in_a_process("forwards", threads, 1), in_a_process("backwards", threads, 2)]
    first, second = (json.loads(process.communicate(timeout=1800)[0]) for process in processes)
    assert first.keys() == {*(kind.__name__ for kind in augmenter_classes()), *CLASSIFIERS}
    assert {name: digest for name, digest in first.items() if second[name] != digest} == {}
    assert len(set(first.values())) == len(first)


def test_bench_writes_the_same_numbers_with_any_number_of_jobs(tmp_path: Path) -> None:
    methods = ("ccov-gan", "feature-hallucination")
    X, y = classes(12, 10, 5, seed=0)
    write_features(tmp_path / "bank.npz", FeatureSet(X.astype(np.float32), y), np.arange(len(y)) % 10 >= 7)
    names = [f"0-{i}" for i in range(12)]
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:8], "novel": names[8:]}))
    common = ["bench", tmp_path / "bank.npz", "--setup", tmp_path / "setup.json", "--methods", ",".join(methods)]
    common += ["--shots", "1", "--trials", 2, "--device", "cpu"]  # bits are promised on a CPU
    common += [part for text in ("episodes=2", "width=8", "rounds=1", "iterations=2") for part in ("--set", text)]
    for jobs in (1, 2):
        arguments = [*common, "--jobs", jobs, "-o", tmp_path / f"with-{jobs}"]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
    results = [(tmp_path / f"with-{jobs}" / "results.csv").read_text().splitlines() for jobs in (1, 2)]
    place = results[0][0].split(",").index("seconds")
    tables = [[line.split(",")[:place] + line.split(",")[place + 1 :] for line in lines] for lines in results]
    assert sorted(tables[0]) == sorted(tables[1])
    for method in methods:
        models = [tmp_path / f"with-{jobs}" / "models" / method / "model.safetensors" for jobs in (1, 2)]
        assert models[0].read_bytes() == models[1].read_bytes()


if __name__ == "__main__":
    json.dump(digests(backwards=sys.argv[1] == "backwards"), sys.stdout)
