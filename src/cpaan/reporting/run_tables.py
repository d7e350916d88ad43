"""The tables of runs, made from their folders alone."""

from collections.abc import Sequence
from typing import Any

from cpaan.errors import InputError
from cpaan.evaluation.store import RunFolder
from cpaan.reporting.benchmark import benchmark_table, difference_table


def run_tables(runs: Sequence[RunFolder], reference: str | None, measure: str) -> str:
    """Give the table of accuracies of one or more runs, and that of the differences to a reference method."""
    configs = [_config(run) for run in runs]
    rows = [row for run, config in zip(runs, configs, strict=True) for row in _sorted_rows(run, config)]
    if not rows:
        return f"{runs[0].path}: no cell is finished yet"
    text = f"{_title(configs, measure)}\n\n{benchmark_table(rows, measure)}"
    found = {row["method"] for row in rows}
    reference = reference or configs[0]["methods"][0]
    if len(found) > 1 and reference in found:
        text += f"\n\nDifference to {reference} in points, paired over trials\n\n"
        text += difference_table(rows, reference, measure)
    return text


def _config(run: RunFolder) -> dict[str, Any]:
    config = run.config()
    if config is None:
        raise InputError(f"{run.path} holds no benchmark run")
    return config


def _sorted_rows(run: RunFolder, config: dict[str, Any]) -> list[dict[str, Any]]:
    methods = list(config["methods"])
    return sorted(run.rows(), key=lambda row: methods.index(row["method"]))


def _title(configs: Sequence[dict[str, Any]], measure: str) -> str:
    def each(name: str) -> str:
        return " or ".join(dict.fromkeys(str(config[name]) for config in configs))

    return (
        f"Ours: top-{measure.removeprefix('top')} accuracy in percent, mean over {each('trials')} trials ± 95 % "
        f"interval, on {each('representation')}, normalization {each('normalize')}, classifier {each('classifier')} "
        "after generation; **best** and _second best_"
    )
