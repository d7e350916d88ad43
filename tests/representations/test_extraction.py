"""Extraction with any network or encoder to npz or HDF5: resuming after an interruption, and errors."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from cpaan.data.files import read_bank, read_features
from cpaan.data.hdf5 import Hdf5Features
from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, ResNet10
from cpaan.representations.decoding import decode_image
from cpaan.representations.encoders import Encoder, find_encoder, make_encoder
from cpaan.representations.extraction import extract_features
from cpaan.representations.images import ImageIndex, index_images
from cpaan.representations.recipe import make_backbone_recipe

Images = Callable[..., Path]
CPU = torch.device("cpu")


class MeanColour(nn.Module):
    """A network whose features can be computed by hand."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


class PilEncoder:
    """In the manner of sentence-transformers' CLIP models: a list of Pillow's images in, an array out."""

    def encode(self, images: list[Image.Image]) -> Any:
        return np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) for image in images])


def expected(index: ImageIndex, size: int) -> Any:
    pixels = torch.from_numpy(np.stack([decode_image(entry.read(), size) for entry in index.entries]))
    return center_view(pixels, size).mean(dim=(2, 3)).numpy()


@pytest.fixture
def backbone() -> Backbone:
    torch.manual_seed(0)
    recipe = make_backbone_recipe("small", size=12, width=2)
    return Backbone(ResNet10(stem="small", width=2).eval(), "resnet10", recipe, ("a", "b"))


def test_features_come_with_their_classes_and_parts(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    encoder = make_encoder(MeanColour(), device=CPU, size=12, resize=12)
    found = extract_features(index, encoder, tmp_path / "bank.npz", batch_size=7)
    assert (found.n_images, found.dimension, found.skipped) == (60, 3, {})
    features = read_features(tmp_path / "bank.npz")
    np.testing.assert_allclose(features.features, expected(index, 12), rtol=1e-5)
    assert features.labels.tolist() == index.labels.tolist()
    bank = read_bank(tmp_path / "bank.npz")
    assert bank.test is not None
    assert (len(bank.train), len(bank.test), bank.train.classes) == (48, 12, index.classes)
    assert not (tmp_path / "bank.npz.partial").exists()


def test_a_backbone_gives_the_same_from_memory_and_from_its_folder(
    coloured: Images, tmp_path: Path, backbone: Backbone
) -> None:
    index = index_images(coloured())
    backbone.save(tmp_path / "model")
    extract_features(index, make_encoder(backbone, device=CPU), tmp_path / "one.npz")
    extract_features(index, find_encoder(str(tmp_path / "model"), device=CPU), tmp_path / "two.npz", batch_size=60)
    one, two = read_features(tmp_path / "one.npz"), read_features(tmp_path / "two.npz")
    np.testing.assert_allclose(one.features, two.features, rtol=1e-5)
    pixels = torch.from_numpy(np.stack([decode_image(entry.read(), 12) for entry in index.entries]))
    np.testing.assert_allclose(one.features, backbone.features(pixels).numpy(), rtol=1e-4, atol=1e-6)


def test_a_backbone_that_lacks_a_number_is_refused(tmp_path: Path, backbone: Backbone) -> None:
    backbone.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["numbers"]["size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="damaged backbone, or one of another version"):
        Backbone.load(tmp_path)


def test_a_users_transform_replaces_the_usual_one(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    encoder = make_encoder((MeanColour(), to_tensor), device=CPU)
    extract_features(index, encoder, tmp_path / "bank.npz", workers=1)
    raw = [np.asarray(decode_image(entry.read(), 12)).mean(axis=(1, 2)) for entry in index.entries]
    np.testing.assert_allclose(read_features(tmp_path / "bank.npz").features, np.stack(raw), rtol=1e-5)


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image, dtype=np.float32).transpose(2, 0, 1).copy())


def test_an_object_with_encode_gets_pillow_images(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    extract_features(index, make_encoder(PilEncoder(), device=CPU), tmp_path / "bank.npz")
    raw = [np.asarray(decode_image(entry.read(), 12)).mean(axis=(1, 2)) for entry in index.entries]
    np.testing.assert_allclose(read_features(tmp_path / "bank.npz").features, np.stack(raw), rtol=1e-5)


def test_a_function_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("from torch import nn", "def small(): return nn.Flatten()", "def broken(): raise ValueError('no weights')")
    Path("mymodels.py").write_text("\n".join(lines))
    monkeypatch.delitem(sys.modules, "mymodels", raising=False)
    encoder = find_encoder("mymodels:small", device=CPU, size=2, resize=2)
    assert encoder.encode(torch.zeros(3, 3, 2, 2, dtype=torch.uint8)).shape == (3, 12)
    for spec, message in (
        ("mymodels:large", "mymodels has no function large"),
        ("mymodels:broken", r"broken\(\) failed: ValueError: no weights"),
        ("nomodule_at_all:small", "cannot import 'nomodule_at_all'"),
        ("mymodels", "neither the folder of a backbone nor a name like package.module:function"),
    ):
        with pytest.raises(InputError, match=message):
            find_encoder(spec, device=CPU)


class FeatureMaps(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images


class Several(nn.Module):
    def forward(self, images: Tensor) -> Any:
        return {"logits": images.mean(dim=(2, 3))}


class TooFew(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))[:-1]


class NotFinite(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3)) / 0


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (FeatureMaps(), r"shape \(60, 3, 12, 12\) for 60 images, but features must be 2-d"),
        (Several(), "Several returns a dict for a batch of images"),
        (TooFew(), "59 rows of features for 60 images"),
        (NotFinite(), "not finite"),
    ],
)
def test_outputs_other_than_features_are_refused(
    coloured: Images, tmp_path: Path, network: nn.Module, message: str
) -> None:
    encoder = make_encoder(network, device=CPU, size=12, resize=12)
    with pytest.raises(InputError, match=message):
        extract_features(index_images(coloured()), encoder, tmp_path / "bank.npz")
    assert not (tmp_path / "bank.npz").exists()


def test_strings_are_not_encoders() -> None:
    with pytest.raises(InputError, match="str, which cannot encode images; give a torch module"):
        make_encoder("resnet", device=CPU)


def test_hdf5_holds_one_part_with_class_indices(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured()).select(["colour2", "colour0", "colour1", "colour3"])
    encoder = make_encoder(MeanColour(), device=CPU, size=12, resize=12)
    with pytest.raises(InputError, match="write each to a separate file"):
        extract_features(index, encoder, tmp_path / "all.h5")
    extract_features(index.part("train"), encoder, tmp_path / "train.h5")
    extract_features(index.part("test"), encoder, tmp_path / "test.h5")
    train = Hdf5Features(tmp_path / "train.h5")
    # Rows lie by class index, which is the order that was asked for, as the benchmark's row numbers need it.
    assert train.labels.tolist() == np.repeat(np.arange(4), 12).tolist()
    assert train.select([0]).features[:, 2].mean() > 0.5  # colour2 is blue
    assert Hdf5Features(tmp_path / "test.h5").n == 12


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_an_interrupted_extraction_resumes(
    coloured: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("cpaan.representations.extraction.SECONDS_BETWEEN_NOTES", seconds)
    index = index_images(coloured())
    output = tmp_path / "bank.npz"

    class Counting(nn.Module):
        seen, limit = 0, 25

        def forward(self, images: Tensor) -> Tensor:
            if self.seen + len(images) > self.limit:
                raise KeyboardInterrupt
            self.seen += len(images)
            return images.mean(dim=(2, 3))

    def encoder() -> Encoder:
        return make_encoder(network, device=CPU, size=12, resize=12)

    network = Counting()
    with pytest.raises(KeyboardInterrupt):
        extract_features(index, encoder(), output, batch_size=5)
    assert json.loads((tmp_path / "bank.npz.partial" / "progress.json").read_text())["done"] == 25
    assert not output.exists()
    network = Counting()
    network.limit = 35
    told: list[int] = []
    extract_features(index, encoder(), output, batch_size=5, tell=lambda done, total: told.append(done))
    assert network.seen == 35
    assert told[0] == 30
    np.testing.assert_allclose(read_features(output).features, expected(index, 12), rtol=1e-5)


def test_another_extraction_in_the_way_is_refused(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    folder = tmp_path / "bank.npz.partial"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"plan": {"images": "other"}, "done": 5, "skipped": {}}))
    with pytest.raises(InputError, match="belongs to another extraction"):
        extract_features(index, make_encoder(MeanColour(), device=CPU), tmp_path / "bank.npz")
    (folder / "progress.json").write_text("{")
    with pytest.raises(InputError, match="remove it to start over"):
        extract_features(index, make_encoder(MeanColour(), device=CPU), tmp_path / "bank.npz")


def test_unreadable_images_are_refused_or_left_out_by_name(coloured: Images, tmp_path: Path) -> None:
    root = coloured()
    bad = root / "val" / "colour3" / "01.png"
    bad.write_bytes(b"nothing")
    index = index_images(root)
    encoder = make_encoder(MeanColour(), device=CPU, size=12, resize=12)
    with pytest.raises(InputError, match=r"colour3/01\.png cannot be read"):
        extract_features(index, encoder, tmp_path / "bank.npz", batch_size=10)
    found = extract_features(index, encoder, tmp_path / "bank.npz", batch_size=10, on_bad="skip")
    assert list(found.skipped) == ["val/colour3/01.png"]
    kept = [row for row, entry in enumerate(index.entries) if entry.name != "val/colour3/01.png"]
    features = read_features(tmp_path / "bank.npz")
    assert features.labels.tolist() == index.labels[kept].tolist()
    assert len(features) == 59


def test_wrong_outputs_are_refused_before_anything_is_read(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    encoder = make_encoder(FeatureMaps(), device=CPU)  # would fail if it were asked
    for output, given, message in (
        (tmp_path / "bank.csv", {}, "must end in .npz or .h5"),
        (tmp_path / "no" / "bank.npz", {}, "cannot write .*/no does not exist"),
        (tmp_path / "bank.npz", {"dtype": "int8"}, "dtype must be float32 or float16"),
    ):
        with pytest.raises(InputError, match=message):
            extract_features(index, encoder, output, **given)  # type: ignore[arg-type]


def test_an_extraction_of_other_weights_or_sizes_is_not_resumed(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())

    def stopped(done: int, total: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    with pytest.raises(KeyboardInterrupt):
        extract_features(
            index,
            make_encoder(network, device=CPU, size=12, resize=12),
            tmp_path / "bank.npz",
            batch_size=5,
            tell=stopped,
        )
    other = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    for encoder in (
        make_encoder(other, device=CPU, size=12, resize=12),
        make_encoder(network, device=CPU, size=12, resize=14),
    ):
        with pytest.raises(InputError, match="belongs to another extraction"):
            extract_features(index, encoder, tmp_path / "bank.npz")


def test_an_extraction_can_end_with_nothing_but_unreadable_images(coloured: Images, tmp_path: Path) -> None:
    root = coloured()
    for number in range(3):
        (root / "val" / "colour3" / f"{number:02d}.png").write_bytes(b"nothing")
    index = index_images(root)
    encoder = make_encoder(MeanColour(), device=CPU, size=12, resize=12)

    def stopped(done: int, total: int) -> None:
        if done == 57:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_features(index, encoder, tmp_path / "bank.npz", batch_size=3, on_bad="skip", tell=stopped)
    found = extract_features(index, encoder, tmp_path / "bank.npz", batch_size=3, on_bad="skip")
    assert (found.n_images, found.n_classes, len(found.skipped)) == (57, 4, 3)
    nothing = index.select(["colour3"]).part("test")
    with pytest.raises(InputError, match=r"none of the 3 images can be read; the first is val/colour3/00\.png"):
        extract_features(nothing, encoder, tmp_path / "none.npz", on_bad="skip")


class Broken(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise AttributeError("no such layer")


def broken_transform(image: Image.Image) -> Tensor:
    raise ValueError("no such size")


def array_transform(image: Image.Image) -> Any:
    return np.zeros((3, 12, 12))


@pytest.mark.parametrize("workers", [0, 1])
def test_failures_of_a_users_code_name_it(coloured: Images, tmp_path: Path, workers: int) -> None:
    index = index_images(coloured())
    for given, message in (
        (Broken(), "Broken failed on a batch of images: AttributeError: no such layer"),
        ((MeanColour(), broken_transform), "^the transform failed: ValueError: no such size$"),
        ((MeanColour(), array_transform), "must return tensors of one shape, not ndarray"),
    ):
        encoder = make_encoder(given, device=CPU, size=12, resize=12, name=type(given).__name__)
        with pytest.raises(InputError, match=message):
            extract_features(index, encoder, tmp_path / "bank.npz", on_bad="skip", workers=workers)


def test_features_too_large_for_half_precision_are_refused_at_once(coloured: Images, tmp_path: Path) -> None:
    class Large(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return 1e6 * images.mean(dim=(2, 3))

    with pytest.raises(InputError, match="do not fit float16; use --dtype float32"):
        extract_features(
            index_images(coloured()), make_encoder(Large(), device=CPU, size=12), tmp_path / "bank.npz", dtype="float16"
        )


def test_a_damaged_folder_of_an_interrupted_extraction_is_refused(coloured: Images, tmp_path: Path) -> None:
    index, encoder = index_images(coloured()), make_encoder(MeanColour(), device=CPU, size=12, resize=12)
    folder = tmp_path / "bank.npz.partial"
    folder.mkdir()
    plan = {"images": index.fingerprint, "encoder": encoder.identity, "dtype": "float32"}
    for content in ("[]", "{}", json.dumps({"plan": plan, "done": 5, "skipped": {}})):
        (folder / "progress.json").write_text(content)
        with pytest.raises(InputError, match=r"damaged.*remove it to start over"):
            extract_features(index, encoder, tmp_path / "bank.npz")


def test_half_precision_halves_the_file(coloured: Images, tmp_path: Path) -> None:
    encoder = make_encoder(nn.Flatten(), device=CPU, size=12, resize=12)
    for dtype in ("float16", "float32"):
        extract_features(index_images(coloured(dtype)), encoder, tmp_path / f"{dtype}.npz", dtype=dtype)
    half, single = read_features(tmp_path / "float16.npz"), read_features(tmp_path / "float32.npz")
    assert half.features.dtype == np.float16
    np.testing.assert_allclose(half.features, single.features, rtol=1e-3, atol=1e-3)
