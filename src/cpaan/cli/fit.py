"""The command that trains on base classes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.data.feature_set import FeatureSet
    from cpaan.low_shot.classifier import LowShotClassifier

SIGNALLED = 128  # exit codes of what a signal ended are the signal's number above this


def fit(
    base: Annotated[Path, typer.Argument(help="Features of the base classes (.npz); test rows are left out.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    setup: Annotated[
        Path | None, typer.Option(help="JSON with the base and the novel classes: train on the base classes alone.")
    ] = None,
    part: Annotated[int | None, typer.Option(help="1 or 2: the part of the official label_idx.json.")] = None,
    novel: Annotated[
        Path | None,
        typer.Option(
            help="Features of novel classes: train directly on both, for few base classes; the model makes examples of "
            "these and has no classifier."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="Any that makes examples; see cpaan methods.")] = "ccov-gan",
    classifier: Annotated[
        str | None,
        typer.Option(
            help="What cpaan predict answers with: any of cpaan methods that makes no examples; nearest-prototype, or "
            "the one that the method was trained with."
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="default, quick or paper.")] = "default",
    episodes: Annotated[int | None, typer.Option(help="Training steps, instead of the recipe's.")] = None,
    number: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any number of the method, such as cycle_weight=2."),
    ] = None,
    reservoir: Annotated[
        int | None, typer.Option(help="Base examples kept per class to translate; 0 keeps Gaussian summaries only.")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            help="Base examples kept per class to train the classifier again; none for nearest-prototype, or with "
            "--reservoir 0, and 100 for others."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a training that was interrupted; begin where there is none.")
    ] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Shortest time between checkpoints, which lie in OUTPUT/checkpoints until it is done.")
    ] = 30.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there.")] = False,
    log: Annotated[
        str | None, typer.Option(help="tensorboard: write losses to the folder OUTPUT-tensorboard as well.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on base classes: what makes examples of new classes, and a classifier that they can be added to.

    Example: cpaan fit bank.npz --setup setup.json -o model

    Example: cpaan fit base.npz -o model --method empirical-bayes --classifier linear

    Example: cpaan fit base.npz -o model --episodes 2000 --set perplexity=8

    The networks of the paper are saved while they train, and Ctrl+C or SIGTERM stops them after the episode; the same
    command with --resume goes on, to the same bits on a CPU. Other methods begin anew.

    Example: cpaan fit base.npz -o model --episodes 2000 --set perplexity=8 --resume
    """
    from cpaan.cli.logs import check_log
    from cpaan.cli.numbers import parse_numbers
    from cpaan.cli.training_folder import CHECKPOINTS, is_trained, remove_checkpoints
    from cpaan.data.files import read_bank
    from cpaan.data.folders import locked
    from cpaan.methods import Settings, make_augmenter, make_classifier

    numbers = parse_numbers(number or [])
    numbers |= {name: value for name, value in (("episodes", episodes), ("reservoir", reservoir)) if value is not None}
    augmenter = make_augmenter(method, Settings(recipe, device, seed, numbers=numbers))
    chosen = None if classifier is None else make_classifier(classifier, Settings(recipe, device, seed))
    if novel is not None and not hasattr(augmenter, "fit_direct"):
        raise InputError(f"{method} is not trained on novel classes; leave --novel out")
    if keep is None and reservoir == 0:
        keep = 0
    check_log(log)
    logs = output.parent / f"{output.name}-tensorboard"  # beside the model, which is written whole or not at all
    with locked(output):
        if is_trained(output, augmenter, alone=novel is not None, resume=resume, overwrite=overwrite):
            answer(f"{output}: already trained", {"output": output, "trained_before": True}, as_json)
            return
        doing(f"reading {base}")
        base_set = _base_classes(base, setup, part)
        novel_set = None if novel is None else read_bank(novel).train
        if hasattr(augmenter, "callbacks"):
            augmenter.callbacks = [_checkpoints(output / CHECKPOINTS, checkpoint_seconds, resume)]
        doing(f"fitting {method} and what belongs to it")
        with _shown(f"training {method}", log, logs) as augmenter.tell, _told_how_to_resume(output):
            model = _fitted(augmenter, chosen, keep, base_set, novel_set)
        doing(f"writing {output}")
        model.save(output)
        remove_checkpoints(output)
    facts = {"output": output, "method": method, "base_classes": base_set.n_classes, "base_examples": len(base_set)}
    text = f"{output}: {method}, trained on {base_set.n_classes} base classes of {len(base_set)} examples"
    if log is not None:
        facts["logs"] = logs
        text += f"\n{logs}: losses; look at them with tensorboard --logdir {logs}"
    answer(text, facts, as_json)


def _checkpoints(folder: Path, seconds: float, resume: bool) -> Any:
    from cpaan.gan.callbacks import Checkpoints

    return Checkpoints(folder, every=1, seconds=seconds, resume=resume, stop_on_signals=True)


@contextmanager
def _shown(title: str, log: str | None, logs: Path) -> Iterator[Any]:
    from cpaan.cli.logs import logged
    from cpaan.cli.progress import training_bars

    with training_bars() as shown, logged(shown, log, logs) as bars:
        yield bars(title)


@contextmanager
def _told_how_to_resume(output: Path) -> Iterator[None]:
    """Turn a signal that ended training into a line and its exit code."""
    from cpaan.training.checkpoints import Stopped

    try:
        yield
    except Stopped as stopped:
        text = f"{stopped}; the same command with --resume goes on from the checkpoint in {output}"
        typer.secho(text, err=True)
        raise typer.Exit(SIGNALLED + stopped.signal) from None


def _base_classes(bank: Path, setup: Path | None, part: int | None) -> "FeatureSet":
    from cpaan.data.class_split import read_setup
    from cpaan.data.files import read_bank
    from cpaan.data.hdf5 import Hdf5Features, is_hdf5

    if setup is None:
        if part is not None:
            raise InputError("--part is of a setup file; give that with --setup")
        return read_bank(bank).train
    classes = read_setup(setup, part).base
    return Hdf5Features(bank).select(classes) if is_hdf5(bank) else read_bank(bank).train.select(classes)


def _fitted(
    augmenter: Any, classifier: Any, keep: int | None, base: "FeatureSet", novel: "FeatureSet | None"
) -> "LowShotClassifier | Any":
    from cpaan.low_shot.classifier import LowShotClassifier

    if novel is not None:
        return augmenter.fit_direct(base.features, base.names, novel.features, novel.names)
    model = LowShotClassifier(augmenter=augmenter, classifier=classifier, keep="auto" if keep is None else keep)
    model.fit(base.features, base.names)
    if model.augmenter_ is None:
        raise InputError(model.obstacle_ or "the method cannot learn from these base classes")
    return model
