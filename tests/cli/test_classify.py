"""The commands from base classes to labels: fit with a setup, add-classes, predict."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cpaan import LowShotClassifier
from cpaan.cli.app import app
from cpaan.data.feature_set import FeatureSet
from cpaan.data.files import read_features, write_features
from cpaan.data.hdf5 import write_hdf5

FAST = ["--device", "cpu", "--episodes", 2, "--set", "width=8", "--set", "novel_per_episode=2"]
CLOSED_FORM = ["--method", "empirical-bayes"]


def cpaan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> Result:
    result = cpaan(*arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a bank of ten classes, two of them novel, and a few examples of these."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = [f"kind {i}" for i in range(10)]
    features = 4 * rng.normal(size=(10, 1, 5)) + rng.normal(size=(10, 15, 5))
    everything = FeatureSet(features.reshape(-1, 5).astype(np.float32), np.repeat(names, 15))
    is_test = np.arange(150) % 15 >= 10
    write_features("bank.npz", everything, is_test)
    write_features("test.npz", everything.take(is_test))
    train = everything.take(~is_test)
    write_features("new.npz", train.select(names[8:9]).take([0, 1, 2]))
    write_features("more.npz", train.select(names[8:]).take([3, 10, 11]))
    np.savez("bare.npz", X=everything.features)
    np.save("bare.npy", everything.features)
    write_hdf5("bare.h5", everything.features, everything.labels)
    Path("setup.json").write_text(json.dumps({"base": names[:8], "novel": names[8:]}))
    return tmp_path


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_from_a_bank_to_labels(here: Path) -> None:
    assert "8 base classes of 80 examples" in done("fit", "bank.npz", "--setup", "setup.json", "-o", "M", *FAST).output
    first = done("add-classes", "M", "new.npz", "-o", "M2").output
    assert first == "M2: 1 class added, 3 examples in all; it knows 9 classes\n"
    again = done("add-classes", "M2", "more.npz", "-o", "M2", "--overwrite").output
    assert again == "M2: 1 class added, further examples of 1 class, 3 examples in all; it knows 10 classes\n"
    assert done("predict", "M2", "test.npz", "-o", "labels.csv").output.startswith("labels.csv: 50 examples, of ")
    rows = table("labels.csv")
    assert list(rows[0]) == ["row", "label"]
    assert [row["row"] for row in rows] == [str(i) for i in range(50)]
    truth = read_features("test.npz").names
    found = np.array([row["label"] for row in rows])
    assert (found == truth).mean() > 0.7
    expected = LowShotClassifier.load("M2").predict(read_features("test.npz").features)
    np.testing.assert_array_equal(found, expected)
    done("augment", "M", "new.npz", "-o", "made.npz")
    assert read_features("made.npz").counts.tolist() == [7]
    described = done("info", "M2").output
    for part in ("NearestPrototype, 10 classes", "means of base classes", "kind 8, kind 9", "ccov-gan"):
        assert part in described
    done("predict", "M", "test.npz", "-o", "labels.csv")
    assert {row["label"] for row in table("labels.csv")} <= {f"kind {i}" for i in range(8)}


def test_columns_of_top_and_proba(here: Path) -> None:
    done("fit", "bank.npz", "--setup", "setup.json", "-o", "M", *CLOSED_FORM, "--classifier", "linear")
    done("add-classes", "M", "new.npz", "-o", "M2")
    model: Any = LowShotClassifier.load("M2")
    features = read_features("test.npz").features
    probabilities = model.predict_proba(features)
    done("predict", "M2", "test.npz", "-o", "top.csv", "--top", 3)
    rows = table("top.csv")
    assert list(rows[0]) == ["row", "rank", "label", "probability"]
    assert len(rows) == 150
    for row in rows:
        example, rank = int(row["row"]), int(row["rank"])
        place = np.argsort(-probabilities[example], kind="stable")[rank - 1]
        assert row["label"] == model.classes_[place]
        assert float(row["probability"]) == pytest.approx(probabilities[example, place], rel=1e-5)
    done("predict", "M2", "test.npz", "-o", "all.csv", "--proba")
    rows = table("all.csv")
    assert list(rows[0]) == ["row", "label", *(f"p({name})" for name in model.classes_)]
    found = [[float(row[f"p({name})"]) for name in model.classes_] for row in rows]
    np.testing.assert_allclose(found, probabilities, rtol=1e-5, atol=1e-300)


def test_blocks_of_rows_follow_one_another(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done("fit", "bank.npz", "-o", "M", *CLOSED_FORM)
    for options in ([], ["--top", 2], ["--proba"]):
        done("predict", "M", "test.npz", "-o", "whole.csv", *options)
        monkeypatch.setattr("cpaan.cli.classify.BLOCK_ROWS", 7)
        done("predict", "M", "test.npz", "-o", "parts.csv", *options)
        monkeypatch.undo()
        monkeypatch.chdir(here)
        assert table("parts.csv") == table("whole.csv")


@pytest.mark.parametrize("name", ["bare.npz", "bare.npy", "bare.h5"])
def test_features_need_no_labels(here: Path, name: str) -> None:
    done("fit", "bank.npz", "-o", "M", *CLOSED_FORM)
    done("predict", "M", "bank.npz", "-o", "labels.csv")
    done("predict", "M", name, "-o", "same.csv")
    assert table("same.csv") == table("labels.csv")
    assert len(table("same.csv")) == 150


def test_objects_for_programs(here: Path) -> None:
    def object_of(*arguments: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(done(*arguments, "--json").stdout)
        return found

    fit = object_of("fit", "bank.npz", "--setup", "setup.json", "-o", "M", *CLOSED_FORM)
    assert fit == {"output": "M", "method": "empirical-bayes", "base_classes": 8, "base_examples": 80}
    added = object_of("add-classes", "M", "new.npz", "-o", "M2")
    assert added == {"output": "M2", "added": ["kind 8"], "extended": [], "examples": 3, "classes": 9}
    assert object_of("add-classes", "M2", "more.npz", "-o", "M3")["extended"] == ["kind 8"]
    predicted = object_of("predict", "M2", "test.npz", "-o", "labels.csv")
    assert predicted["columns"] == ["row", "label"]
    assert sum(predicted["predicted"].values()) == predicted["examples"] == 50
    made = object_of("augment", "M", "new.npz", "-o", "made.npz")
    assert made == {"output": "made.npz", "examples": 7, "classes": ["kind 8"]}
    assert object_of("info", "M2")["added"] == "kind 8"
    assert object_of("info", "bank.npz")["classes"] == "10, of 15 to 15 examples"


def test_fit_keeps_what_is_asked_for(here: Path) -> None:
    def kept(*arguments: object) -> str:
        facts = json.loads(done("fit", "bank.npz", "-o", "M", "--overwrite", "--json", *arguments).stdout)
        assert facts["base_classes"] == 10
        described: str = json.loads(done("info", "M", "--json").stdout)["kept for it"]
        return described

    assert kept(*CLOSED_FORM) == "means of base classes"
    assert kept(*CLOSED_FORM, "--classifier", "linear") == "100 base examples"
    assert kept(*CLOSED_FORM, "--classifier", "linear", "--keep", 2) == "20 base examples"
    assert kept(*FAST, "--reservoir", 0, "--classifier", "linear") == "means of base classes"


def test_what_cannot_be_used_is_refused(here: Path) -> None:
    done("fit", "bank.npz", "--setup", "setup.json", "-o", "M", *CLOSED_FORM)
    assert_refused(cpaan("add-classes", "M", "bank.npz", "-o", "M2"), "already base classes: 'kind 0'")
    assert_refused(cpaan("add-classes", "M", "new.npz", "-o", "M"), "holds a model already")
    write_features("wide.npz", FeatureSet(np.ones((2, 7)), ["a", "b"]))
    assert_refused(cpaan("add-classes", "M", "wide.npz", "-o", "M2"), "7 features")
    write_features("numbers.npz", FeatureSet(np.ones((2, 5)), [1, 2]))
    assert_refused(cpaan("add-classes", "M", "numbers.npz", "-o", "M2"), "are text and the new ones whole numbers")
    assert not Path("M2").exists()
    assert_refused(cpaan("predict", "M", "wide.npz", "-o", "out.csv"), "7 dimensions and the model 5")
    assert_refused(cpaan("predict", "M", "test.npz", "-o", "out.csv", "--top", 2, "--proba"), "not both")
    assert_refused(cpaan("predict", "M", "test.npz", "-o", "out.csv", "--top", 0), "at least 1")
    assert_refused(cpaan("predict", "M", "nothing.npz", "-o", "out.csv"), "there is no file nothing.npz")
    assert_refused(cpaan("predict", "nowhere", "test.npz", "-o", "out.csv"), "does not exist")
    assert_refused(cpaan("predict", "M", "test.npz", "-o", "."), "it is a folder")
    np.savez("labels.npz", y=[1, 2])
    assert_refused(cpaan("predict", "M", "labels.npz", "-o", "out.csv"), "no array called features")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert_refused(cpaan("predict", "M", "objects.npy", "-o", "out.csv"), "holds an array of Python objects")
    np.savez("nan.npz", X=[[1.0, np.nan, 0, 0, 0]])
    assert_refused(cpaan("predict", "M", "nan.npz", "-o", "out.csv"), "NaN")
    assert not Path("out.csv").exists()
    assert_refused(cpaan("fit", "bank.npz", "--part", 1, "-o", "M3", *CLOSED_FORM), "give that with --setup")
    assert_refused(cpaan("fit", "bank.npz", "-o", "M3", "--classifier", "smote"), "unknown classifier 'smote'")
    assert not Path("M3").exists()


def test_a_model_for_given_novel_classes_has_no_classifier(here: Path) -> None:
    write_features("few.npz", read_features("bank.npz").select(["kind 0", "kind 1"]))
    done("fit", "few.npz", "--novel", "new.npz", "-o", "M", *FAST)
    assert_refused(cpaan("predict", "M", "test.npz", "-o", "out.csv"), "without a classifier")
