"""The commands about files: convert features, export a generator, and describe what a file or a model holds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cpaan.cli.options import AsJson, Model
from cpaan.cli.output import answer
from cpaan.cli.status import doing
from cpaan.errors import InputError


def convert(
    source: Annotated[Path, typer.Argument(help="File of features: .npz, .h5, .safetensors or .parquet.")],
    output: Annotated[Path, typer.Argument(help="File to write; its ending says in which of these formats.")],
    only: Annotated[
        str | None, typer.Option(help="train or test rows alone; an .h5 file holds one of the two.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float16, float32 or float64; as in the file by default.")] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="Number the classes, as .h5 needs it, and write the list of their names here (JSON)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a file of features in another format.

    Example: cpaan convert bank.npz bank.parquet

    Example: cpaan convert bank.npz train.h5 --only train --names classes.json
    """
    from cpaan.data.feature_table import ENDINGS
    from cpaan.data.files import number_classes, one_part, read_table, write_features
    from cpaan.data.folders import require_writable_file

    if output.suffix.lower() not in ENDINGS:
        raise InputError(f"{output} must end in {', '.join(ENDINGS)}, which says what kind of file to write")
    for path in (output, names):
        if path is not None:
            require_writable_file(path)
    doing(f"reading {source}")
    table = read_table(source)
    # In this order, so that a class has the same number in files of training and of test rows.
    if names is not None:
        table = number_classes(table, names)
    if only is not None:
        table = one_part(table, only)
    doing(f"writing {output}")
    write_features(output, table.rows, table.is_test, dtype=dtype)
    rows = table.rows
    facts = {"output": output, "examples": len(rows), "classes": rows.n_classes, "features": rows.dimension}
    answer(f"{output}: {len(rows)} examples of {rows.n_classes} classes, {rows.dimension} features", facts, as_json)


def export(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the generator (.onnx).")],
    as_json: AsJson = False,
) -> None:
    """Write the generator of a model as an ONNX file, which runs without cpaan and torch. Takes the extra onnx.

    Its inputs example, source and target are an example of a base class, the mean of that class and the mean of a
    novel class, in your own units; any number of rows at a time.

    Example: cpaan export model -o generator.onnx
    """
    from cpaan.data.folders import require_writable_file
    from cpaan.methods import load_augmenter
    from cpaan.onnx import export_generator

    require_writable_file(output)
    doing(f"loading {model}")
    augmenter = load_augmenter(model, device="cpu")
    doing(f"writing {output} and comparing it with torch")
    difference = export_generator(augmenter, output)
    text = f"{output}: {augmenter.n_features_in_} features; onnxruntime and torch agree to {difference:.0e}"
    answer(text, {"output": output, "features": augmenter.n_features_in_, "difference": difference}, as_json)


def described(path: Path) -> dict[str, str]:
    """Describe a model's folder or a file of features, a line of words for each thing to know."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    return dict(_describe_model(path) if path.is_dir() else _describe_features(path))


def _describe_features(path: Path) -> list[tuple[str, str]]:
    from cpaan.data.files import read_bank

    bank = read_bank(path)
    everything = bank.train if bank.test is None else bank.train.concatenate(bank.test)
    counts = everything.counts
    return [
        (
            "features",
            f"{len(everything)} examples × {everything.dimension} dimensions, {everything.features.dtype}",
        ),
        ("classes", f"{everything.n_classes}, of {counts.min()} to {counts.max()} examples"),
        ("test", "none" if bank.test is None else f"{len(bank.test)} of the examples"),
        ("names", _shortened([str(name) for name in everything.classes])),
        ("size", _size(path)),
    ]


def _describe_model(path: Path) -> list[tuple[str, str]]:
    from cpaan.data.folders import TENSORS, decode_name, read_config, read_shapes

    config = read_config(path)
    shapes = read_shapes(path / TENSORS)
    names = [str(decode_name(name)) for name in config.get("classes", [])]
    describe_kind = {"CPAAN": _describe_cpaan, "backbone": _describe_backbone}.get(config["kind"], _describe_other)
    classifier = _describe_classifier(path / "classifier")
    return [*describe_kind(config, shapes), *classifier, ("names", _shortened(names)), ("size", _size(path))]


def _describe_classifier(path: Path) -> list[tuple[str, str]]:
    from cpaan.data.folders import TENSORS, decode_name, read_config, read_shapes

    if not path.is_dir():
        return []
    config, shapes = read_config(path), read_shapes(path / TENSORS)
    kept = shapes["base.deviations"][0]
    added = [str(decode_name(name)) for name in config["added"]]
    return [
        ("classifier", f"{config['classifier']['kind']}, {len(config['classes']) + len(added)} classes"),
        ("kept for it", f"{kept} base examples" if kept else "means of base classes"),
        ("added", _shortened(added) or "none"),
    ]


def _describe_cpaan(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    from cpaan.gan.recipe import RECIPES

    numbers = config["numbers"]
    kept = shapes.get("reservoir.deviations", (0,))[0]
    n_classes, rank, dimension = shapes["base.factors"]
    own = RECIPES[numbers["name"]].get_params()
    changed = {k: v for k, v in numbers.items() if v != own.get(k)}
    recipe = numbers["name"] + "".join(f", {k}={v}" for k, v in changed.items())
    return [
        ("model", f"{config['variant']}, {numbers['generator']} generator, {numbers['episodes']} episodes"),
        ("recipe", recipe),
        ("features", f"{dimension} dimensions"),
        ("base", f"{n_classes} classes: prototypes, covariances of rank {rank}"),
        ("reservoir", f"{kept} base examples" if kept else "none: Gaussian summaries only"),
        ("neighborhood", f"{numbers['neighborhood']}, temperature {config['temperature']:.4g}"),
    ]


def _describe_backbone(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    numbers, accuracy = config["numbers"], config["details"].get("accuracy")
    tested = f"top-1 {accuracy['top1']:.1f} %, top-5 {accuracy['top5']:.1f} %" if accuracy else "not tested"
    return [
        ("model", f"backbone, {config['backbone']}, {numbers['epochs']} epochs"),
        ("images", f"{numbers['size']} pixels, {numbers['stem']} stem"),
        ("features", f"{8 * numbers['width']} dimensions"),
        ("base", f"{len(config['classes'])} classes, {tested}"),
    ]


def _describe_other(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    changed = {k: v for k, v in config.get("parameters", {}).items() if v is not None}
    return [
        ("model", config["kind"]),
        ("settings", ", ".join(f"{k}={v}" for k, v in changed.items()) or "all by default"),
        ("features", f"{config.get('dimension', 'unknown')} dimensions"),
        ("base", f"{len(config.get('classes', []))} classes"),
    ]


def _shortened(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    return f"{total / 1e6:.2f} MB"
