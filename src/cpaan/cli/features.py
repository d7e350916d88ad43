"""The commands that make files of features."""

from pathlib import Path
from typing import Annotated

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Turn images into features. An extraction that was interrupted goes on where it stopped.

    Example: cpaan features extract images --backbone backbone -o bank.npz

    Example: cpaan features extract images --backbone mymodels:resnet50 -o bank.npz --batch-size 64
    """
    from cpaan.cli.backbone import decoding_workers
    from cpaan.cli.progress import training_bars
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
