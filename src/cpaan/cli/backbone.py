"""The commands that train a backbone on images."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.representations.recipe import BackboneSettings

STOPPED = 130

backbone_app = typer.Typer(
    no_args_is_help=True, epilog="Example: cpaan backbone train images --setup setup.json -o backbone"
)


@backbone_app.callback()
def backbone() -> None:
    """Networks that turn images into features."""


@backbone_app.command()
def train(
    images: Annotated[
        Path, typer.Argument(help="Folder of train/CLASS/*.jpg (and val/CLASS/*.jpg), or of tar shards of the same.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the backbone.")],
    setup: Annotated[
        Path | None, typer.Option(help="JSON that names the base classes, to train on these alone.")
    ] = None,
    kind: Annotated[str, typer.Option(help="resnet10, a plain classifier, or prototypical.")] = "resnet10",
    recipe: Annotated[str, typer.Option(help="paper (224 pixels) or small (28 to 96 pixels).")] = "paper",
    start: Annotated[Path | None, typer.Option(help="Backbone to begin with, instead of random weights.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images, instead of the recipe's.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels that the network sees, instead of the recipe's.")] = None,
    number: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any number of the recipe, such as penalty=sgm."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images; all cores but one.")] = None,
    accumulate: Annotated[int, typer.Option(help="Parts of a batch that a process takes one after the other.")] = 1,
    cache: Annotated[str, typer.Option(help="Hold all pixels in memory: auto, always or never.")] = "auto",
    on_bad: Annotated[str, typer.Option(help="refuse or skip images that cannot be read.")] = "refuse",
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a backbone that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on the images of base classes. With torchrun, on several GPUs or machines.

    Example: cpaan backbone train images --setup setup.json --recipe small -o backbone

    Example: torchrun --nproc-per-node 8 -m cpaan backbone train imagenet --setup label_idx.json -o backbone
    """
    from cpaan.cli.numbers import parse_numbers
    from cpaan.representations.recipe import make_backbone_recipe

    numbers = parse_numbers(number or [])
    numbers |= {name: value for name, value in (("epochs", epochs), ("size", size)) if value is not None}
    chosen = make_backbone_recipe(recipe, **numbers)

    from cpaan.representations.recipe import BackboneSettings

    settings = BackboneSettings(
        kind=kind,
        recipe=chosen,
        seed=seed,
        start=start,
        device=device,
        workers=decoding_workers(workers),
        on_bad=on_bad,
        cache=cache,
        accumulate=accumulate,
    )
    if _is_done(output, settings, resume=resume, overwrite=overwrite):
        answer(f"{output}: already trained", {"output": output, "trained_before": True}, as_json)
        return
    _train(images, setup, settings, output, resume=resume and not overwrite, as_json=as_json)


def _train(
    images: Path, setup: Path | None, settings: "BackboneSettings", output: Path, *, resume: bool, as_json: bool
) -> None:
    from cpaan.cli.progress import training_bars
    from cpaan.data.class_split import read_image_classes
    from cpaan.representations.images import index_images
    from cpaan.representations.training import Stopped, train_backbone

    doing(f"listing the images of {images}")
    index = index_images(images, classes=None if setup is None else read_image_classes(setup).base)
    doing("preparing the training, or testing and writing what was trained")
    try:
        with training_bars() as bars:
            backbone = train_backbone(index, settings, output, resume=resume, bars=bars.rate)
    except Stopped:
        typer.secho(f"stopped; the same command with --resume goes on from the checkpoint in {output}", err=True)
        raise typer.Exit(STOPPED) from None
    if backbone is None:
        return
    seen = index.part("train")
    missing = sum(entry.name in backbone.details.get("skipped", {}) for entry in seen.entries)
    facts = {"output": output, "kind": settings.kind, "images": len(seen) - missing, "classes": len(seen.classes)}
    text = f"{output}: {settings.kind}, trained on {len(seen) - missing} images of {len(seen.classes)} classes"
    accuracy = backbone.details.get("accuracy")
    if accuracy is not None:
        text += f"\nbase classes, test images: top-1 {accuracy['top1']:.1f} %, top-5 {accuracy['top5']:.1f} %"
    answer(text, {**facts, "accuracy": accuracy}, as_json)


def _is_done(output: Path, settings: "BackboneSettings", *, resume: bool, overwrite: bool) -> bool:
    """Tell whether there is nothing left to do; refuse a folder that must not be written to, and change nothing."""
    from cpaan.data.folders import require_model_folder
    from cpaan.representations.training import CHECKPOINTS

    begun = (output / CHECKPOINTS).is_dir()
    trained = (output / "config.json").exists() and not begun
    if begun and not resume and not overwrite:
        raise InputError(f"{output} holds a training run that was interrupted; go on with --resume, or --overwrite it")
    if trained and resume and not overwrite:
        _require_same_backbone(output, settings)
        return True
    require_model_folder(output, overwrite=overwrite or resume, ours=begun)
    return False


def _require_same_backbone(output: Path, settings: "BackboneSettings") -> None:
    from dataclasses import asdict

    from cpaan.representations.backbone import Backbone

    there = Backbone.load(output)
    found = {"kind": there.kind, "seed": there.details["seed"], **asdict(there.recipe)}
    wanted = {"kind": settings.kind, "seed": settings.seed, **asdict(settings.recipe)}
    differing = [f"{name} {found[name]} there, {wanted[name]} now" for name in wanted if found[name] != wanted[name]]
    if differing:
        raise InputError(
            f"{output} holds a backbone that was trained otherwise ({'; '.join(differing)}); give another folder, or "
            "--overwrite it"
        )


def decoding_workers(wanted: int | None) -> int:
    """Give the number of processes that decode images: all cores but one, shared by the processes of torchrun."""
    if wanted is not None:
        return wanted
    return max(0, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)
