"""The command that writes a model's generator for use without torch."""

from pathlib import Path
from typing import Annotated

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing


def export(
    model: Annotated[Path, typer.Argument(help="Folder of a model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the generator (.onnx).")],
    as_json: AsJson = False,
) -> None:
    """Write the generator of a model as an ONNX file, which needs neither cpaan nor torch; needs cpaan[onnx].

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
