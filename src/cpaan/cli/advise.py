"""The command that tells what synthetic examples are worth before any are made."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpaan.cli.options import AsJson, Bank, Part, Seed, Setup
from cpaan.cli.output import answer
from cpaan.cli.status import doing

if TYPE_CHECKING:
    from cpaan.centers.advice import Advice, Prediction
    from cpaan.data.benchmark import BenchmarkData
    from cpaan.data.feature_set import FeatureSet

# Enough to see how far classes lie apart.
MOST_EXAMPLES = 100


def advise(
    bank: Bank,
    setup: Setup,
    test: Annotated[Path | None, typer.Option(help="Features of the test examples, if not in the bank.")] = None,
    part: Part = None,
    rounds: Annotated[int, typer.Option(help="How often base classes are parted into four folds.")] = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tell how much synthetic examples are expected to gain, from base classes held out as if novel.

    Test examples are not looked at. Example: cpaan advise bank.npz --setup setup.json
    """
    from cpaan.centers.advice import advise_on
    from cpaan.data.benchmark import load_benchmark
    from cpaan.errors import InputError

    if rounds < 1:
        raise InputError(f"--rounds must be at least 1, not {rounds}")
    doing(f"reading {bank}")
    data = load_benchmark(bank, setup, test=test, part=part)
    doing("holding base classes out as if novel")
    advice = advise_on(data.base_train, _known_novel(data), rounds=rounds, seed=seed)
    answer(_as_text(advice), _as_object(advice), as_json)


def _known_novel(data: "BenchmarkData") -> "FeatureSet":
    import numpy as np

    source = data.shot_source
    return source.take(np.concatenate([rows[:MOST_EXAMPLES] for rows in source.members]))


def _as_object(advice: "Advice") -> dict[str, object]:
    def of(predictions: "tuple[Prediction, ...]") -> list[dict[str, object]]:
        return [{"gain": p.mean, "low": p.low, "high": p.high, "verdict": p.verdict} for p in predictions]

    return {
        "separation": advice.separation,
        "shots": advice.shots,
        "lsl": of(advice.lsl),
        "glsl": of(advice.glsl),
        "uncorrected_lsl": of(advice.plain_lsl),
        "uncorrected_glsl": of(advice.plain_glsl),
    }


def _as_text(advice: "Advice") -> str:
    lines = [
        "Expected gain in points of top-1 accuracy, nearest prototype, with its 95 % interval, on base classes held",
        "out as if novel and pulled together to lie as far apart as the novel ones do:",
        "",
        f"{'K':>3}  {'novel classes (LSL)':<36}{'all classes (GLSL)':<36}",
    ]
    for k, lsl, glsl in zip(advice.shots, advice.lsl, advice.glsl, strict=True):
        lines.append(f"{k:>3}  {_show(lsl):<36}{_show(glsl)}")
    lines += ["", f"Novel classes lie {advice.separation:.2f} times as far apart as base classes."]
    if advice.separation < 1:
        plain = "; ".join(
            f"K={k} {lsl.mean:+.1f} LSL, {glsl.mean:+.1f} GLSL"
            for k, lsl, glsl in zip(advice.shots, advice.plain_lsl, advice.plain_glsl, strict=True)
        )
        lines.append(f"If they were like base classes, the gain would be: {plain}.")
    return "\n".join(line.rstrip() for line in [*lines, *_sentences(advice)])


def _show(prediction: "Prediction") -> str:
    interval = f"({prediction.low:+.1f} to {prediction.high:+.1f})"
    return f"{prediction.mean:+5.1f} {interval:<17}{prediction.verdict}"


def _sentences(advice: "Advice") -> list[str]:
    found = []
    for where, predictions in (("novel classes alone", advice.lsl), ("all classes", advice.glsl)):
        parts = []
        for verdict in ("helps", "will not help", "cannot tell"):
            shots = [str(k) for k, p in zip(advice.shots, predictions, strict=True) if p.verdict == verdict]
            if shots:
                parts.append(f"{verdict} at K = {', '.join(shots)}")
        found.append(f"On {where}, augmentation: {'; '.join(parts)}.")
    return found
