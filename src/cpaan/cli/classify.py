"""The commands that use a model as a classifier: add classes to it, and ask it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.low_shot.classifier import LowShotClassifier

BLOCK_ROWS = 2**14  # at a time, since there is a score for each row and class


def add_classes(
    model: Annotated[Path, typer.Argument(help="Folder of a model, of cpaan fit or cpaan add-classes.")],
    new: Annotated[Path, typer.Argument(help="The few examples of the new classes (.npz); test rows are left out.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model that knows them.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is there, which may be MODEL itself.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add classes to a model, or further examples of classes that were added before; base data are not needed.

    Example: cpaan add-classes model new.npz -o model-2

    Example: cpaan add-classes model-2 more.npz -o model-2 --overwrite
    """
    from cpaan.data.files import read_bank
    from cpaan.data.folders import require_model_folder

    require_model_folder(output, overwrite=overwrite)
    doing(f"reading {new}")
    shots = read_bank(new).train

    doing(f"loading {model}")
    from cpaan.low_shot.classifier import LowShotClassifier

    classifier = LowShotClassifier.load(model, device=device)
    before = set(classifier.novel_classes_)
    doing("adding the classes")
    classifier.add_classes(shots.features, shots.names)
    classifier.save(output)
    added = [name for name in shots.classes if name not in before]
    facts = {
        "output": output,
        "added": added,
        "extended": [name for name in shots.classes if name in before],
        "examples": len(shots),
        "classes": len(classifier.classes_),
    }
    text = f"{output}: {_classes(len(added))} added"
    if facts["extended"]:
        text += f", further examples of {_classes(shots.n_classes - len(added))}"
    answer(f"{text}, {len(shots)} examples in all; it knows {_classes(len(classifier.classes_))}", facts, as_json)


def _classes(number: int) -> str:
    return f"{number} class" + ("" if number == 1 else "es")


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a model, of cpaan fit or cpaan add-classes.")],
    features: Annotated[
        Path, typer.Argument(help="Features (.npz, .npy or HDF5); labels are not needed or looked at.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the answers (.csv).")],
    top: Annotated[
        int | None, typer.Option(help="The N best classes with their probabilities: row, rank, label, probability.")
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="The probability of every class: row, label, and p(NAME) for each class.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Name the class of each example, base or added. Writes lines of: row (from 0), label.

    Example: cpaan predict model features.npz -o labels.csv

    Example: cpaan predict model features.npz -o labels.csv --top 5
    """
    from cpaan.data.files import read_rows
    from cpaan.data.folders import require_writable_file

    if top is not None and proba:
        raise InputError("give --top or --proba, not both: the columns differ")
    if top is not None and top < 1:
        raise InputError(f"--top must be at least 1, not {top}")
    require_writable_file(output)
    doing(f"reading {features}")
    rows = read_rows(features)

    doing(f"loading {model}")
    from cpaan.data.folders import csv_text, write_atomically
    from cpaan.low_shot.classifier import LowShotClassifier

    classifier = LowShotClassifier.load(model, device=device)
    if rows.shape[1] != classifier.n_features_in_:
        raise InputError(
            f"{features} has {rows.shape[1]} dimensions and the model {classifier.n_features_in_}; both must come from "
            "the same representation"
        )
    header, lines, counts = _answers(classifier, rows, top, proba)
    doing(f"writing {output}")
    write_atomically(output, csv_text(header, lines).encode())
    facts = {"output": output, "examples": len(rows), "columns": header, "predicted": counts}
    answer(f"{output}: {len(rows)} examples, of {len(counts)} of {len(classifier.classes_)} classes", facts, as_json)


def _answers(
    classifier: "LowShotClassifier", rows: Any, top: int | None, proba: bool
) -> tuple[list[str], list[list[Any]], dict[str, int]]:
    """Give the header and the lines of the file, and how often each class was chosen."""
    import numpy as np

    classes = classifier.classes_.tolist()
    totals, lines = np.zeros(len(classes), dtype=np.int64), []
    for start in range(0, len(rows), BLOCK_ROWS):
        doing(f"predicting, {start:,} of {len(rows):,} examples done")
        scores = classifier.scores(rows[start : start + BLOCK_ROWS])
        totals += np.bincount(scores.argmax(axis=1), minlength=len(classes))
        lines += _lines(start, scores, classes, top, proba)
    counts = {str(name): count for name, count in zip(classes, totals.tolist(), strict=True) if count}
    if top is not None:
        return ["row", "rank", "label", "probability"], lines, counts
    return ["row", "label", *(f"p({name})" for name in classes if proba)], lines, counts


def _lines(start: int, scores: Any, classes: list[Any], top: int | None, proba: bool) -> list[list[Any]]:
    """Lay out the answers to rows from `start` on."""
    import numpy as np
    from sklearn.utils.extmath import softmax

    labels = [classes[index] for index in scores.argmax(axis=1)]
    if top is None and not proba:
        return [[row, label] for row, label in enumerate(labels, start)]
    probabilities = softmax(scores)
    if top is None:
        pairs = zip(labels, probabilities, strict=True)
        return [[row, label, *map(_short, values)] for row, (label, values) in enumerate(pairs, start)]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [start + row, rank, classes[index], _short(probabilities[row, index])]
        for row, order in enumerate(best)
        for rank, index in enumerate(order, start=1)
    ]


def _short(probability: float) -> str:
    return f"{probability:.6g}"
