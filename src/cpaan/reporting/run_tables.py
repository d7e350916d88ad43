"""The tables of a run, made from its folder alone."""

from cpaan.errors import InputError
from cpaan.evaluation.store import RunFolder
from cpaan.reporting.benchmark import benchmark_table, difference_table


def run_tables(run: RunFolder, reference: str | None, measure: str) -> str:
    """Give the table of accuracies and that of the differences to a reference method."""
    config = run.config()
    if config is None:
        raise InputError(f"{run.path} holds no benchmark run")
    methods = list(config["methods"])
    found = {row["method"] for row in run.rows()}
    rows = sorted(run.rows(), key=lambda row: methods.index(row["method"]))
    if not rows:
        return f"{run.path}: no cell is finished yet"
    title = f"top-{measure.removeprefix('top')} accuracy in percent"
    text = (
        f"Ours: {title}, mean over {config['trials']} trials ± 95 % interval, normalization {config['normalize']}, "
        f"classifier {config['classifier']} after generation; **best** and _second best_\n\n"
        f"{benchmark_table(rows, measure)}"
    )
    if len(found) > 1 and (reference or methods[0]) in found:
        reference = reference or methods[0]
        text += f"\n\nDifference to {reference} in points, paired over trials\n\n"
        text += difference_table(rows, reference, measure)
    return text
