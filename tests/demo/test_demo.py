"""The demonstration at a tiny size, and what the spiral shows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpaan.data.toys import make_spiral
from cpaan.demo import glyphs, run, spiral
from cpaan.demo.run import WRITTEN
from cpaan.evaluation.realism import coverage
from cpaan.training.progress import Progress


def test_the_demo_writes_its_pictures_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spiral.SPIRAL, "episodes", 3)
    for name, value in {"episodes": 2, "width": 16, "device": "cpu"}.items():
        monkeypatch.setitem(glyphs.GLYPHS, name, value)
    monkeypatch.setattr(glyphs, "TRIALS", 2)
    monkeypatch.setattr(glyphs, "SHOTS", (1, 5))
    told: list[str] = []

    class Told:
        def __call__(self, title: str) -> Callable[[Progress], None]:
            return lambda progress: told.append(f"{title}: {progress.episode}/{progress.episodes}")

        def count(self, title: str, unit: str) -> Callable[[int, int], None]:
            return lambda done, total: told.append(f"{title}: {done}/{total} {unit}")

    said: list[str] = []
    result = run.run_demo(tmp_path / "out", 0, Told(), said.append, processes=1)
    assert said == [f"Written: {tmp_path / 'out' / name}" for name in ("spiral.png", "glyphs.png")]
    assert {p.name for p in (tmp_path / "out").iterdir()} == set(WRITTEN)
    for name in ("glyphs.png", "spiral.png"):
        picture = np.asarray(Image.open(tmp_path / "out" / name).convert("L"))
        assert picture.std() > 10  # there is something on it
    lines = result.table.splitlines()
    assert [line.split("|")[1].strip() for line in lines[-4:]] == [
        "no augmentation",
        "c-GAN",
        "cCov-GAN",
        "cCov-GAN, centre estimated",
    ]
    assert "glyphs, ccov-gan: 2/2" in told
    assert "spiral, c-gan back: 3/3" in told
    assert "classifying, cCov-GAN: 4/4 classifiers" in told


def test_ccov_gan_covers_more_of_the_unseen_arms_than_c_gan() -> None:
    covered: dict[str, list[float]] = {"c-gan": [], "ccov-gan": []}
    for seed in range(2):
        split = make_spiral(random_state=seed)
        for variant, found in covered.items():
            augmenter = spiral.fit_spiral(split, variant, seed, episodes=500)
            made, arms = augmenter.augment(split.shots.features, split.shots.names, per_class=300)
            found += [coverage(split.unseen.of_class(arm), made[arms == arm], 0.1) for arm in split.novel_classes]
    assert np.mean(covered["ccov-gan"]) > np.mean(covered["c-gan"])


def test_translating_back_returns_points_of_base_arms() -> None:
    split = make_spiral(random_state=0)
    augmenter = spiral.fit_spiral(split, "ccyc-gan", 0, episodes=3)
    returned = spiral.translate_back(augmenter, split, split.shots, seed=0)
    assert len(returned) == len(split.shots)
    assert set(returned.classes) <= {"top", "bottom"}
