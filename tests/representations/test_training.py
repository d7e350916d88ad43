"""Training backbones: it learns, resumes with the same bits, and two processes compute what one does."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpaan.data.folders import read_model
from cpaan.errors import InputError
from cpaan.representations.backbone import Backbone
from cpaan.representations.images import index_images
from cpaan.representations.recipe import PAPER, BackboneRecipe, BackboneSettings, learning_rate_at, make_backbone_recipe
from cpaan.representations.training import CHECKPOINTS, Stopped, train_backbone

TINY: dict[str, Any] = {"size": 12, "width": 2, "batch_size": 8, "epochs": 6, "ways": 4, "shots": 1, "queries": 3}
Images = Callable[..., Path]


def recipe(**changes: Any) -> BackboneRecipe:
    return make_backbone_recipe("small", **{**TINY, **changes})


def settings(kind: str = "resnet10", *, numbers: dict[str, Any] | None = None, **given: Any) -> BackboneSettings:
    return BackboneSettings(kind, recipe(**(numbers or {})), device="cpu", log_every=1, **given)


def losses(backbone: Backbone | None) -> list[float]:
    assert backbone is not None
    found: list[float] = backbone.details["history"]["loss"]
    return found


@pytest.mark.parametrize("kind", ["resnet10", "prototypical"])
def test_both_kinds_learn_colours(coloured: Images, tmp_path: Path, kind: str) -> None:
    index = index_images(coloured())
    given = settings(kind, numbers={"epochs": 12, "learning_rate": 0.1, "width": 4, "jitter": 0.1})
    backbone = train_backbone(index, given, tmp_path / "model")
    assert backbone is not None
    assert backbone.details["accuracy"]["top1"] > 80  # chance is 25
    assert backbone.details["accuracy"]["top5"] == 100
    assert losses(backbone)[-1] < losses(backbone)[0]
    again = Backbone.load(tmp_path / "model")
    pixels = torch.randint(0, 256, (3, 3, 12, 12), dtype=torch.uint8)
    assert torch.equal(again.features(pixels), backbone.features(pixels))
    assert again.recipe == given.recipe
    assert again.classes == index.classes


@pytest.mark.parametrize("kind", ["resnet10", "prototypical"])
def test_held_and_streamed_pixels_are_the_same_pixels(coloured: Images, tmp_path: Path, kind: str) -> None:
    index = index_images(coloured())
    curves = [
        losses(train_backbone(index, settings(kind, cache=cache, workers=workers), tmp_path / f"{cache}{workers}"))
        for cache, workers in (("always", 0), ("never", 0), ("never", 1))
    ]
    assert curves[0] == curves[1] == curves[2]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    curves = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)  # the global state must not matter
        before = torch.random.get_rng_state()
        curves.append(losses(train_backbone(index, settings(seed=seed), tmp_path / str(number))))
        assert torch.equal(before, torch.random.get_rng_state())
    assert curves[0] == curves[1] != curves[2]


@pytest.mark.parametrize("kind", ["resnet10", "prototypical"])
def test_a_stopped_run_resumes_with_the_same_bits(
    coloured: Images, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_images(coloured())
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train_backbone(index, settings(kind, numbers={"epochs": 3}), whole)

    def stopping(at: int) -> Callable[[str, str], Callable[..., None]]:
        def bars(title: str, unit: str) -> Callable[..., None]:
            def tell(done: int, total: int, note: str = "") -> None:
                if title.startswith("training") and done >= at:
                    os.kill(os.getpid(), signal.SIGTERM)

            return tell

        return bars

    per_step = 8 if kind == "resnet10" else 16
    given = settings(kind, numbers={"epochs": 3})
    for step in (2, 5):
        with pytest.raises(Stopped):
            train_backbone(index, given, parted, resume=True, bars=stopping(step * per_step))
        assert not (parted / "config.json").exists()
    train_backbone(index, given, parted, resume=True)
    for folder in (whole, parted):
        assert (folder / "model.safetensors").exists()
    first, second = (read_model(folder, "backbone") for folder in (whole, parted))
    assert first[0].keys() == second[0].keys()
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])
    assert first[1]["details"] == second[1]["details"]
    assert not (parted / CHECKPOINTS).exists()


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_passed_over(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    given = settings(checkpoint_seconds=0)
    folder = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        train_backbone(index, given, folder, bars=_failing_at(40))
    kept = sorted((folder / CHECKPOINTS).iterdir())
    assert [int(path.name) for path in kept] == [3, 4]
    with pytest.raises(InputError, match=r"another run \(other numbers\)"):
        train_backbone(index, replace(given, recipe=recipe(epochs=7)), folder, resume=True)
    (kept[1] / "model.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="truncated or damaged.*taking the one before it"):
        resumed = train_backbone(index, given, folder, resume=True)
    assert losses(resumed) == losses(train_backbone(index, given, tmp_path / "whole"))


def _failing_at(at: int) -> Callable[[str, str], Callable[..., None]]:
    def bars(title: str, unit: str) -> Callable[..., None]:
        def tell(done: int, total: int, note: str = "") -> None:
            if title.startswith("training") and done >= at:
                raise KeyboardInterrupt  # as hard as a crash: nothing more is written

        return tell

    return bars


@pytest.mark.parametrize(("kind", "epochs"), [("resnet10", 2), ("prototypical", 8)])
def test_two_processes_compute_what_one_does_with_the_same_halves(
    coloured: Images, tmp_path: Path, kind: str, epochs: int
) -> None:
    """Both ways add the same numbers in another order, and training makes the rounding grow.

    In 8 steps of this small learning rate, weights that differ by 1e-6, ten times the rounding, lead to losses that
    differ by 1e-5 or less (six seeds). Later, and within 5 steps of a usual rate, a ReLU that changes its side makes
    the losses differ by 1e-4 to 1e-2: they are not compared. Without warmup, the first step already counts.
    """
    images = coloured()
    index = index_images(images)
    numbers = {"epochs": epochs, "learning_rate": 0.003, "warmup": 0.0}
    two = _trained_by_two(images, tmp_path / "two", kind, numbers)[:8]
    one = losses(train_backbone(index, settings(kind, numbers=numbers, accumulate=2), tmp_path / "one"))[:8]
    assert len(two) == len(one) == 8
    np.testing.assert_allclose(two, one, rtol=1e-4)
    # With whole batches, or with one task for a step, the curve is another: the comparison above means something.
    whole = losses(train_backbone(index, settings(kind, numbers=numbers), tmp_path / "whole"))[:8]
    assert not np.allclose(whole, two, rtol=1e-3)


def _trained_by_two(images: Path, folder: Path, kind: str, numbers: dict[str, Any]) -> list[float]:
    command = ["-m", "cpaan", "backbone", "train", str(images), "--recipe", "small", "--kind", kind]
    command += ["--device", "cpu", "--workers", "0", "-o", str(folder)]
    for name, value in {**TINY, **numbers}.items():
        command += ["--set", f"{name}={value}"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    done = subprocess.run(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: list[float] = json.loads((folder / "config.json").read_text())["details"]["history"]["loss"]
    return found


@pytest.mark.parametrize("cache", ["always", "never"])
@pytest.mark.parametrize("kind", ["resnet10", "prototypical"])
def test_images_that_cannot_be_read_are_named_and_refused_or_left_out(
    coloured: Images, tmp_path: Path, cache: str, kind: str
) -> None:
    root = coloured()
    bad = root / "train" / "colour1" / "03.png"
    bad.write_bytes(bad.read_bytes()[:60])
    index = index_images(root)
    with pytest.raises(InputError, match=r"colour1/03\.png cannot be read.*--on-bad skip"):
        train_backbone(index, settings(kind, cache=cache), tmp_path / "refused")
    with pytest.warns(UserWarning, match="1 images could not be read and were left out.*03.png"):
        backbone = train_backbone(index, settings(kind, cache=cache, on_bad="skip"), tmp_path / "skipped")
    assert backbone is not None
    assert list(backbone.details["skipped"]) == ["train/colour1/03.png"]
    assert np.isfinite(losses(backbone)).all()


def test_penalties_shrink_what_they_punish(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    pixels = torch.randint(0, 256, (16, 3, 12, 12), dtype=torch.uint8)
    norms = {}
    for penalty in ("none", "l2", "sgm"):
        numbers = {"penalty": penalty, "penalty_weight": 1.0, "epochs": 8}
        backbone = train_backbone(index, settings(numbers=numbers), tmp_path / penalty)
        assert backbone is not None
        norms[penalty] = float(backbone.features(pixels).norm())
        assert ("penalty" in backbone.details["history"]) == (penalty != "none")
    assert norms["l2"] < 0.8 * norms["none"]
    assert norms["sgm"] < norms["none"]


def test_prototypical_networks_can_begin_with_a_classifier(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured())
    train_backbone(index, settings(numbers={"epochs": 8}), tmp_path / "classifier")
    gentle = {"learning_rate": 1e-9, "warmup": 0.0}
    begun = train_backbone(
        index, settings("prototypical", start=tmp_path / "classifier", numbers=gentle), tmp_path / "begun"
    )
    assert begun is not None
    weights = begun.network.state_dict()
    start = Backbone.load(tmp_path / "classifier").network.state_dict()
    trained = [name for name, _ in begun.network.named_parameters()]
    assert all(torch.allclose(weights[name], start[name], atol=1e-6) for name in trained)
    with pytest.raises(InputError, match="small stem and width 2, but the recipe has a small stem and width 3"):
        train_backbone(
            index, settings("prototypical", start=tmp_path / "classifier", numbers={"width": 3}), tmp_path / "other"
        )


def test_the_distance_scale_is_trained_and_does_not_saturate(coloured: Images, tmp_path: Path) -> None:
    """Huge initial distances give a loss far above that of guessing; the default starts near it."""
    index = index_images(coloured())
    starts = {
        scale: losses(
            train_backbone(
                index,
                settings("prototypical", numbers={"distance_scale": scale, "classifier_weight": 0.0}),
                tmp_path / str(scale),
            )
        )[0]
        for scale in (1.0, 1e5)
    }
    assert starts[1.0] < 1.2 * np.log(4)
    assert starts[1e5] > 5 * np.log(4)


def test_signals_are_left_alone_outside_the_main_thread(coloured: Images, tmp_path: Path) -> None:
    index, found = index_images(coloured()), []
    thread = threading.Thread(
        target=lambda: found.append(train_backbone(index, settings(numbers={"epochs": 1}), tmp_path / "model"))
    )
    thread.start()
    thread.join()
    assert found[0] is not None


def test_learning_rates() -> None:
    small = make_backbone_recipe("small", learning_rate=1.0, warmup=0.1)
    assert learning_rate_at(0.05, small) == pytest.approx(0.5)
    assert learning_rate_at(0.1, small) == pytest.approx(1.0)
    assert learning_rate_at(0.55, small) == pytest.approx(0.5)
    assert learning_rate_at(1.0, small) == pytest.approx(0.0)
    # The benchmark's: ÷ 10 after 30 and 60 of 90 epochs.
    rates = [learning_rate_at(epoch / 90, PAPER) for epoch in (0, 29.99, 30, 59.99, 60, 89.99)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a number above 0"),
        ({"penalty": "l3"}, "penalty must be one of 'none', 'sgm', 'l2'"),
        ({"momentum": 1.0}, "momentum must be a number of at least 0 and below 1"),
        ({"stored": 8}, "stored .8 pixels. must be at least size .12."),
        ({"colour": 1}, "has no colour; it has size"),
        ({"smallest_crop": 2.0}, "smallest_crop must be a number above 0 and at most 1"),
        ({"jitter": "much"}, "jitter must be a number of at least 0"),
    ],
)
def test_wrong_numbers_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe(**changes)


def test_wrong_settings_are_refused_by_name(coloured: Images, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kind must be one of resnet10, prototypical"):
        settings("resnet11")
    with pytest.raises(InputError, match="accumulate must be"):
        settings(accumulate=0)
    with pytest.raises(InputError, match="unknown recipe 'large'; choose one of paper, small"):
        make_backbone_recipe("large")
    with pytest.raises(InputError, match="cache must be one of auto, always, never"):
        train_backbone(index_images(coloured()), settings(cache="maybe"), tmp_path / "model")


def test_a_new_run_clears_the_remains_of_another(coloured: Images, tmp_path: Path) -> None:
    """Checkpoints of a run that got further must not be taken for newer ones of this run."""
    index, folder = index_images(coloured()), tmp_path / "model"
    given = settings(checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        train_backbone(index, given, folder, bars=_failing_at(80))
    other = replace(given, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train_backbone(index, other, folder, bars=_failing_at(40))
    assert [int(path.name) for path in sorted((folder / CHECKPOINTS).iterdir())] == [3, 4]
    resumed = train_backbone(index, other, folder, resume=True)
    assert losses(resumed) == losses(train_backbone(index, other, tmp_path / "whole"))


def test_no_momentum_leaves_nothing_to_remember(coloured: Images, tmp_path: Path) -> None:
    index, folder = index_images(coloured()), tmp_path / "model"
    given = settings(checkpoint_seconds=0, numbers={"momentum": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train_backbone(index, given, folder, bars=_failing_at(40))
    resumed = train_backbone(index, given, folder, resume=True)
    assert losses(resumed) == losses(train_backbone(index, given, tmp_path / "whole"))


def test_losses_between_loggings_survive_a_stop(coloured: Images, tmp_path: Path) -> None:
    index, folder = index_images(coloured()), tmp_path / "model"
    given = replace(settings(checkpoint_seconds=0), log_every=5)
    with pytest.raises(KeyboardInterrupt):
        train_backbone(index, given, folder, bars=_failing_at(10 * 8))
    resumed = train_backbone(index, given, folder, resume=True)
    assert losses(resumed) == pytest.approx(losses(train_backbone(index, given, tmp_path / "whole")))


def test_resuming_without_a_checkpoint_says_so(coloured: Images, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="there is no checkpoint in .*: starting over"):
        train_backbone(index_images(coloured()), settings(numbers={"epochs": 1}), tmp_path / "model", resume=True)


def test_a_batch_without_a_readable_image_is_named(coloured: Images, tmp_path: Path) -> None:
    root = coloured()
    for path in (root / "train").rglob("*.png"):
        path.write_bytes(b"nothing")
    (root / "train" / "colour0" / "00.png").write_bytes((root / "val" / "colour0" / "00.png").read_bytes())
    with pytest.raises(InputError, match=r"none of the 8 images of a batch can be read, such as train/colour"):
        train_backbone(index_images(root), settings(cache="never", on_bad="skip"), tmp_path / "model")


def test_a_single_class_is_refused(coloured: Images, tmp_path: Path) -> None:
    index = index_images(coloured(), classes=["colour1"])
    with pytest.raises(InputError, match="there is 1 base class"):
        train_backbone(index, settings(), tmp_path / "model")


def test_the_second_process_reports_what_it_skipped(coloured: Images, tmp_path: Path) -> None:
    images = coloured()
    bad = sorted((images / "train" / "colour2").iterdir())[:6]
    for path in bad:
        path.write_bytes(b"nothing")
    command = ["-m", "cpaan", "backbone", "train", str(images), "--recipe", "small", "--device", "cpu"]
    command += ["--workers", "0", "--on-bad", "skip", "--cache", "never", "-o", str(tmp_path / "model")]
    for name, value in {**TINY, "epochs": 1}.items():
        command += ["--set", f"{name}={value}"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    done = subprocess.run(
        launch, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "model" / "config.json").read_text())["details"]["skipped"]
    assert sorted(found) == sorted(f"train/colour2/{path.name}" for path in bad)
    assert "trained on 42 images" in done.stdout


def test_classes_with_too_few_images_are_named(coloured: Images, tmp_path: Path) -> None:
    root = coloured()
    for number in range(2, 12):
        (root / "train" / "colour2" / f"{number:02d}.png").unlink()
    with pytest.raises(InputError, match=r"too few training images of colour2 \(2\): each class needs 4"):
        train_backbone(index_images(root), settings("prototypical"), tmp_path / "model")


def test_a_loss_that_is_no_longer_finite_is_refused(coloured: Images, tmp_path: Path) -> None:
    given = settings(numbers={"learning_rate": 1e30, "warmup": 0.0})
    with pytest.raises(InputError, match=r"no longer finite after .* smaller learning_rate"):
        train_backbone(index_images(coloured()), given, tmp_path / "model")
