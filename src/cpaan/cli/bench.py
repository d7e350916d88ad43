"""The commands of the benchmark: methods, bench, table and ablate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpaan.cli.options import AsJson, Bank, Device, Part, PrintedMeasure, Reference, SeedButShots, Setup, Shots
from cpaan.cli.output import answer
from cpaan.cli.status import doing
from cpaan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpaan.evaluation.benchmark import Plan
    from cpaan.evaluation.run_folder import Row


def methods(
    as_json: AsJson = False,
) -> None:
    """List the methods that `cpaan bench` knows.

    Example: cpaan methods --json
    """
    from cpaan.methods import METHODS

    listed = [
        {"name": m.name, "summary": m.summary, "augments": m.augmenter is not None, "classifier": m.classifier}
        for m in METHODS.values()
    ]
    width = max(map(len, METHODS))
    text = "\n".join(f"{method.name:<{width}}  {method.summary}" for method in METHODS.values())
    answer(text, listed, as_json)


def bench(
    bank: Annotated[
        Path | None, typer.Argument(help="Features of all classes (.npz, .h5, .safetensors or .parquet).")
    ] = None,
    setup: Annotated[Path | None, typer.Option(help="JSON with the base and the novel classes.")] = None,
    names: Annotated[str, typer.Option("--methods", help="Names, separated by commas; see cpaan methods.")] = (
        "nearest-prototype,ccov-gan"
    ),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the run.")] = None,
    shots: Shots = "1,2,5,10,20",
    trials: Annotated[int, typer.Option(help="Draws of the shots.")] = 5,
    classifier: Annotated[
        str, typer.Option(help="Final classifier after generation: any of cpaan methods that makes no examples.")
    ] = "nearest-prototype",
    normalize: Annotated[str | None, typer.Option(help="none, l2 or center-l2; alike for all methods.")] = None,
    recipe: Annotated[str, typer.Option(help="default, quick or paper.")] = "quick",
    number: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a number of all methods that have it."),
    ] = None,
    seed: SeedButShots = 0,
    device: Device = "auto",
    test: Annotated[Path | None, typer.Option(help="A second file, with the test examples.")] = None,
    splits: Annotated[list[Path] | None, typer.Option(help="The benchmark's split files, one for each trial.")] = None,
    part: Part = None,
    reference: Reference = None,
    measure: PrintedMeasure = "top5",
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to do the cells.")] = None,
    representation: Annotated[
        str | None, typer.Option(help="What the features are, for the table; the file's name by default.")
    ] = None,
    from_paper: Annotated[bool, typer.Option("--from-paper", help="Print the published table beside.")] = False,
    log: Annotated[
        str | None, typer.Option(help="tensorboard: write losses and accuracies to the folder tensorboard of the run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fill the paper's table for a bank of features. An interrupted run goes on where it stopped.

    Example: cpaan bench bank.npz --setup setup.json --methods nearest-prototype,linear,ccov-gan -o runs/bank
    """
    from cpaan.cli.options import parse_methods, parse_numbers, parse_shots

    require_measure(measure)
    if bank is None:
        _from_folder(output, reference, measure, from_paper=from_paper, as_json=as_json)
        return
    if setup is None or output is None:
        raise InputError("a run needs a setup file (--setup) and a folder (-o)")
    listed, suffix = parse_methods(names)
    if suffix and normalize not in (None, suffix):
        raise InputError(f"methods ask for +{suffix} and --normalize for {normalize}; a run has one normalization")

    from cpaan.cli.output import check_log, logged, training_bars
    from cpaan.data.benchmark import load_benchmark
    from cpaan.evaluation.benchmark import Plan, run_benchmark

    numbers = parse_numbers(number or [])
    plan = Plan(
        methods=listed,
        shots=parse_shots(shots),
        trials=trials,
        classifier=classifier,
        normalize=suffix or normalize or "none",
        settings={"recipe": recipe, "device": device, **numbers},
        seed=seed,
        representation=representation or bank.stem,
    )
    _require_reference(reference, listed)
    check_log(log)
    doing(f"reading {bank}")
    data = load_benchmark(bank, setup, test=test, splits=splits or (), part=part)
    origin: dict[str, Any] = {"bank": str(bank), "setup": str(setup), "test": None if test is None else str(test)}
    origin |= {"splits": [str(path) for path in splits or ()], "part": part}
    doing("learning from base classes")
    with training_bars() as shown, logged(shown, log, output / "tensorboard") as bars:
        rows = run_benchmark(plan, data, output, jobs=jobs, scheduler=scheduler, bars=bars, origin=origin)
        if log is not None:
            bars.accuracies(rows)
    _from_folder(output, reference or listed[0], measure, from_paper=from_paper, as_json=as_json)


def _require_reference(reference: str | None, listed: tuple[str, ...]) -> None:
    if reference is not None and reference not in listed:
        raise InputError(f"the reference {reference!r} is not one of the methods {', '.join(listed)}")


def _from_folder(output: Path | None, reference: str | None, measure: str, *, from_paper: bool, as_json: bool) -> None:
    """Print the tables of a run as they can be made from its folder alone."""
    from cpaan.reporting.tables import published_table

    if from_paper and as_json:
        raise InputError("--from-paper prints a table for people; leave --json or --from-paper out")
    if from_paper:
        typer.echo("Published (Gao et al., NeurIPS 2018, Table 1): top-5 accuracy in percent on ImageNet\n")
        typer.echo(published_table() + "\n")
    if output is None:
        if not from_paper:
            raise InputError("give a bank of features to run on, or a run (-o), or --from-paper")
        return
    _print_runs([output], reference, measure, as_json)


def _print_runs(runs: list[Path], reference: str | None, measure: str, as_json: bool) -> None:
    from cpaan.evaluation.run_folder import RunFolder
    from cpaan.reporting.tables import run_tables

    doing("making the table")
    folders = [RunFolder(run) for run in runs]
    text = run_tables(folders, reference, measure)
    answer(text, _figures([row for folder in folders for row in folder.rows()], measure), as_json)


def _figures(rows: list[dict[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Give what the table shows, a cell at a time."""
    from cpaan.evaluation.run_folder import summarize_rows

    return [
        {
            "method": method,
            "representation": representation,
            "setting": setting,
            "shots": shots,
            "measure": measure,
            "mean": interval.mean,
            "half_width": interval.half_width,
        }
        for ((method, representation), setting, shots), interval in summarize_rows(rows, measure).items()
    ]


def table(
    runs: Annotated[list[Path], typer.Argument(help="Folders of benchmark runs.")],
    reference: Reference = None,
    measure: Annotated[str, typer.Option(help="top5 or top1.")] = "top5",
    as_json: AsJson = False,
) -> None:
    """Print the table of one or more runs; of several, with a column for the representation.

    Example: cpaan table runs/resnet10 runs/prototypical

    Example: cpaan table runs/resnet10 --measure top1 --json
    """
    require_measure(measure)
    _print_runs(runs, reference, measure, as_json)


def require_measure(measure: str) -> None:
    """Refuse a measure that there is not."""
    if measure not in ("top1", "top5"):
        raise InputError(f"--measure must be top1 or top5, not {measure!r}")


def ablate(
    bank: Bank,
    setup: Setup,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs.")],
    groups: Annotated[
        str, typer.Option(help="neighborhood, losses, departures or spread, separated by commas.")
    ] = "neighborhood,losses,departures,spread",
    method: Annotated[str, typer.Option(help="The variant that is varied.")] = "ccov-gan",
    shots: Shots = "1,5,20",
    trials: Annotated[int, typer.Option(help="Draws of the shots.")] = 5,
    classifier: Annotated[str, typer.Option(help="Final classifier after generation.")] = "linear",
    normalize: Annotated[str, typer.Option(help="none, l2 or center-l2.")] = "none",
    recipe: Annotated[str, typer.Option(help="default, quick or paper.")] = "quick",
    number: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a number in all runs.")
    ] = None,
    seed: SeedButShots = 0,
    device: Device = "auto",
    measure: PrintedMeasure = "top1",
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Take the method apart: run it again with one thing changed or removed, and print what that costs.

    Every run is one of cpaan bench, in a folder of its own; an interrupted one goes on where it stopped.

    Example: cpaan ablate bank.npz --setup setup.json --groups losses,spread -o runs/ablations
    """
    from cpaan.cli.bench import require_measure
    from cpaan.cli.options import parse_numbers, parse_shots
    from cpaan.cli.output import training_bars
    from cpaan.data.benchmark import load_benchmark
    from cpaan.evaluation.ablations import chosen_variations, run_ablations
    from cpaan.evaluation.benchmark import Plan, run_benchmark

    require_measure(measure)
    variations = chosen_variations([group.strip() for group in groups.split(",") if group.strip()])
    plan = Plan(
        methods=(method,),
        shots=parse_shots(shots),
        trials=trials,
        classifier=classifier,
        normalize=normalize,
        settings={"recipe": recipe, "device": device, **parse_numbers(number or [])},
        seed=seed,
        representation=bank.stem,
    )
    doing(f"reading {bank}")
    data = load_benchmark(bank, setup)
    origin = {"bank": str(bank), "setup": str(setup)}

    doing("learning from base classes")

    def run(varied: "Plan", folder: Path) -> "Sequence[Row]":
        with training_bars() as bars:
            return run_benchmark(varied, data, folder, jobs=jobs, bars=bars, origin=origin)

    rows = [row for found in run_ablations(plan, variations, output, run) for row in found]
    answer(_tables(rows, method, classifier, measure), rows, as_json)


def _tables(rows: "list[Row]", method: str, classifier: str, measure: str) -> str:
    from cpaan.evaluation.ablations import AS_IT_IS
    from cpaan.reporting.tables import benchmark_table, difference_table, diversity_table

    what = f"top-{measure.removeprefix('top')} accuracy in percent, {method} with the classifier {classifier}"
    parts = [
        what[0].upper() + what[1:],
        benchmark_table(rows, measure),
        f"Difference to the run {AS_IT_IS}, in points, paired over trials",
        difference_table(rows, AS_IT_IS, measure),
        "Diversity: mean distance between two examples of a class",
        diversity_table(rows),
    ]
    return "\n\n".join(parts)
