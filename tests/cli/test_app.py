"""The command line: what it writes, what it prints, and what it refuses with exit code 2 and nothing written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import read_features, write_features

SMALL = ("width=16", "novel_per_episode=3", "batch_size=60")
FAST = ["--episodes", "3", "--device", "cpu", *(word for number in SMALL for word in ("--set", number))]


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def make_set(prefix: str, n_classes: int, per_class: int, seed: int, dimension: int = 5) -> FeatureSet:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 1, dimension))
    features = (centers + rng.normal(size=(n_classes, per_class, dimension))).reshape(-1, dimension)
    return FeatureSet(features.astype(np.float32), np.repeat([f"{prefix}{i}" for i in range(n_classes)], per_class))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_features(tmp_path / "base.npz", make_set("base", 6, 15, 0))
    return tmp_path / "base.npz"


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    write_features(tmp_path / "novel.npz", make_set("novel", 2, 3, 1))
    return tmp_path / "novel.npz"


@pytest.fixture
def model(tmp_path: Path, base: Path) -> Path:
    result = cpaan("fit", base, "-o", tmp_path / "model", *FAST)
    assert result.exit_code == 0, result.output
    return tmp_path / "model"


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    shown = " ".join(result.stderr.split())
    assert message in shown
    assert "Traceback" not in shown


def test_fit_augment_and_info_work_together(tmp_path: Path, model: Path, novel: Path) -> None:
    out = tmp_path / "synthetic.npz"
    result = cpaan("augment", model, novel, "-o", out, "--per-class", 7)
    assert result.exit_code == 0, result.output
    made = read_features(out)
    assert made.classes == ("novel0", "novel1")
    assert made.counts.tolist() == [7, 7]
    assert cpaan("augment", model, novel, "-o", out).exit_code == 0
    assert read_features(out).counts.tolist() == [12, 12]  # up to the base classes' 15
    described = cpaan("info", model).output
    for part in ("ccov-gan", "default", "width=16", "6 classes", "90 base examples", "5 dimensions", "MB"):
        assert part in described
    described = cpaan("info", out).output
    for part in ("24 examples × 5 dimensions", "novel0", "float32"):
        assert part in described


def test_the_seed_decides_what_is_made(tmp_path: Path, model: Path, novel: Path) -> None:
    made = []
    for number, seed in enumerate((1, 1, 2)):
        out = tmp_path / f"{number}.npz"
        assert cpaan("augment", model, novel, "-o", out, "--seed", seed).exit_code == 0
        made.append(read_features(out).features)
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


def test_fit_leaves_test_rows_out(tmp_path: Path) -> None:
    everything = make_set("base", 6, 15, 0)
    is_test = np.arange(len(everything)) % 15 >= 10
    write_features(tmp_path / "bank.npz", everything, is_test)
    assert cpaan("fit", tmp_path / "bank.npz", "-o", tmp_path / "model", *FAST).exit_code == 0
    assert "60 base examples" in cpaan("info", tmp_path / "model").output


def test_fit_trains_directly_with_novel_classes_at_hand(tmp_path: Path, novel: Path) -> None:
    write_features(tmp_path / "few.npz", make_set("base", 2, 15, 0))
    result = cpaan("fit", tmp_path / "few.npz", "--novel", novel, "-o", tmp_path / "model", *FAST)
    assert result.exit_code == 0, result.output
    assert cpaan("augment", tmp_path / "model", novel, "-o", tmp_path / "out.npz").exit_code == 0


@pytest.mark.parametrize("method", ["smote", "deviation-transfer", "empirical-bayes", "distribution-calibration"])
def test_any_method_that_makes_examples_can_be_fitted_described_and_used(
    tmp_path: Path, base: Path, novel: Path, method: str
) -> None:
    result = cpaan("fit", base, "-o", tmp_path / "model", "--method", method)
    assert result.exit_code == 0, result.output
    assert "6 classes" in cpaan("info", tmp_path / "model").output
    made = cpaan("augment", tmp_path / "model", novel, "-o", tmp_path / "out.npz", "--per-class", 4)
    assert made.exit_code == 0, made.output
    assert len(read_features(tmp_path / "out.npz")) == 8


def test_no_reservoir_keeps_summaries_only(tmp_path: Path, base: Path) -> None:
    assert cpaan("fit", base, "-o", tmp_path / "model", "--reservoir", 0, *FAST).exit_code == 0
    assert "Gaussian summaries only" in cpaan("info", tmp_path / "model").output


def test_fit_refuses_wrong_input_and_writes_nothing(tmp_path: Path, base: Path, novel: Path) -> None:
    model = tmp_path / "model"
    write_features(tmp_path / "few.npz", make_set("base", 3, 15, 0))
    assert_refused(cpaan("fit", tmp_path / "few.npz", "-o", model, *FAST), "at least 4 base classes")
    assert_refused(cpaan("fit", base, "-o", model, "--method", "gan"), "c-gan, ccyc-gan, cdeli-gan, ccov-gan")
    assert_refused(
        cpaan("fit", base, "-o", model, "--method", "linear"), "linear makes no examples; choose one of c-gan"
    )
    assert_refused(cpaan("fit", base, "-o", model, "--method", "gaussian", "--novel", novel), "leave --novel out")
    assert_refused(cpaan("fit", base, "-o", model, "--recipe", "slow"), "paper, quick")
    assert_refused(cpaan("fit", base, "-o", model, "--episodes", 0), "episodes must be")
    assert_refused(
        cpaan("fit", base, "-o", model, "--set", "speed=9"),
        "ccov-gan has no speed; there are adversarial_weight, base_draw",
    )
    assert_refused(cpaan("fit", base, "-o", model, "--set", "speed"), "NAME=VALUE")
    assert_refused(cpaan("fit", tmp_path / "nothing.npz", "-o", model), "nothing.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    assert_refused(cpaan("fit", tmp_path / "text.npz", "-o", model), "text.npz")
    np.savez(tmp_path / "nan.npz", features=[[1.0, np.nan]] * 4, labels=[0, 1, 2, 3], classes=list("abcd"))
    assert_refused(cpaan("fit", tmp_path / "nan.npz", "-o", model), "NaN or infinite")
    assert_refused(cpaan("fit", base, "-o", base), "it is a file")
    assert not model.exists()


def test_fit_does_not_replace_a_model_unasked(tmp_path: Path, base: Path, model: Path) -> None:
    before = (model / "config.json").read_bytes()
    assert_refused(cpaan("fit", base, "-o", model, *FAST, "--seed", 5), "holds a model already")
    assert (model / "config.json").read_bytes() == before
    assert cpaan("fit", base, "-o", model, *FAST, "--seed", 5, "--overwrite").exit_code == 0
    assert json.loads((model / "config.json").read_text())["parameters"]["random_state"] == 5
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    assert_refused(cpaan("fit", base, "-o", other, *FAST, "--overwrite"), "not empty and holds no model")


def test_augment_refuses_wrong_input_and_writes_nothing(tmp_path: Path, model: Path, base: Path, novel: Path) -> None:
    out = tmp_path / "out.npz"
    assert_refused(cpaan("augment", model, base, "-o", out), "both base and novel")
    assert_refused(cpaan("augment", model, novel, "-o", out, "--per-class", 0), "per_class must be")
    assert_refused(cpaan("augment", novel, novel, "-o", out), "is a file; a model is a folder")
    assert_refused(cpaan("augment", model, novel, "-o", tmp_path / "no" / "out.npz"), "does not exist")
    assert_refused(cpaan("augment", model, novel, "-o", tmp_path), "it is a folder")
    write_features(tmp_path / "wide.npz", make_set("novel", 2, 3, 1, dimension=7))
    assert_refused(cpaan("augment", model, tmp_path / "wide.npz", "-o", out), "7 dimensions and base features 5")
    write_features(tmp_path / "many.npz", make_set("novel", 2, 30, 1))
    assert_refused(cpaan("augment", model, tmp_path / "many.npz", "-o", out), "--per-class")
    tensors = model / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-10])
    assert_refused(cpaan("augment", model, novel, "-o", out), "truncated or damaged")
    assert_refused(cpaan("info", tmp_path / "nowhere"), "does not exist")
    assert not out.exists()


def test_help_names_the_commands_and_does_not_wait_for_torch() -> None:
    shown = cpaan("--help").output
    for command in ("demo", "fit", "augment", "info"):
        assert command in shown
    assert not loads_torch("--help")


def test_info_of_features_does_not_wait_for_torch(base: Path) -> None:
    assert not loads_torch("info", str(base))


def loads_torch(*arguments: str) -> bool:
    program = "\n".join(
        [
            "import sys",
            "from cpaan.cli.app import app",
            f"try: app({list(arguments)!r})",
            "except SystemExit: print('torch' in sys.modules)",
        ]
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1] == "True"


def test_the_version_is_the_packages() -> None:
    from cpaan import __version__

    assert cpaan("--version").output.strip() == f"cpaan {__version__}"
