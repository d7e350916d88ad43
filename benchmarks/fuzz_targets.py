"""Every reader of files, each with small valid files to spoil and a way to read them."""

import io
import json
import random
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cpaan import CPAAN, DeviationTransfer, EmpiricalBayes, LowShotClassifier, PooledGaussian
from cpaan.augmenters.distribution_calibration import DistributionCalibration
from cpaan.augmenters.feature_hallucination import FeatureHallucination
from cpaan.augmenters.feature_imagination import FeatureImagination
from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator
from cpaan.classifiers.maml import MAML
from cpaan.classifiers.matching import MatchingNetwork
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.classifiers.prototypical import PrototypicalNetwork
from cpaan.classifiers.siamese import SiameseNetwork
from cpaan.data import FeatureSet, write_features
from cpaan.data.benchmark import load_benchmark
from cpaan.data.class_split import read_image_classes, read_setup
from cpaan.data.files import read_bank, read_rows
from cpaan.data.hdf5 import write_hdf5
from cpaan.errors import InputError
from cpaan.evaluation.run_folder import RunFolder
from cpaan.evaluation.sample import MadeSample, RealSample, write_part
from cpaan.methods import load_augmenter, set_numbers
from cpaan.reporting.results import Results, read_runs
from cpaan.representations.backbone import Backbone, ResNet10
from cpaan.representations.images import index_images
from cpaan.representations.loading import ImageLoader
from cpaan.representations.recipe import make_backbone_recipe
from cpaan.training.checkpoints import read_checkpoint, write_checkpoint

h5py: Any = import_module("h5py")
ROWS, CLASSES, DIMENSION = 48, 8, 4


@dataclass(frozen=True)
class Target:
    """A reader."""

    name: str
    make: Callable[[Path], None]  # writes valid files into an empty folder
    read: Callable[[Path], Any]  # reads the files of a folder, as a user's call would
    share: float = 1.0  # how often it is chosen, relative to the others


def example_set() -> FeatureSet:
    """Give a few examples of a few classes."""
    draw = np.random.default_rng(0)
    names = [f"class {number}" for number in range(CLASSES)]
    features = draw.normal(size=(ROWS, DIMENSION)).astype(np.float32)
    return FeatureSet(features, np.arange(ROWS) % CLASSES, names)


def _feature_file(name: str, **options: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_features(folder / name, example_set(), np.arange(ROWS) % 12 == 0, **options)

    return make


def _compressed(folder: Path) -> None:
    examples = example_set()
    np.savez_compressed(folder / "bank.npz", X=examples.features, y=np.array([str(name) for name in examples.names]))


def _hdf5(folder: Path) -> None:
    write_hdf5(folder / "bank.h5", example_set().features, example_set().labels)


def _chunked_hdf5(folder: Path) -> None:
    with h5py.File(folder / "bank.h5", "w") as file:
        options = {"chunks": (16, DIMENSION), "compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("all_feats", data=example_set().features, **options)
        file.create_dataset("all_labels", data=example_set().labels, chunks=(16,), compression="lzf")
        file.create_dataset("count", data=[ROWS])


def _packed_parquet(folder: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows = arrow.array(list(example_set().features), arrow.list_(arrow.float32()))
    labels = arrow.array([str(name) for name in example_set().names])
    table = arrow.table({"features": rows, "label": labels, "is_test": np.arange(ROWS) % 12 == 0})
    options = {"data_page_version": "2.0", "compression": "zstd", "use_dictionary": ["features"]}
    parquet.write_table(table, folder / "bank.parquet", row_group_size=ROWS // 3, **options)


def _array(folder: Path) -> None:
    np.save(folder / "rows.npy", example_set().features)


def _setups(folder: Path) -> None:
    names = [str(name) for name in example_set().classes]
    (folder / "setup.json").write_text(json.dumps({"base": names[:5], "all_base": names[:6], "novel": names[6:]}))
    parts = {f"{kind}_classes_{part}": [2 * part + (kind == "novel")] for kind in ("base", "novel") for part in (1, 2)}
    official = {"label_names": names, "base_classes": [0, 2, 4], "novel_classes": [3, 5], **parts}
    (folder / "label_idx.json").write_text(json.dumps(official))


def _read_setups(folder: Path) -> None:
    _all(
        lambda: read_setup(folder / "setup.json"),
        lambda: read_image_classes(folder / "setup.json"),
        lambda: read_setup(folder / "label_idx.json", part=2),
        lambda: read_image_classes(folder / "label_idx.json"),
    )


def _benchmark(folder: Path) -> None:
    _hdf5(folder)
    (folder / "setup.json").write_text(json.dumps({"base": [0, 1, 2], "novel": [6, 7]}))
    table = [[label + CLASSES * place for place in range(3)] for label in range(CLASSES)]
    (folder / "split.json").write_text(json.dumps(table))


def _read_benchmark(folder: Path) -> None:
    bank = folder / "bank.h5"
    data = load_benchmark(bank, folder / "setup.json", test=_copied(bank), splits=[folder / "split.json"])
    data.shots(trial=0, k=2)


def _copied(path: Path) -> Path:
    copy = path.with_name(f"copy-{path.name}")
    copy.write_bytes(path.read_bytes())
    return copy


def _model(make: Callable[[], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        examples = example_set()
        make().fit(examples.features, examples.names).save(folder)

    return write


def _augment(folder: Path) -> None:
    augmenter = load_augmenter(folder, device="cpu")
    augmenter.augment(np.zeros((2, DIMENSION), dtype=np.float32) + 0.5, ["new", "new"])


def _meta(kind: type[Any], **numbers: Any) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    def write(folder: Path) -> None:
        examples = example_set()
        kind(random_state=0, device="cpu", **numbers).meta_fit(examples.features, examples.names).save(folder)

    def read(folder: Path) -> None:
        examples = example_set()
        classifier = kind.load(folder, device="cpu")
        classifier.fit(examples.features[:6], ["a", "b"] * 3).predict(examples.features[:3])

    return write, read


def _low_shot(folder: Path) -> None:
    examples = example_set()
    classifier = LowShotClassifier(augmenter=PooledGaussian(random_state=0), classifier=NearestPrototype())
    classifier.fit(examples.features, examples.names)
    classifier.add_classes(np.ones((2, DIMENSION)), ["new", "new"]).save(folder)


def _read_low_shot(folder: Path) -> None:
    classifier = LowShotClassifier.load(folder, device="cpu")
    classifier.predict(example_set().features[:3])
    classifier.add_classes(np.ones((1, DIMENSION)), ["newer"])


def _checkpoints(folder: Path) -> None:
    for step in (1, 2):
        write_checkpoint(folder, step, {"weight": torch.ones(3)}, {"history": {}})


def _backbone(folder: Path) -> None:
    recipe = make_backbone_recipe("small", size=16, width=2)
    network = ResNet10(stem="small", width=2)
    Backbone(network, "resnet10", recipe, ("elm", "oak"), {"seed": 0}).save(folder)


def _read_backbone(folder: Path) -> None:
    Backbone.load(folder).features(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


def _run(folder: Path) -> None:
    run = RunFolder(folder / "run")
    methods = ["linear", "gaussian"]
    run.begin(
        {"methods": methods, "representation": "trees", "settings": {"shots": [1]}}, {"torch": "2"}, {"bank": "x"}
    )
    for method in methods:
        row = {"method": method, "setting": "LSL", "shots": 1, "trial": 0, "top1": 50.0, "top5": 80.0}
        run.append([row, {**row, "setting": "GLSL"}])
    draw = np.random.default_rng(0)
    rows, labels, pairs = draw.normal(size=(4, 3)), np.arange(4) % 2, np.array([[0, 1], [1, 0]])
    names = ("oak", "elm")
    real = RealSample(
        *(names, ("yew", "ash"), 1, rows, labels, np.arange(4), np.array([2, 2]), rows, labels, rows, labels),
        *(pairs, np.ones((2, 2))),
    )
    write_part(folder / "run", "real", real)
    write_part(folder / "run", "gaussian", MadeSample(rows, labels, np.ones((2, 2)), names, ("yew", "ash")))
    _model(lambda: PooledGaussian(random_state=0))(folder / "run" / "models" / "gaussian")


def _read_run(folder: Path) -> None:
    results = Results.of(read_runs([folder / "run"]))
    results.accuracy("top1"), results.differences("top5"), results.diversity(), results.columns
    RunFolder(folder / "run").write_csv()


def _pictures() -> dict[str, bytes]:
    draw = random.Random(0)
    image = Image.frombytes("RGB", (24, 16), bytes(draw.randrange(256) for _ in range(24 * 16 * 3)))
    forms = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}
    packed: dict[str, bytes] = {}
    for ending, form in forms.items():
        file = io.BytesIO()
        image.save(file, form)
        packed[ending] = file.getvalue()
    return packed


def _images(folder: Path) -> None:
    for ending, content in _pictures().items():
        (folder / "oak").mkdir(exist_ok=True)
        (folder / "oak" / f"1.{ending}").write_bytes(content)


def _tar(folder: Path) -> None:
    with tarfile.open(folder / "shard.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number, content in enumerate((_pictures()["png"], _pictures()["gif"])):
            member = tarfile.TarInfo(f"train/oak/{number}{'x' * 90 * number}.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _read_images(folder: Path) -> None:
    loader = ImageLoader(index_images(folder), size=8)
    _all(*(partial(_read_image, loader, row) for row in range(len(loader.index))))


def _read_image(loader: ImageLoader, row: int) -> None:
    for _ in loader.batches([row], 1):
        pass


def _all(*calls: Callable[[], Any]) -> None:
    """Make every call, even if an earlier one ends in an InputError."""
    failures = [failure for failure in map(_failure, calls) if failure is not None]
    if failures:
        raise failures[-1]


def _failure(call: Callable[[], Any]) -> InputError | None:
    try:
        call()
    except InputError as error:
        return error
    return None


def _bank(name: str) -> Callable[[Path], None]:
    return lambda folder: _all(lambda: read_bank(folder / name), lambda: read_rows(folder / name))


def _quick(**numbers: Any) -> Callable[[], CPAAN]:
    few = {"episodes": 1, "width": 8, "noise_dimension": 4, "novel_per_episode": 4, "random_state": 0, "device": "cpu"}
    return lambda: set_numbers(CPAAN(recipe="quick"), {**few, **numbers})


def targets() -> tuple[Target, ...]:
    """Give every reader."""
    warnings.simplefilter("ignore")
    models: dict[str, Callable[[], Any]] = {
        "cpaan": _quick(center="shots"),
        "cpaan with a centre": _quick(center="calibrated", reservoir=0),
        "pooled gaussian": lambda: PooledGaussian(random_state=0),
        "deviation transfer": lambda: DeviationTransfer(random_state=0),
        "distribution calibration": lambda: DistributionCalibration(random_state=0),
        "empirical bayes": lambda: EmpiricalBayes(random_state=0),
        "feature hallucination": lambda: FeatureHallucination(
            random_state=0, device="cpu", iterations=1, width=8, centroids=2, batch_size=4
        ),
        "feature imagination": lambda: FeatureImagination(
            random_state=0, device="cpu", episodes=1, ways=3, shots=(1,), queries=2
        ),
    }
    small = {"episodes": 1, "width": 4, "ways": 3, "queries": 2}
    metas: dict[str, tuple[type[Any], dict[str, Any]]] = {
        "prototypical": (PrototypicalNetwork, {**small, "shots": (1,)}),
        "matching": (MatchingNetwork, {**small, "shots": (1,), "context_width": 4}),
        "maml": (MAML, {**small, "shots": (1,), "steps": 1, "fit_steps": 1}),
        "siamese": (SiameseNetwork, small),
        "attentive weights": (AttentiveWeightGenerator, {**small, "shots": (1,), "base_episodes": 1}),
    }
    return (
        Target("npz", _feature_file("bank.npz"), _bank("bank.npz"), 3),
        Target("compressed npz", _compressed, _bank("bank.npz"), 2),
        Target("npy", _array, lambda folder: read_rows(folder / "rows.npy"), 2),
        Target("safetensors", _feature_file("bank.safetensors"), _bank("bank.safetensors"), 2),
        Target("parquet", _feature_file("bank.parquet"), _bank("bank.parquet"), 3),
        Target("packed parquet", _packed_parquet, _bank("bank.parquet"), 2),
        Target("hdf5", _hdf5, _bank("bank.h5"), 3),
        Target("chunked hdf5", _chunked_hdf5, _bank("bank.h5"), 3),
        Target("setups", _setups, _read_setups, 2),
        Target("benchmark", _benchmark, _read_benchmark),
        *(Target(name, _model(make), _augment, 0.6) for name, make in models.items()),
        *(Target(name, *_meta(kind, **numbers), 0.3) for name, (kind, numbers) in metas.items()),
        Target("low-shot classifier", _low_shot, _read_low_shot, 2),
        Target("checkpoints", _checkpoints, read_checkpoint),
        Target("backbone", _backbone, _read_backbone, 0.5),
        Target("run", _run, _read_run, 2),
        Target("images", _images, _read_images, 3),
        Target("tar", _tar, _read_images, 3),
    )
