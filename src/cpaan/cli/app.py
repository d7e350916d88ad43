"""The commands of `cpaan`. Whatever is slow to import is imported by the command that needs it."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cpaan.cli.ablate import ablate
from cpaan.cli.advise import advise
from cpaan.cli.answers import AsJson, answer
from cpaan.cli.backbone import STOPPED, backbone_app
from cpaan.cli.bench import bench, methods, table
from cpaan.cli.classify import add_classes, predict
from cpaan.cli.convert import convert
from cpaan.cli.export import export
from cpaan.cli.features import features_app
from cpaan.cli.fit import fit
from cpaan.cli.report import report
from cpaan.cli.status import doing, status_line
from cpaan.cli.tune import tune
from cpaan.errors import InputError

USAGE_ERROR = 2
EPILOG = """\
Example: cpaan fit bank.npz --setup setup.json -o model

Example: cpaan add-classes model new.npz -o model-2

Example: cpaan predict model-2 features.npz -o labels.csv

cpaan COMMAND --help shows an example of every command.

Exit codes: 0 done; 1 an unforeseen fault, with its traceback; 2 something given cannot be used, and a line says why; \
130 stopped by Ctrl+C, 143 by SIGTERM. A benchmark or an extraction that was stopped goes on with the same command, a \
training with --resume as well.
"""

# Before torch is loaded: threads that wait in a loop for one another make small operations on a busy machine take many
# times as long as those that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Commands(TyperGroup):
    """A group of commands that turns what was given wrongly into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an `InputError` is printed without a traceback."""
        warnings.showwarning = _note
        try:
            with status_line(wanted="--json" not in ctx.args):
                return super().invoke(ctx)
        except InputError as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(USAGE_ERROR) from error
        except KeyboardInterrupt:
            typer.secho("stopped", err=True)
            raise typer.Exit(STOPPED) from None


app = typer.Typer(
    cls=Commands,
    name="cpaan",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Synthetic features for classes with a handful of examples.",
    epilog=EPILOG,
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
    as_json: AsJson = False,
) -> None:
    """Show what it does: a spiral, imagined letters, and a table. About a minute on two cores.

    Example: cpaan demo --out demo
    """
    from cpaan.cli.progress import training_bars
    from cpaan.demo.processes import load_ahead, usable_processes

    processes = usable_processes()
    doing("making the demonstration")
    with training_bars() as bars:
        loading = bars.count("loading", "libraries")
        loading(0, 1)
        if processes > 1:
            load_ahead()
        from cpaan.demo.run import run_demo

        loading(1, 1)
        result = run_demo(out, seed, bars, bars.say, processes)
    text = f"{result.table}\n\nWritten: {', '.join(str(path) for path in result.written)}"
    answer(text, {"table": result.table, "written": result.written}, as_json)


app.command()(fit)
app.command()(add_classes)
app.command()(predict)


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
    as_json: AsJson = False,
) -> None:
    """Make synthetic examples of novel classes; the file holds only these.

    Example: cpaan augment model novel.npz -o synthetic.npz --per-class 200
    """
    from cpaan.data.feature_set import FeatureSet
    from cpaan.data.files import read_bank, write_features
    from cpaan.data.folders import require_writable_file

    require_writable_file(output)
    doing(f"reading {novel}")
    shots = read_bank(novel).train

    doing(f"loading {model}")
    from cpaan.methods import load_augmenter

    augmenter = load_augmenter(model, device=device)
    if seed is not None:
        augmenter.random_state = seed
    doing("making examples")
    features, labels = augmenter.augment(shots.features, shots.names, per_class=per_class)
    if not len(features):
        raise InputError(
            "every novel class has as many examples as a base class on average, so there is nothing to make; "
            "ask for a number with --per-class"
        )
    made = FeatureSet(features, labels)
    doing(f"writing {output}")
    write_features(output, made)
    facts = {"output": output, "examples": len(made), "classes": made.classes}
    answer(f"{output}: {len(made)} synthetic examples of {made.n_classes} classes", facts, as_json)


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="Folder of a model, or a file of features.")], as_json: AsJson = False
) -> None:
    """Tell what a model or a file of features holds, and how large it is.

    Example: cpaan info model

    Example: cpaan info bank.npz --json
    """
    from cpaan.cli.describe import described

    doing(f"reading {path}")
    found = described(path)
    width = max(map(len, found))
    answer("\n".join(f"{name:<{width}}  {value}" for name, value in found.items()), found, as_json)


app.add_typer(backbone_app, name="backbone")
app.add_typer(features_app, name="features")
app.command()(advise)
app.command()(convert)
app.command()(export)
app.command()(bench)
app.command()(ablate)
app.command()(table)
app.command()(report)
app.command()(methods)
app.command()(tune)


if __name__ == "__main__":
    main()
