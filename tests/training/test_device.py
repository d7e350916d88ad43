"""Devices by name, and models that move from one to another."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpaan import CPAAN, load_glyphs
from cpaan.data.low_shot import draw_shots
from cpaan.data.toys import glyph_split
from cpaan.errors import InputError
from cpaan.methods import set_numbers
from cpaan.training.device import choose_device


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


RNG = np.random.default_rng(0)
X = (5 * RNG.normal(size=(8, 1, 3)) + RNG.normal(size=(8, 10, 3))).reshape(-1, 3)
Y = np.repeat(np.arange(8), 10)
SHOTS = RNG.normal(size=(3, 3)), ["new", "new", "other"]

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(device: str) -> CPAAN:
    settings: dict[str, Any] = {"novel_per_episode": 4, "width": 8, "center": "shots", "recipe": "quick"}
    return cpaan(episodes=3, random_state=0, device=device, **settings).fit(X, Y)


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert choose_device("auto") == torch.device(expected)


@pytest.mark.parametrize("name", ["gpu", "meta", "", "abacus:1", None, 0])
def test_names_of_no_device_are_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"torch cannot use the device .*; give auto, cpu, cuda or mps"):
        choose_device(name)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.mps.is_available():
        with pytest.raises(InputError, match=r"cannot use the device 'mps' here .*Macs.*device='auto'"):
            choose_device("mps")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"cannot use the device 'cuda:1' here .*device='auto'"):
            choose_device("cuda:1")
    with pytest.raises(InputError, match="cannot use the device 'cpu:x' here"):
        choose_device("cpu:x")

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: out of order\nmore lines")

    monkeypatch.setattr(torch, "zeros", broken)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for count, cure in ((2, r"there are 2 devices, cuda:0 to cuda:1"), (0, "there is no NVIDIA GPU")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda number=count: number)
        with pytest.raises(InputError, match=rf"'cuda' here \(CUDA error: out of order\); {cure}"):
            choose_device("cuda")


def test_a_saved_model_has_no_device(tmp_path: Path) -> None:
    ours = train("cpu")
    ours.save(tmp_path)
    assert "device" not in json.loads((tmp_path / "config.json").read_bytes())["parameters"]
    expected = ours.augment(*SHOTS)[0]
    loaded = CPAAN.load(tmp_path, device="cpu")
    assert np.array_equal(loaded.augment(*SHOTS)[0], expected)
    anywhere = CPAAN.load(tmp_path)
    device = choose_device("auto")
    assert {parameter.device.type for parameter in anywhere.generator_.parameters()} == {device.type}
    if device.type == "cpu":
        assert np.array_equal(anywhere.augment(*SHOTS)[0], expected)


def test_loading_onto_a_device_that_is_not_there(tmp_path: Path) -> None:
    train("cpu").save(tmp_path)
    missing = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(InputError, match=f"cannot use the device '{missing}' here"):
        CPAAN.load(tmp_path, device=missing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": {"width": 9}}, "weights and configuration do not fit one another"),
        ({"numbers": {"noise_dimension": 3}}, "weights and configuration do not fit one another"),
        ({"numbers": {"width": "many"}}, "width must be a whole number of at least 1, not 'many'"),
        ({"numbers": {"unheard_of": 1}}, "holds a damaged model, or one of another version"),
        ({"temperature": None}, "holds a damaged model, or one of another version"),
        ({"dimension": None}, "holds a damaged model, or one of another version"),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    train("cpu").save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    for name, value in change.items():
        if isinstance(value, dict):
            config[name].update(value)
        else:
            del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        CPAAN.load(tmp_path, device="cpu")


@needs_cuda
@pytest.mark.parametrize(("trained_on", "loaded_on"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_model_moves_between_cpu_and_gpu(tmp_path: Path, trained_on: str, loaded_on: str) -> None:
    ours = train(trained_on)
    ours.save(tmp_path)
    loaded = CPAAN.load(tmp_path, device=loaded_on)
    assert {parameter.device.type for parameter in loaded.generator_.parameters()} == {loaded_on}
    before, after = (dict(each.generator_.state_dict()) for each in (ours, loaded))
    assert all(torch.equal(before[name].cpu(), after[name].cpu()) for name in before)
    made, labels = loaded.augment(*SHOTS)
    assert np.isfinite(made).all()
    assert set(labels) == {"new", "other"}
    if trained_on == loaded_on:
        assert np.array_equal(made, ours.augment(*SHOTS)[0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_a_residual_generator_starts_where_covariances_hardly_differ(device: str) -> None:
    """It begins with the base deviations themselves, so that the differences of the covariance loss all but vanish."""
    base = load_glyphs().select(glyph_split()[0])
    training, _ = draw_shots(base, 12, 0)
    augmenter = cpaan(
        variant="ccov-gan",
        recipe="quick",
        episodes=5,
        center="shots",
        generator="residual",
        random_state=0,
        device=device,
    ).fit(training.features, training.names)
    assert np.isfinite(augmenter.history_["covariance"]).all()
