"""The command that tunes the numbers of a recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpaan.cli.options import STOPPED, AsJson, Bank, Device, Part, Setup, Shots
from cpaan.cli.output import answer
from cpaan.cli.status import doing

if TYPE_CHECKING:
    from cpaan.evaluation.run_folder import Interval
    from cpaan.evaluation.tuning import Setting, Tuning

SHOWN = 5


def tune(
    bank: Bank,
    setup: Setup,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File of the study; one that is there goes on, and can be shared.")
    ],
    space: Annotated[
        str,
        typer.Option(help="paper: a grid over λ_cyc, λ_cov, m, N_b and K_b; wide: many numbers, by Bayesian search."),
    ] = "paper",
    trials: Annotated[int, typer.Option(help="Settings to try, by all processes that share the study.")] = 30,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which no further setting is begun.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes on this machine, of one thread each.")] = 1,
    method: Annotated[str, typer.Option(help="c-gan, ccyc-gan, cdeli-gan or ccov-gan.")] = "ccov-gan",
    recipe: Annotated[str, typer.Option(help="default, quick or paper: whose numbers are tuned.")] = "quick",
    number: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a number, which is then not tuned.")
    ] = None,
    classifier: Annotated[str, typer.Option(help="Final classifier: linear, cosine or nearest-prototype.")] = "linear",
    normalize: Annotated[str, typer.Option(help="none, l2 or center-l2.")] = "none",
    shots: Shots = "1,5",
    folds: Annotated[int, typer.Option(help="Parts of the base classes, each held out once.")] = 4,
    draws: Annotated[int, typer.Option(help="Draws of the shots in each fold.")] = 3,
    confirm: Annotated[bool, typer.Option(help="Measure the best setting again, on other folds, in the end.")] = True,
    seed: Annotated[int, typer.Option(help="Decides folds, networks and shots.")] = 0,
    device: Device = "auto",
    test: Annotated[Path | None, typer.Option(help="A second file, with the test examples; they are not used.")] = None,
    part: Part = None,
    as_json: AsJson = False,
) -> None:
    """Find better numbers of a recipe on base classes held out as if novel.

    Stop it with Ctrl-C; the same command goes on. Neither novel classes nor test examples are looked at.

    Example: cpaan tune bank.npz --setup setup.json -o study.log --space wide --trials 50
    """
    from cpaan.cli.options import parse_numbers, parse_shots
    from cpaan.cli.output import training_bars
    from cpaan.data.benchmark import load_benchmark
    from cpaan.errors import InputError
    from cpaan.evaluation.tuning import TuningPlan, open_study, read_tuning, require_optuna
    from cpaan.evaluation.tuning import tune as run_study

    if trials < 1 or jobs < 1:
        raise InputError(f"--trials and --jobs must be at least 1; got {trials} and {jobs}")
    require_optuna()
    plan = TuningPlan(
        method=method,
        recipe=recipe,
        space=space,
        classifier=classifier,
        normalize=normalize,
        shots=parse_shots(shots),
        folds=folds,
        draws=draws,
        numbers=parse_numbers(number or []),
        seed=seed,
        device=device,
    )
    doing(f"reading {bank}")
    base = load_benchmark(bank, setup, test=test, part=part).base_train
    interrupted = False
    doing("trying settings")
    try:
        with training_bars() as bars:
            tell = bars.count("tuning", "settings")
            found = run_study(plan, base, output, trials=trials, timeout=timeout, jobs=jobs, confirm=confirm, tell=tell)
    except KeyboardInterrupt:
        found, interrupted = read_tuning(open_study(output)), True
    own = {name: getattr(plan.own, name) for name in _tried(found)}
    answer(_as_text(found, own), _as_object(found, own), as_json)
    if interrupted:
        typer.echo(f"stopped; the same command goes on with {output}", err=True)
        raise typer.Exit(STOPPED)


def _tried(found: "Tuning") -> list[str]:
    return [*dict.fromkeys(name for setting in found.settings for name in setting.numbers)]


def _options(setting: "Setting", own: dict[str, Any]) -> list[str]:
    """Give what to pass to other commands: the numbers that are other than the recipe's."""
    return [f"--set {name}={value}" for name, value in setting.numbers.items() if value != own[name]]


def _as_object(found: "Tuning", own: dict[str, Any]) -> dict[str, Any]:
    def of(gain: "Interval | None") -> dict[str, float] | None:
        return None if gain is None else {"mean": gain.mean, "half_width": gain.half_width}

    return {
        "own": {"numbers": own, "scores": found.own},
        "settings": [
            {"numbers": s.numbers, "scores": s.scores, "mean": s.mean, "gain": of(found.gain(s)), "trial": s.trial}
            for s in found.settings
        ],
        "given_up": found.given_up,
        "confirmed_gain": of(found.confirmed_gain),
        "options": _options(found.settings[0], own) if found.settings else [],
    }


def _as_text(found: "Tuning", own: dict[str, Any]) -> str:
    from cpaan.reporting.tables import markdown_table

    if not found.settings:
        return f"no setting was tried in every fold yet; {found.given_up} were given up"
    header = ["setting", "score", "gain", *own]
    rows = [
        [f"trial {s.trial}", f"{s.mean:.2f}", _show(found.gain(s)), *(str(s.numbers[name]) for name in own)]
        for s in found.settings[:SHOWN]
    ]
    if found.own:
        mean = sum(found.own) / len(found.own)
        rows.append(["recipe", f"{mean:.2f}", "", *map(str, own.values())])
    lines = [
        "Top-1 accuracy in percent on base classes held out as if novel, mean of LSL and GLSL over shots and folds;",
        "the gain over the recipe's own numbers has its 95 % interval over folds:",
        "",
        markdown_table(header, rows),
        "",
        f"{len(found.settings)} settings were tried in every fold, {found.given_up} were given up before.",
    ]
    return "\n".join([*lines, *_verdict(found, own)])


def _verdict(found: "Tuning", own: dict[str, Any]) -> list[str]:
    best, afresh = found.settings[0], found.confirmed_gain
    gain, options = found.gain(best), _options(best, own)
    if gain is None:
        return ["The recipe's own numbers are not scored in every fold yet."]
    if gain.mean <= 0 or not options:
        return ["None is better than the recipe's own numbers: keep those."]
    if afresh is None:
        return [f"Best, not measured afresh: {' '.join(options)}"]
    measured = f"Measured afresh, on other folds, the best gains {_show(afresh)} points"
    if afresh.mean <= 0:
        return [f"{measured}: it was the best by luck. Keep the recipe's own numbers."]
    doubt = "" if afresh.mean > afresh.half_width else ", which may be chance"
    return [f"{measured}{doubt}. For cpaan bench and cpaan fit:", " ".join(options)]


def _show(gain: "Interval | None") -> str:
    return "" if gain is None else f"{gain.mean:+.2f} ± {gain.half_width:.2f}"
