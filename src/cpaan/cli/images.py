"""The commands that train a backbone on images and extract features with it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpaan.cli.options import STOPPED, AsJson, Device, Seed
from cpaan.cli.output import answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.representations.recipe import BackboneSettings


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
    seed: Seed = 0,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a backbone that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on the images of base classes. With torchrun, on several GPUs or machines.

    Example: cpaan backbone train images --setup setup.json --recipe small -o backbone

    Example: torchrun --nproc-per-node 8 -m cpaan backbone train imagenet --setup label_idx.json -o backbone
    """
    from cpaan.cli.options import parse_numbers
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
    from cpaan.cli.output import training_bars
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


features_app = typer.Typer(
    no_args_is_help=True, epilog="Example: cpaan features extract images --backbone backbone -o bank.npz"
)
_SHOWN = 10


@features_app.callback()
def features() -> None:
    """Files of features."""


@features_app.command()
def extract(
    images: Annotated[
        Path, typer.Argument(help="Folder of train/CLASS/*.jpg (and val/CLASS/*.jpg), or of tar shards of the same.")
    ],
    backbone: Annotated[
        str,
        typer.Option(
            help="Folder of a backbone, of which nothing is run; or package.module:function, which RUNS THAT CODE, so "
            "name only what you trust: a function that gives a torch module, a pair (module, transform), or an object "
            "with encode(images)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the features (.npz or .h5).")],
    setup: Annotated[
        Path | None,
        typer.Option(help="JSON with the classes; with label_idx.json, labels are the benchmark's class indices."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="train or test images alone; an .h5 file holds one of the two.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Pixels that a module of your own sees; 224.")] = None,
    resize: Annotated[int | None, typer.Option(help="Pixels of the shorter side that they are cut from; 256.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 256,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images; all cores but one.")] = None,
    on_bad: Annotated[str, typer.Option(help="refuse or skip images that cannot be read.")] = "refuse",
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Turn images into features. An extraction that was interrupted goes on where it stopped.

    Example: cpaan features extract images --backbone backbone -o bank.npz

    Example: cpaan features extract images --backbone mymodels:resnet50 -o bank.npz --batch-size 64
    """
    from cpaan.cli.images import decoding_workers
    from cpaan.cli.output import training_bars
    from cpaan.data.class_split import read_image_classes
    from cpaan.representations.encoders import find_encoder
    from cpaan.representations.extraction import extract_features, require_output
    from cpaan.representations.images import index_images
    from cpaan.training.device import choose_device

    if only not in (None, "train", "test"):
        raise InputError(f"--only must be train or test, not {only!r}")
    doing(f"listing the images of {images}")
    index = index_images(images, classes=None if setup is None else read_image_classes(setup).everything)
    if only is not None:
        index = index.part("train" if only == "train" else "test")
    require_output(index, output, dtype)
    doing(f"loading {backbone}")
    encoder = find_encoder(backbone, device=choose_device(device), size=size, resize=resize)
    doing("preparing to extract, or writing the features")
    with training_bars() as bars:
        found = extract_features(
            index,
            encoder,
            output,
            batch_size=batch_size,
            workers=decoding_workers(workers),
            on_bad=on_bad,
            dtype=dtype,
            tell=bars.rate("extracting", "images"),
        )
    _list_skipped(found.skipped, output)
    facts = {"output": output, "images": found.n_images, "classes": found.n_classes, "dimension": found.dimension}
    text = f"{output}: {found.n_images} images of {found.n_classes} classes, {found.dimension} features"
    answer(text, {**facts, "left_out": len(found.skipped)}, as_json)


def _list_skipped(skipped: dict[str, str], output: Path) -> None:
    """Show the first images that were left out, and write the list of all beside the features."""
    from cpaan.data.folders import write_atomically

    lines = [f"{name}: {reason}" for name, reason in skipped.items()]
    for line in lines[:_SHOWN]:
        typer.secho(f"left out: {line}", fg="yellow", err=True)
    if lines:
        path = output.with_name(f"{output.name}.skipped.txt")
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
        typer.secho(
            f"left out {len(lines)} images that cannot be read; all are listed in {path}", fg="yellow", err=True
        )
