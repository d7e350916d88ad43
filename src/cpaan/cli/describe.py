"""What a model or a file of features holds, in words; read without loading torch."""

from pathlib import Path
from typing import Any

from cpaan.errors import InputError


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
