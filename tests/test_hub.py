"""Models on the Hugging Face Hub, with a folder in the Hub's place."""

import fnmatch
import inspect
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan import CPAAN, PooledGaussian
from cpaan.errors import InputError
from cpaan.hub import from_hub, push_to_hub, write_card
from cpaan.methods import set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


library: Any = pytest.importorskip("huggingface_hub", reason="needs the extra 'hub'")

RNG = np.random.default_rng(0)
X = (5 * RNG.normal(size=(8, 1, 3)) + RNG.normal(size=(8, 10, 3))).reshape(-1, 3)
Y = np.repeat([f"base {index}" for index in range(8)], 10)
NOVEL = (RNG.normal(size=(3, 3)), ["new", "new", "other"])


class FakeHub:
    """Copies folders where the library would talk to the Hub; calls must fit the real functions' signatures."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: dict[str, dict[str, Any]] = {}
        self.signatures = {
            name: inspect.signature(getattr(library, name))
            for name in ("create_repo", "upload_folder", "snapshot_download")
        }

    def _bound(self, name: str, *args: Any, **options: Any) -> dict[str, Any]:
        self.calls[name] = dict(self.signatures[name].bind(*args, **options).arguments)
        return self.calls[name]

    def create_repo(self, *args: Any, **options: Any) -> None:
        given = self._bound("create_repo", *args, **options)
        (self.root / given["repo_id"]).mkdir(parents=True, exist_ok=given["exist_ok"])

    def upload_folder(self, *args: Any, **options: Any) -> str:
        given = self._bound("upload_folder", *args, **options)
        self._copy(Path(given["folder_path"]), self.root / given["repo_id"], given["allow_patterns"])
        return "https://hub/commit/1"

    def snapshot_download(self, *args: Any, **options: Any) -> str:
        given = self._bound("snapshot_download", *args, **options)
        repository, target = self.root / given["repo_id"], self.root / "cache" / given["repo_id"]
        if not repository.is_dir():
            raise FileNotFoundError(f"404 {given['repo_id']}")
        target.mkdir(parents=True, exist_ok=True)
        self._copy(repository, target, given["allow_patterns"])
        return str(target)

    def _copy(self, source: Path, target: Path, patterns: list[str]) -> None:
        for path in source.iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
                shutil.copy(path, target / path.name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    for name in fake.signatures:
        monkeypatch.setattr(library, name, getattr(fake, name))
    return fake


def trained() -> CPAAN:
    settings: dict[str, Any] = {"novel_per_episode": 4, "width": 8, "center": "shots"}
    return cpaan(recipe="quick", episodes=3, random_state=0, device="cpu", **settings).fit(X, Y)


def test_a_round_trip_gives_the_same_bits(hub: FakeHub) -> None:
    augmenter = trained()
    address = push_to_hub(augmenter, "me/model", license="mit", private=True, token="secret")
    assert address == "https://hub/commit/1"
    stored = hub.root / "me" / "model"
    assert {path.name for path in stored.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert hub.calls["create_repo"] == {"repo_id": "me/model", "private": True, "token": "secret", "exist_ok": True}
    again = from_hub("me/model", device="cpu", revision="abc", token="secret")
    assert isinstance(again, CPAAN)
    given = hub.calls["snapshot_download"]
    assert (given["repo_id"], given["revision"], given["token"]) == ("me/model", "abc", "secret")
    for made, expected in zip(again.augment(*NOVEL), augmenter.augment(*NOVEL), strict=True):
        assert np.array_equal(made, expected)


def test_a_folder_is_uploaded_without_other_files(hub: FakeHub, tmp_path: Path) -> None:
    PooledGaussian(random_state=0).fit(X, Y).save(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("private")
    push_to_hub(tmp_path / "model", "me/gaussian")
    assert not (hub.root / "me" / "gaussian" / "notes.txt").exists()
    assert isinstance(from_hub("me/gaussian", kind=PooledGaussian), PooledGaussian)
    with pytest.raises(InputError, match="holds a PooledGaussian, not a CPAAN"):
        from_hub("me/gaussian", kind=CPAAN)


def test_only_expected_files_are_downloaded(hub: FakeHub) -> None:
    push_to_hub(trained(), "me/model")
    stored = hub.root / "me" / "model"
    (stored / "modeling.py").write_text("raise SystemExit")
    (stored / "pytorch_model.bin").write_bytes(pickle.dumps(print))
    from_hub("me/model", device="cpu")
    assert {path.name for path in (hub.root / "cache" / "me" / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def test_the_card_says_what_the_model_holds(tmp_path: Path) -> None:
    trained().save(tmp_path)
    write_card(tmp_path, "me/model", license="cc-by-4.0")
    card = (tmp_path / "README.md").read_text()
    begin, head, text = card.split("---\n", 2)
    assert begin == ""
    assert "license: cc-by-4.0\n" in head
    assert "tags: [cpaan, " in head
    for part in ("CPAAN ccov-gan", "features: 3", "base classes: 8", "examples of base classes: 80", "me/model"):
        assert part in text
    (tmp_path / "README.md").write_text("my own")
    write_card(tmp_path, "me/model")
    assert (tmp_path / "README.md").read_text() == "my own"


def test_a_licence_cannot_add_lines_to_the_card(tmp_path: Path) -> None:
    trained().save(tmp_path)
    with pytest.raises(InputError, match="license must be a licence's name on the Hub, such as mit"):
        write_card(tmp_path, "me/model", license="mit\nextra: 1")


def test_other_folders_are_neither_sent_nor_loaded(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a model"):
        push_to_hub(tmp_path, "me/model")
    assert not hub.calls
    with pytest.raises(InputError, match="cannot download me/missing: 404"):
        from_hub("me/missing")
    push_to_hub(trained(), "me/model")
    stored = hub.root / "me" / "model" / "config.json"
    config = json.loads(stored.read_bytes())
    stored.write_text(json.dumps({**config, "parameters": {"unheard_of": 1}}))
    with pytest.raises(InputError, match=r"me/model holds a damaged model.*unheard_of"):
        from_hub("me/model")


def test_a_configuration_cannot_ask_for_networks_of_any_size(hub: FakeHub) -> None:
    push_to_hub(trained(), "me/model")
    stored = hub.root / "me" / "model" / "config.json"
    config = json.loads(stored.read_bytes())
    config["numbers"]["width"] = 10**7  # of 400 terabytes
    stored.write_text(json.dumps(config))
    with pytest.raises(InputError, match="do not fit one another"):
        from_hub("me/model", device="cpu")


def test_a_wrong_name_is_refused_by_the_library_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="cannot download"):
        from_hub("no such//name")
