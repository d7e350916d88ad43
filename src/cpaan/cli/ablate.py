"""The command that shows what each part of the method is worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpaan.cli.answers import AsJson, answer
from cpaan.cli.status import doing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpaan.evaluation.benchmark import Plan
    from cpaan.evaluation.run_folder import Row


def ablate(
    bank: Annotated[Path, typer.Argument(help="Features of all classes (.npz, .h5, .safetensors or .parquet).")],
    setup: Annotated[Path, typer.Option(help="JSON with the base and the novel classes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs.")],
    groups: Annotated[
        str, typer.Option(help="neighborhood, losses, departures or spread, separated by commas.")
    ] = "neighborhood,losses,departures,spread",
    method: Annotated[str, typer.Option(help="The variant that is varied.")] = "ccov-gan",
    shots: Annotated[str, typer.Option(help="Numbers of shots, separated by commas.")] = "1,5,20",
    trials: Annotated[int, typer.Option(help="Draws of the shots.")] = 5,
    classifier: Annotated[str, typer.Option(help="Final classifier after generation.")] = "linear",
    normalize: Annotated[str, typer.Option(help="none, l2 or center-l2.")] = "none",
    recipe: Annotated[str, typer.Option(help="default, quick or paper.")] = "quick",
    number: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a number in all runs.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random draw but the shots.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    measure: Annotated[str, typer.Option(help="top5 or top1, in the printed tables.")] = "top1",
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Take the method apart: run it again with one thing changed or removed, and print what that costs.

    Every run is one of cpaan bench, in a folder of its own; an interrupted one goes on where it stopped.

    Example: cpaan ablate bank.npz --setup setup.json --groups losses,spread -o runs/ablations
    """
    from cpaan.cli.bench import require_measure
    from cpaan.cli.names import parse_shots
    from cpaan.cli.numbers import parse_numbers
    from cpaan.cli.progress import training_bars
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
