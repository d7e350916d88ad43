"""The commands of `cpaan`. Whatever is slow to import is imported by the command that needs it."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cpaan.cli.advise import advise
from cpaan.cli.backbone import backbone_app
from cpaan.cli.bench import bench, methods, table
from cpaan.cli.convert import convert
from cpaan.cli.export import export
from cpaan.cli.features import features_app
from cpaan.cli.report import report
from cpaan.errors import InputError

USAGE_ERROR = 2

# Before torch is loaded: threads that wait in a loop for one another make small operations on a busy machine take many
# times as long as those that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Commands(TyperGroup):
    """A group of commands that turns what was given wrongly into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an `InputError` is printed without a traceback."""
        warnings.showwarning = _note
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(USAGE_ERROR) from error


app = typer.Typer(
    cls=Commands,
    name="cpaan",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Synthetic features for classes with a handful of examples.",
)


def main() -> None:
    """Run the command line."""
    app()


def _note(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.secho(f"note: {message}", fg="yellow", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from cpaan import __version__

        typer.echo(f"cpaan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures and the table.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
) -> None:
    """Show what it does: a spiral, imagined letters, and a table. Two to three minutes on two cores.

    Example: cpaan demo --out demo
    """
    from cpaan.cli.progress import training_bars
    from cpaan.demo.run import run_demo

    with training_bars() as bars:
        result = run_demo(out, seed, bars)
    typer.echo(result.table)
    typer.echo("\nWritten: " + ", ".join(str(path) for path in result.written))


@app.command()
def fit(
    base: Annotated[Path, typer.Argument(help="Features of the base classes (.npz); test rows are left out.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    novel: Annotated[
        Path | None,
        typer.Option(help="Features of novel classes: train directly on both, for few base classes."),
    ] = None,
    method: Annotated[str, typer.Option(help="Any that makes examples; see cpaan methods.")] = "ccov-gan",
    recipe: Annotated[str, typer.Option(help="default, quick or paper.")] = "default",
    episodes: Annotated[int | None, typer.Option(help="Training steps, instead of the recipe's.")] = None,
    number: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any number of the method, such as cycle_weight=2."),
    ] = None,
    reservoir: Annotated[
        int | None, typer.Option(help="Base examples kept per class; 0 keeps Gaussian summaries only.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there.")] = False,
    log: Annotated[
        str | None, typer.Option(help="tensorboard: write losses to the folder OUTPUT-tensorboard as well.")
    ] = None,
) -> None:
    """Train an augmenter on base classes.

    Example: cpaan fit base.npz -o model --episodes 2000 --set perplexity=8
    """
    from cpaan.cli.logs import check_log, logged
    from cpaan.cli.numbers import parse_numbers
    from cpaan.cli.progress import training_bars
    from cpaan.data.archive import read_bank
    from cpaan.data.outputs import require_model_folder
    from cpaan.methods import Settings, make_augmenter

    numbers = parse_numbers(number or [])
    numbers |= {name: value for name, value in (("episodes", episodes), ("reservoir", reservoir)) if value is not None}
    augmenter = make_augmenter(method, Settings(recipe, device, seed, numbers=numbers))
    require_model_folder(output, overwrite=overwrite)
    check_log(log)
    logs = output.parent / f"{output.name}-tensorboard"  # beside the model, which is written whole or not at all
    base_set = read_bank(base).train
    novel_set = None if novel is None else read_bank(novel).train
    with training_bars() as shown, logged(shown, log, logs) as bars:
        augmenter.tell = bars(f"training {method}")
        if novel_set is None:
            augmenter.fit(base_set.features, base_set.names)
        elif hasattr(augmenter, "fit_direct"):
            augmenter.fit_direct(base_set.features, base_set.names, novel_set.features, novel_set.names)
        else:
            raise InputError(f"{method} is not trained on novel classes; leave --novel out")
    augmenter.save(output)
    typer.echo(f"{output}: {method}, trained on {base_set.n_classes} base classes of {len(base_set)} examples")
    if log is not None:
        typer.echo(f"{logs}: losses; look at them with tensorboard --logdir {logs}")


@app.command()
def augment(
    model: Annotated[Path, typer.Argument(help="Folder of a model.")],
    novel: Annotated[Path, typer.Argument(help="The few examples of the novel classes (.npz).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the synthetic examples (.npz).")],
    per_class: Annotated[
        int | None,
        typer.Option(help="Synthetic examples per class; by default up to the average size of a base class."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another draw than the model's own seed gives.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Make synthetic examples of novel classes; the file holds only these.

    Example: cpaan augment model novel.npz -o synthetic.npz --per-class 200
    """
    from cpaan.data.archive import read_bank, write_features
    from cpaan.data.feature_set import FeatureSet
    from cpaan.data.outputs import require_writable_file

    require_writable_file(output)
    shots = read_bank(novel).train

    from cpaan.methods import load_augmenter

    augmenter = load_augmenter(model, device=device)
    if seed is not None:
        augmenter.random_state = seed
    features, labels = augmenter.augment(shots.features, shots.names, per_class=per_class)
    if not len(features):
        raise InputError(
            "every novel class has as many examples as a base class on average, so there is nothing to make; "
            "ask for a number with --per-class"
        )
    made = FeatureSet(features, labels)
    write_features(output, made)
    typer.echo(f"{output}: {len(made)} synthetic examples of {made.n_classes} classes")


@app.command()
def info(path: Annotated[Path, typer.Argument(help="Folder of a model, or a file of features.")]) -> None:
    """Tell what a model or a file of features holds, and how large it is.

    Example: cpaan info model
    """
    from cpaan.cli.describe import describe

    typer.echo(describe(path))


app.add_typer(backbone_app, name="backbone")
app.add_typer(features_app, name="features")
app.command()(advise)
app.command()(convert)
app.command()(export)
app.command()(bench)
app.command()(table)
app.command()(report)
app.command()(methods)


if __name__ == "__main__":
    main()
