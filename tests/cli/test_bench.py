import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import read_bank, write_features
from cpaan.data.hdf5 import write_hdf5

FAST = ["--set", "episodes=2", "--set", "width=8", "--set", "novel_per_episode=3", "--set", "batch_size=60"]


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(12)]
    features = 3 * rng.normal(size=(12, 1, 5)) + rng.normal(size=(12, 15, 5))
    everything = FeatureSet(features.reshape(-1, 5).astype(np.float32), np.repeat(names, 15))
    write_features(tmp_path / "bank.npz", everything, np.arange(180) % 15 >= 10)
    (tmp_path / "setup.json").write_text(json.dumps({"base": names[:7], "novel": names[7:], "note": "ignored"}))
    return tmp_path / "bank.npz"


def test_bench_writes_results_and_prints_the_tables(bank: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["bench", bank, "--setup", tmp_path / "setup.json", "--methods", "nearest-prototype,linear,ccov-gan"]
    arguments += ["--shots", "1,5", "--trials", 2, "-o", run, *FAST]
    result = cpaan(*arguments)
    assert result.exit_code == 0, result.output
    for part in ("LSL K=1", "GLSL K=5", "**", "Difference to nearest-prototype", "ccov-gan"):
        assert part in result.stdout
    with (run / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 * 2 * 2
    assert all(0 <= float(row["top1"]) <= float(row["top5"]) <= 100 for row in rows)
    again = cpaan(*arguments, "--from-paper")
    assert again.exit_code == 0
    assert "48.4" in again.stdout
    assert result.stdout in again.stdout
    assert cpaan("bench", "-o", run).stdout == result.stdout
    cells = json.loads(cpaan("table", run, "--measure", "top1", "--json").stdout)
    assert len(cells) == 3 * 2 * 2
    chosen = [row for row in rows if (row["method"], row["setting"], row["shots"]) == ("linear", "GLSL", "5")]
    mean = sum(float(row["top1"]) for row in chosen) / len(chosen)
    found = [c for c in cells if (c["method"], c["setting"], c["shots"]) == ("linear", "GLSL", 5)]
    assert [cell["mean"] for cell in found] == [pytest.approx(mean)]
    assert json.loads(cpaan("bench", "-o", run, "--measure", "top1", "--json").stdout) == cells
    assert_refused(cpaan("bench", "-o", run, "--from-paper", "--json"), "leave --json or --from-paper out")


def test_several_runs_make_one_table_with_a_column_for_the_representation(bank: Path, tmp_path: Path) -> None:
    common = ["bench", bank, "--setup", tmp_path / "setup.json", "--methods", "nearest-prototype,linear"]
    common += ["--shots", "1", "--trials", 2]
    assert cpaan(*common, "-o", tmp_path / "one").exit_code == 0
    assert cpaan(*common, "--representation", "PN", "--normalize", "l2", "-o", tmp_path / "two").exit_code == 0
    shown = cpaan("table", tmp_path / "one", tmp_path / "two", "--reference", "linear").stdout
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if "|" in line]
    assert lines[0][:3] == ["method", "representation", "LSL K=1"]
    entries = [(line[0], line[1]) for line in lines[2:6]]
    assert entries == [(m, r) for r in ("bank", "PN") for m in ("nearest-prototype", "linear")]
    # Differences are taken within a representation.
    single = cpaan("table", tmp_path / "two", "--reference", "linear").stdout
    assert "representation" not in single.replace("on PN", "")
    assert lines[-1][2:] == [cell.strip() for cell in single.splitlines()[-1].split("|")[2:-1]]
    assert_refused(cpaan("table", tmp_path), "holds no benchmark run")
    assert_refused(cpaan("table", tmp_path / "one", "--measure", "top2"), "top1 or top5")


def test_a_suffix_normalizes_as_the_option_does(bank: Path, tmp_path: Path) -> None:
    common = ["bench", bank, "--setup", tmp_path / "setup.json", "--shots", "1", "--trials", 2]
    one = cpaan(*common, "--methods", "nearest-prototype+l2", "-o", tmp_path / "one")
    two = cpaan(*common, "--methods", "nearest-prototype", "--normalize", "l2", "-o", tmp_path / "two")
    assert one.exit_code == two.exit_code == 0
    assert one.stdout == two.stdout
    assert_refused(
        cpaan(*common, "--methods", "linear+l2", "--normalize", "none", "-o", tmp_path / "no"), "one normalization"
    )


def test_methods_are_listed_for_people_and_programs() -> None:
    named = {"nearest-prototype", "linear", "c-gan", "ccyc-gan", "cdeli-gan", "ccov-gan"}
    assert named <= {line.split()[0] for line in cpaan("methods").stdout.splitlines()}
    assert named <= {method["name"] for method in json.loads(cpaan("methods", "--json").stdout)}


def test_the_published_table_can_be_printed_alone() -> None:
    shown = cpaan("bench", "--from-paper").stdout
    row = next(line for line in shown.splitlines() if "cCov-GAN" in line and "PN" in line)
    assert [cell.strip() for cell in row.split("|")[4:9]] == [
        "**48.4**",
        "**59.3**",
        "**70.2**",
        "**76.5**",
        "**79.3**",
    ]


def test_bench_reads_the_files_of_the_imagenet_benchmark(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(10, 1, 5))
    labels = np.repeat(np.arange(10), 12)
    for name in ("train", "test"):
        features = (centers + rng.normal(size=(10, 12, 5))).reshape(-1, 5).astype(np.float32)
        write_hdf5(tmp_path / f"{name}.hdf5", features, labels)
    index = {"base_classes": [0, 1, 2, 3, 4, 5, 6], "label_names": [f"n{c}" for c in range(10)]}
    index |= {"base_classes_1": [0, 1, 2], "novel_classes_1": [7], "base_classes_2": [3, 4, 5, 6, 0]}
    (tmp_path / "label_idx.json").write_text(json.dumps(index | {"novel_classes_2": [8, 9]}))
    splits: list[object] = []
    for trial in range(2):
        rows = [rng.permutation(np.flatnonzero(labels == c))[:5].tolist() for c in range(10)]
        path = tmp_path / f"splitfile_{trial + 1}.json"
        path.write_text(json.dumps(rows))
        splits += ["--splits", path]
    common = ["bench", tmp_path / "train.hdf5", "--test", tmp_path / "test.hdf5", "--part", 2, *splits]
    common += ["--setup", tmp_path / "label_idx.json", "--methods", "nearest-prototype,c-gan", "--shots", "1,5", *FAST]
    result = cpaan(*common, "--trials", 2, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "run" / "results.csv").read_text().splitlines()) == 1 + 2 * 2 * 2 * 2
    assert_refused(cpaan(*common, "--trials", 3, "-o", tmp_path / "more"), "split file")
    assert not (tmp_path / "more").exists()


def test_bench_refuses_wrong_input_and_writes_nothing(bank: Path, tmp_path: Path) -> None:
    setup, run = tmp_path / "setup.json", tmp_path / "run"
    common = ["bench", bank, "--setup", setup, "-o", run]
    assert_refused(cpaan(*common, "--methods", "magic"), "unknown method 'magic'")
    assert_refused(cpaan(*common, "--methods", "linear", "--shots", "one"), "--shots takes whole numbers")
    assert_refused(cpaan(*common, "--methods", "linear", "--shots", "11"), "too few to draw 11 shots")
    assert_refused(cpaan(*common, "--methods", "linear", "--reference", "c-gan"), "is not one of the methods")
    assert_refused(
        cpaan(*common, "--methods", "c-gan", "--set", "speed=1"),
        "c-gan has no speed; there are adversarial_weight, base_draw",
    )
    assert_refused(cpaan(*common, "--methods", "c-gan", "--shots", "1", "--recipe", "slow"), "unknown recipe 'slow'")
    assert_refused(cpaan(*common, "--methods", "c-gan", "--shots", "1", "--set", "episodes=0"), "episodes must be")
    assert_refused(cpaan(*common, "--methods", "maml", "--shots", "1", "--set", "episodes=0"), "episodes must be")
    assert_refused(cpaan(*common, "--methods", "linear", "--shots", "0"), "must be at least 1; got 0")
    assert_refused(cpaan(*common, "--measure", "top3"), "top1 or top5")
    inside = ["bench", bank, "--setup", setup, "--methods", "linear", "--shots", "1", "-o", setup / "run"]
    assert_refused(cpaan(*inside), "cannot write to")
    assert_refused(cpaan("bench", bank, "-o", run), "--setup")
    assert_refused(cpaan("bench"), "give a bank")
    setup.write_text(json.dumps({"base": ["c0", "c1", "c2", "c3"], "novel": ["c3", "c4"]}))
    assert_refused(cpaan(*common, "--methods", "linear", "--shots", "1"), "c3")
    setup.write_text(json.dumps({"base": ["c0", "c1"], "novel": ["zebra"]}))
    assert_refused(cpaan(*common, "--methods", "linear", "--shots", "1"), "zebra")
    setup.write_text(json.dumps({"base": ["c0", "c1", "c2", "c3"], "novel": ["c4"]}))
    write_features(tmp_path / "train.npz", read_bank(bank).train)
    untested = ["bench", tmp_path / "train.npz", *common[2:], "--methods", "linear", "--shots", "1"]
    assert_refused(cpaan(*untested), "is_test")
    assert not run.exists()
