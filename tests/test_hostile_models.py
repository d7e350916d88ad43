"""Model folders, runs and images that were made to do harm end in an InputError that names them."""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cpaan import CPAAN, DeviationTransfer, LowShotClassifier, PooledGaussian
from cpaan.augmenters.feature_imagination import FeatureImagination
from cpaan.classifiers.matching import MatchingNetwork
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.errors import InputError
from cpaan.evaluation.run_folder import RunFolder
from cpaan.evaluation.sample import part_path, read_sample
from cpaan.methods import load_augmenter, set_numbers
from cpaan.reporting.results import read_runs
from cpaan.representations import images as image_index
from cpaan.representations.backbone import Backbone, ResNet10
from cpaan.representations.images import index_images
from cpaan.representations.loading import ImageLoader
from cpaan.representations.recipe import make_backbone_recipe


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = [f"tree {number % 8}" for number in range(40)]
NEW = np.ones((2, 3), dtype=np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    few: dict[str, Any] = {"episodes": 1, "width": 4, "noise_dimension": 2, "novel_per_episode": 4, "center": "shots"}
    cpaan(recipe="quick", random_state=0, device="cpu", **few).fit(X, Y).save(folder / "cpaan")
    DeviationTransfer(random_state=0).fit(X, Y).save(folder / "deviations")
    imagination = FeatureImagination(random_state=0, device="cpu", episodes=1, ways=3, shots=(1,), queries=2)
    imagination.fit(X, Y).save(folder / "imagination")
    matching = MatchingNetwork(random_state=0, device="cpu", episodes=1, ways=3, shots=(1,), queries=2, width=4)
    matching.meta_fit(X, Y).save(folder / "matching")
    low_shot = LowShotClassifier(augmenter=PooledGaussian(random_state=0), classifier=NearestPrototype())
    low_shot.fit(X, Y).add_classes(NEW, ["new"] * 2).save(folder / "low-shot")
    recipe = make_backbone_recipe("small", size=8, width=1)
    Backbone(ResNet10(stem="small", width=1), "resnet10", recipe, ("elm", "oak"), {}).save(folder / "backbone")
    return folder


def spoilt(
    model: Path, folder: Path, *, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> Path:
    """Copy a model with other entries, given by their path, and a checksum that is right."""
    shutil.copytree(model, folder / "model", dirs_exist_ok=True)
    path = folder / "model"
    if (path / "classifier").is_dir():
        path = path / "classifier"
    content, found = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    save_file({**found, **(tensors or {})}, path / "model.safetensors")
    content["sha256"] = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    for place, value in (config or {}).items():
        *steps, last = place.split("/")
        part = content
        for step in steps:
            part = part[step]
        part[last] = value
    (path / "config.json").write_text(json.dumps(content))
    return folder / "model"


def augment(folder: Path) -> Any:
    return load_augmenter(folder, device="cpu").augment(NEW, ["new"] * 2)


def refused(read: Callable[[Path], Any], folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(folder)
    assert folder.name in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format_version": {"a": 1}}, "format version"),
        ({"kind": None}, "has no kind"),
        ({"sha256": 5}, "has no sha256"),
        ({"parameters": "x"}, "damaged model"),
        ({"parameters/os.system": 1}, "damaged model"),
        ({"parameters/random_state": {"tuple": 1}}, "damaged model"),
        ({"classes": 3}, "damaged model"),
        ({"classes": [["a"]] * 8}, "not a class name"),
        ({"classes": ["a"] * 8}, "distinct names"),
        ({"classes": [float("nan"), *"abcdefg"]}, "not a class name"),
        ({"classes": list("abc")}, "does not fit the rest"),
        ({"dimension": 10**12}, "does not fit"),
        ({"dimension": "3"}, "dimension is '3'"),
        ({"average_size": 10**12}, "more examples of a class than are ever made"),
        ({"parameters/per_class": 10**12}, "more examples of a class than are ever made"),
        ({"average_size": None}, "average_size is None"),
        ({"parameters/neighborhood": "x"}, "unknown neighborhood"),
    ],
)
def test_configurations_that_are_none(models: Path, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    assert len(augment(models / "deviations")[0])
    refused(augment, spoilt(models / "deviations", tmp_path, config=config), message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"numbers/width": 10**9}, "network of other sizes"),
        ({"dimension": 10**6}, "does not fit the rest"),
        ({"numbers/negative_slope": {}}, "negative_slope"),
        ({"scale": 0}, "scale is 0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"variant": "x"}, "unknown variant"),
        ({"numbers/neighborhood": "x"}, "neighborhood must be one of"),
        ({"center/part": "os.system"}, "unknown part 'os.system'"),
        ({"center/part": "Gaussian"}, "another kind of part"),
        ({"parameters/recipe": {"part": "Recipe", "parameters": {}}}, "damaged model"),
        ({"size": 10**9}, "larger than novel classes are ever made"),
    ],
)
def test_configurations_of_networks(models: Path, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    assert len(augment(models / "cpaan")[0])
    refused(augment, spoilt(models / "cpaan", tmp_path, config=config), message)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"base.prototypes": torch.zeros(8, 4)}, "does not fit the rest"),
        ({"base.prototypes": torch.full((8, 3), torch.nan)}, "is NaN or infinite"),
        ({"base.factors": torch.zeros(8, 3, 3)}, "float32 of shape"),
        ({"reservoir.counts": torch.full((8,), 10**12)}, "must add up to 40 rows"),
        ({"reservoir.counts": torch.tensor([45, -5] + [0] * 6)}, "must add up to 40 rows"),
        ({"networks.other": torch.zeros(1)}, "network of other sizes"),
    ],
)
def test_tensors_that_do_not_fit(models: Path, tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    refused(augment, spoilt(models / "cpaan", tmp_path, tensors=tensors), message)


def test_networks_are_not_built_larger_than_their_weights(models: Path, tmp_path: Path) -> None:
    refused(augment, spoilt(models / "imagination", tmp_path, config={"dimension": 10**6}), "does not fit the rest")

    def load(folder: Path) -> Any:
        return MatchingNetwork.load(folder, device="cpu")

    assert load(models / "matching").meta_dimension_ == 3
    refused(load, spoilt(models / "matching", tmp_path, config={"dimension": 10**6}), "network of other sizes")
    refused(load, spoilt(models / "matching", tmp_path, config={"parameters/context_width": 10**8}), "other sizes")
    refused(load, spoilt(models / "matching", tmp_path, config={"parameters/context_width": "x"}), "damaged model")
    Backbone.load(models / "backbone")
    refused(Backbone.load, spoilt(models / "backbone", tmp_path, config={"numbers/width": 10**5}), "other sizes")
    refused(Backbone.load, spoilt(models / "backbone", tmp_path, config={"numbers": []}), "damaged backbone")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"label_type": "<U90000000"}}, "classes cannot be"),
        ({"config": {"label_type": "<U900000000"}}, "damaged classifier"),
        ({"config": {"label_type": False}}, "damaged classifier"),
        ({"config": {"dimension": 4}}, "does not fit the rest"),
        ({"config": {"added": ["tree 0"]}}, "named twice"),
        ({"config": {"feature_names": ["a"]}}, "1 names of 3 features"),
        ({"config": {"keep": {}}}, "keep is"),
        ({"config": {"classifier/kind": "os"}}, "does not know"),
        ({"config": {"classifier/numbers": {"predict": 1}}}, "unexpected attribute 'predict'"),
        ({"config": {"classifier/numbers": {"n_features_in_": 5}}}, "damaged classifier"),
        ({"tensors": {"base.kept": torch.full((8,), 10**12)}}, "must add up to 0 rows"),
        ({"tensors": {"base.counts": torch.full((8,), -1)}}, "no examples"),
        ({"tensors": {"classifier.prototypes_": torch.zeros(3, 3)}}, "something else than a score"),
        ({"tensors": {"shots.features": torch.zeros(2, 7)}}, "another number of features"),
        ({"tensors": {"shots.labels": torch.tensor([5, 5])}}, "labels must be from 0"),
    ],
)
def test_low_shot_classifiers(models: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    def load(folder: Path) -> Any:
        return LowShotClassifier.load(folder, device="cpu")

    assert load(models / "low-shot").predict(NEW).tolist() == ["new", "new"]
    refused(load, spoilt(models / "low-shot", tmp_path, **change), message)


def test_tensors_that_are_no_safetensors(models: Path, tmp_path: Path) -> None:
    folder = spoilt(models / "deviations", tmp_path)
    content = b"\xff" * 8 + b"pickle"
    (folder / "model.safetensors").write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sha256": hashlib.sha256(content).hexdigest()}))
    refused(augment, folder, "damaged")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    refused(augment, folder, "no readable")
    (folder / "config.json").write_bytes(b"[" * 10**5)
    refused(augment, folder, "nested deeper")


def run_folder(path: Path, methods: Any = ("linear",)) -> RunFolder:
    run = RunFolder(path)
    run.begin({"methods": methods, "representation": "trees"}, {})
    run.append([{"method": "linear", "setting": "LSL", "shots": 1, "trial": 0, "top1": 50.0, "top5": 80.0}])
    return run


@pytest.mark.parametrize(
    "row",
    [
        *("3", "[]", "{}", '{"method": "linear"}', '{"method": {}, "setting": "LSL", "shots": 1, "trial": 0}'),
        '{"method": "a", "setting": "LSL", "shots": "1", "trial": 0}',
        '{"method": "a", "setting": "LSL", "shots": 1, "trial": 0, "top1": "x"}',
        '{"method": "a", "setting": "LSL", "shots": 1, "trial": 0, "other": []}',
    ],
)
def test_results_that_are_none(tmp_path: Path, row: str) -> None:
    run = run_folder(tmp_path / "run")
    with run.results.open("ab") as file:
        file.write(b'{"method": "torn\n\xff\xfe\n' + b"[" * 10**5 + b"\n")
    assert len(run.rows()) == 1  # lines torn by a crash are left out
    with run.results.open("a") as file:
        file.write(row + "\n")
    with pytest.raises(InputError, match=r"results\.jsonl is damaged: line 5"):
        run.rows()


@pytest.mark.parametrize("method", ["../../secret", "/etc/passwd", "..", {"a": 1}])
def test_names_in_a_run_stay_in_its_folder(tmp_path: Path, method: Any) -> None:
    run = run_folder(tmp_path / "run", ["linear", method])
    refused(lambda _: read_runs([run.path]), run.path, "not a plain name")


def test_samples_are_not_believed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a plain name"):
        part_path(tmp_path, "../x")
    (tmp_path / "sample").mkdir()
    np.savez_compressed(part_path(tmp_path, "real"), real=np.zeros((2**24, 1), dtype=np.float32))
    with pytest.raises(InputError, match=r"real\.npz is damaged or made to do harm"):
        read_sample(tmp_path, ())
    np.savez(part_path(tmp_path, "real"), real=np.zeros(3))
    with pytest.raises(InputError, match=r"real\.npz is damaged; remove it"):
        read_sample(tmp_path, ())


def test_image_files_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oak").mkdir()
    (tmp_path / "oak" / "1.jpg").symlink_to("/dev/zero")
    monkeypatch.setattr(image_index, "MOST_IMAGE_BYTES", 100)
    (tmp_path / "oak" / "2.jpg").write_bytes(bytes(101))
    loader = ImageLoader(index_images(tmp_path), size=8)
    for row, message in enumerate(("a device or a pipe", "more than 0 MiB")):
        with pytest.raises(InputError, match=message):
            list(loader.batches([row], 1))


def test_a_long_header_in_a_tar_is_not_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 2**32
    (tmp_path / "shard.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(InputError, match=r"shard\.tar .*a header of 4294967296 bytes"):
        index_images(tmp_path / "shard.tar")
