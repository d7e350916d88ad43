"""The command that writes a file of features in another format."""

from pathlib import Path
from typing import Annotated

import typer

from cpaan.cli.answers import AsJson, answer
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
