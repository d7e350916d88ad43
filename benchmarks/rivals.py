"""What users would pick instead: seconds to learn, seconds to generate, and the accuracy that it buys, in one table.

Usage: python benchmarks/rivals.py [--bank bank.npz --setup setup.json] [--methods none,ctgan,ccov-gan,…] [--shots 1,5]
           [--trials 3] [--ctgan-trials 1] [--ctgan-epochs 1] [--components 16] [--reduced-epochs 30]
           [--output rivals.json]

Without `--bank` it takes CLINC150, clinc150-minilm.npz with clinc150-setup.json, from features/ in the folder that the
environment variable CPAAN_DATA names. All methods get the same shots and make the same number of examples, which fills
each novel class up to the average size of a base class; a final classifier then learns real and made ones together.

Ours learn from base classes once, and then make examples of any new classes. imbalanced-learn's SMOTE and CTGAN learn
from base and novel rows together, and learn again for every set of shots; SMOTE does it in one step, which counts as
generation.

CTGAN gets a frame with the class as its discrete column. It is no dependency of cpaan: its rows need
`pip install -c constraints.txt ctgan` beside cpaan and are left out without it. With hundreds of features its Gaussian
mixtures, one for each, take minutes and every step seconds, so that the package's 300 epochs would take many hours:
`--ctgan-epochs` is 1. A second row is what its user would try next, CTGAN on a few principal components, which are
turned back into features (`--components`, `--reduced-epochs`). CTGAN only makes the class that is asked for more
probable: rows of other classes are thrown away and more are drawn, `--ctgan-rounds` times in all, which may leave it
with far fewer examples than the others.

Seconds are of the clock and, in brackets, of the processor: on a busy machine only these can be compared, and ratios
are theirs. What is finished is kept in the output file, the same command goes on from there, and `--table` lays it out.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from cpaan.data.benchmark import BenchmarkData, load_benchmark
from cpaan.data.feature_set import FeatureSet
from cpaan.data.folders import replacing
from cpaan.evaluation.run_folder import mean_interval
from cpaan.evaluation.scores import evaluate_low_shot
from cpaan.methods import Settings, find_method, make_classifier
from cpaan.reporting.tables import markdown_table
from cpaan.threads import limited_threads

Made = tuple[NDArray[Any], NDArray[np.int64]]
Seconds = dict[str, float]
Cell = dict[str, Any]
IMBLEARN, CTGAN, REDUCED, REFERENCE = "imblearn-smote", "ctgan", "ctgan-components", "ccov-gan"
OURS = ("smote", "distribution-calibration", "feature-hallucination", "empirical-bayes", REFERENCE)
ROWS = ("none", IMBLEARN, CTGAN, REDUCED, *OURS)
TITLES = {
    "none": "no augmentation",
    IMBLEARN: "SMOTE (imbalanced-learn)",
    CTGAN: "CTGAN",
    REDUCED: "reduced CTGAN",
    "smote": "smote (cpaan)",
}
COSTS = ["refits for new classes", "fit (s)", "generate (s)", "first classes, × ccov-gan", "further ones, × ccov-gan"]
SHORT = 2.0  # seconds, below which the least of three times is taken
NO_CTGAN = "CTGAN is not installed and has no row here: pip install -c constraints.txt ctgan"


class Rival(Protocol):
    """What makes examples of novel classes, its learning and its generating apart so that both can be timed.

    Classes are numbered: base classes first, then novel ones.
    """

    refits: bool

    def learn(self, X_base: NDArray[Any], y_base: NDArray[Any], shots: FeatureSet) -> None:
        """Learn; one that refits looks at the shots, the others do not."""

    def generate(self, X_shots: NDArray[Any], y_shots: NDArray[Any], per_class: int) -> Made:
        """Make examples of the classes of the shots."""


def seconds_now() -> Seconds:
    """Give the clock, and the seconds of the processor with those of processes that were started and have ended."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"clock": time.perf_counter(), "processor": sum(each.ru_utime + each.ru_stime for each in spent)}


def timed(action: Callable[[], Any]) -> tuple[Any, Seconds]:
    """Give what an action gives, and the seconds that it takes, the least of three times where it is short."""
    found, fewest = None, {"clock": float("inf"), "processor": float("inf")}
    for _ in range(3):
        start = seconds_now()
        found = action()
        taken = {name: end - start[name] for name, end in seconds_now().items()}
        fewest = {name: min(taken[name], fewest[name]) for name in taken}
        if fewest["clock"] > SHORT:
            break
    return found, fewest


def tell(text: str) -> None:
    """Show progress on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


class Nothing:
    """No augmentation."""

    refits = False

    def learn(self, X_base: NDArray[Any], y_base: NDArray[Any], shots: FeatureSet) -> None:
        """Learn nothing."""

    def generate(self, X_shots: NDArray[Any], y_shots: NDArray[Any], per_class: int) -> Made:
        """Make nothing."""
        return X_shots[:0], y_shots[:0]


class Ours:
    """An augmenter of cpaan, which learns from base classes alone."""

    refits = False

    def __init__(self, name: str, recipe: str, device: str, seed: int) -> None:
        make = find_method(name).augmenter
        if make is None:
            raise SystemExit(f"{name} makes no examples; choose among {', '.join(ROWS)}")
        self.augmenter = make(Settings(recipe=recipe, device=device, random_state=seed))

    def learn(self, X_base: NDArray[Any], y_base: NDArray[Any], shots: FeatureSet) -> None:
        """Learn from base classes."""
        self.augmenter.fit(X_base, y_base)

    def generate(self, X_shots: NDArray[Any], y_shots: NDArray[Any], per_class: int) -> Made:
        """Make examples."""
        made, labels = self.augmenter.augment(X_shots, y_shots, per_class=per_class)
        return np.asarray(made), np.asarray(labels)


class ImbalancedLearn:
    """imbalanced-learn's SMOTE on base and novel rows together, with as many of its five neighbours as K allows."""

    refits = True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def learn(self, X_base: NDArray[Any], y_base: NDArray[Any], shots: FeatureSet) -> None:
        """Keep the base rows: there is one step only, which counts as generation."""
        self.base = X_base, y_base

    def generate(self, X_shots: NDArray[Any], y_shots: NDArray[Any], per_class: int) -> Made:
        """Fill up the novel classes."""
        from imblearn.over_sampling import SMOTE

        classes, counts = np.unique(y_shots, return_counts=True)
        wanted = {int(label): int(count) + per_class for label, count in zip(classes, counts, strict=True)}
        smote = SMOTE(
            k_neighbors=min(5, max(1, int(counts.min()) - 1)), sampling_strategy=wanted, random_state=self.seed
        )
        X, y = np.concatenate([self.base[0], X_shots]), np.concatenate([self.base[1], y_shots])
        found, labels = smote.fit_resample(X, y)
        return np.asarray(found)[len(X) :], np.asarray(labels)[len(X) :]


class ConditionalTabularGan:
    """CTGAN on a frame of base and novel rows, whose discrete column is the class."""

    refits = True

    def __init__(self, epochs: int, components: int | None, options: argparse.Namespace) -> None:
        self.epochs, self.components = epochs, components
        self.rounds, self.device, self.seed = options.ctgan_rounds, options.device, options.seed
        self.share_of_class = float("nan")

    def learn(self, X_base: NDArray[Any], y_base: NDArray[Any], shots: FeatureSet) -> None:
        """Train."""
        n_base = int(y_base.max()) + 1
        X, y = np.concatenate([X_base, shots.features]), np.concatenate([y_base, n_base + shots.labels])
        X = X.astype(np.float64)
        self.reduction = None if self.components is None else PCA(self.components, random_state=self.seed).fit(X)
        X = X if self.reduction is None else self.reduction.transform(X)
        frame = import_module("pandas").DataFrame(X, columns=[f"feature {i}" for i in range(X.shape[1])])
        frame["class"] = [f"class {label}" for label in y]
        self.model = import_module("ctgan").CTGAN(epochs=self.epochs, enable_gpu=self.device != "cpu", verbose=True)
        self.model.set_random_state(self.seed)
        self.model.fit(frame, ["class"])
        # The seconds of its processes count when they have ended.
        import_module("joblib.externals.loky").get_reusable_executor().shutdown(wait=True)

    def generate(self, X_shots: NDArray[Any], y_shots: NDArray[Any], per_class: int) -> Made:
        """Draw rows under the condition of each class."""
        classes = np.unique(y_shots)
        drawn = [self._of_class(f"class {label}", per_class) for label in classes]
        self.share_of_class = float(np.mean([share for _, share in drawn]))
        labels = np.repeat(classes, [len(rows) for rows, _ in drawn])
        if not len(labels):
            return X_shots[:0], y_shots[:0]
        made = np.array([row for rows, _ in drawn for row in rows])
        return made if self.reduction is None else self.reduction.inverse_transform(made), labels

    def special(self) -> Cell:
        """Give what is of interest about CTGAN alone."""
        return {"epochs": self.epochs, "components": self.components, "share_of_class": self.share_of_class}

    def _of_class(self, name: str, wanted: int) -> tuple[list[NDArray[Any]], float]:
        """Draw until there are enough rows of a class; give them, and the share of drawn rows that were of it."""
        right: list[NDArray[Any]] = []
        drawn = 0
        for _ in range(self.rounds):
            frame = self.model.sample(wanted, condition_column="class", condition_value=name)
            is_right = (frame.pop("class") == name).to_numpy()
            right.extend(frame.to_numpy()[is_right])
            drawn += len(frame)
            if len(right) >= wanted:
                break
        return right[:wanted], len(right) / drawn


def make_rival(name: str, options: argparse.Namespace) -> Rival:
    """Make what a row is about."""
    if name == "none":
        return Nothing()
    if name == IMBLEARN:
        return ImbalancedLearn(options.seed)
    if name == CTGAN:
        return ConditionalTabularGan(options.ctgan_epochs, None, options)
    if name == REDUCED:
        return ConditionalTabularGan(options.reduced_epochs, options.components, options)
    return Ours(name, options.recipe, options.device, options.seed)


@dataclass
class Bench:
    """The data, what was asked for, and the file of what is finished."""

    data: BenchmarkData
    options: argparse.Namespace
    record: dict[str, Any]
    learned: dict[str, tuple[Rival, Seconds]] = field(default_factory=dict)

    def cells(self) -> Iterator[tuple[str, int, int]]:
        """Name the cells: method, shots, trial."""
        for name in self.options.methods:
            trials = self.options.ctgan_trials if name in (CTGAN, REDUCED) else self.options.trials
            yield from ((name, shots, trial) for shots in self.options.shots for trial in range(trials))

    def run(self) -> None:
        """Do the cells that are not finished, and keep each in the file."""
        cells = list(self.cells())
        for number, (name, shots, trial) in enumerate(cells, start=1):
            key = f"{name} K={shots} trial={trial}"
            if key in self.record["cells"]:
                continue
            tell(f"{number} of {len(cells)}: {key}")
            found = self.cell(name, shots, trial)
            place = {"method": name, "shots": shots, "trial": trial, "load": os.getloadavg()[0]}
            self.record["cells"][key] = {**place, **found}
            with replacing(self.options.output) as temporary:
                temporary.write_text(json.dumps(self.record, indent=1))

    def cell(self, name: str, k: int, trial: int) -> Cell:
        """Learn, generate, and test the final classifiers; or give the error where a rival refuses."""
        shots = self.data.shots(trial, k)
        y_shots = self.data.base_train.n_classes + shots.labels
        per_class = max(round(float(self.data.base_train.counts.mean())) - k, 1)
        with limited_threads(self.options.threads):
            rival, learning = self.learn(name, shots)
            try:
                made, generating = timed(partial(rival.generate, shots.features, y_shots, per_class))
            except ValueError as error:
                if not rival.refits:
                    raise
                return {"refits": rival.refits, "error": str(error).strip()}
            scores = {each: self.score(each, shots, made) for each in self.options.classifiers}
        found = {"refits": rival.refits, "learning": learning, "generating": generating, "made": len(made[0])}
        special = rival.special() if isinstance(rival, ConditionalTabularGan) else {}
        return {**found, **special, "scores": scores}

    def learn(self, name: str, shots: FeatureSet) -> tuple[Rival, Seconds]:
        """Learn, anew where a rival refits."""
        if name in self.learned:
            return self.learned[name]
        rival, base = make_rival(name, self.options), self.data.base_train
        _, seconds = timed(partial(rival.learn, base.features, base.labels, shots))
        if not rival.refits:
            self.learned[name] = rival, seconds
        return rival, seconds

    def score(self, name: str, shots: FeatureSet, made: Made) -> dict[str, float]:
        """Test a final classifier that has learned real and made examples together."""
        base, base_test, novel_test = self.data.base_train, self.data.base_test, self.data.novel_test
        X = np.concatenate([base.features, shots.features, made[0]]).astype(np.float32)
        y = np.concatenate([base.labels, base.n_classes + shots.labels, made[1]])
        X_test = np.concatenate([base_test.features, novel_test.features])
        y_test = np.concatenate([base_test.labels, base.n_classes + novel_test.labels])
        novel = base.n_classes + np.arange(shots.n_classes)
        classifier: Any = make_classifier(name)
        return evaluate_low_shot(classifier.fit(X, y), X_test, y_test, novel, (1,)).as_dict()


def mean_seconds(cells: list[Cell], part: str) -> Seconds:
    """Average over cells."""
    return {name: float(np.mean([cell[part][name] for cell in cells])) for name in ("clock", "processor")}


def digits(value: float) -> str:
    """Show three digits, or all before the point."""
    if value < 0.001:
        return "< 0.001"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def accuracies(cells: list[Cell], classifier: str, shots: tuple[int, ...]) -> list[str]:
    """Give the accuracies of a row, novel classes alone and all, over its trials."""
    found = []
    for measure in ("lsl_top1", "glsl_top1"):
        for k in shots:
            there = [cell for cell in cells if cell["shots"] == k]
            values = [cell["scores"][classifier][measure] for cell in there if "error" not in cell]
            found.append(str(mean_interval(values)) if values else ("fails" if there else "not measured"))
    return found


def costs(cells: list[Cell], reference: list[Cell]) -> list[str]:
    """Give the seconds of a row, and its ratios to the reference: the first set of classes, and every further one."""
    cells = [cell for cell in cells if "error" not in cell]
    if not cells:
        return ["fails"] * 4
    parts = [mean_seconds(cells, part) for part in ("learning", "generating")]
    shown = [f"{digits(part['clock'])} ({digits(part['processor'])})" for part in parts]
    if not reference:
        return [*shown, "", ""]
    theirs = [mean_seconds(reference, part)["processor"] for part in ("learning", "generating")]
    first = sum(part["processor"] for part in parts)
    further = first if cells[0]["refits"] else parts[1]["processor"]
    return [*shown, digits(first / sum(theirs)), digits(further / theirs[1])]


def title(name: str, cells: list[Cell]) -> str:
    """Name a row; of CTGAN, how long and how often it was trained."""
    if name not in (CTGAN, REDUCED):
        return TITLES.get(name, name)
    of = f" on {cells[0]['components']} components" if name == REDUCED else ""
    trials = len({cell["trial"] for cell in cells})
    return f"CTGAN{of}, {cells[0]['epochs']} epoch(s), {trials} trial(s)"


def table(record: dict[str, Any], options: argparse.Namespace) -> str:
    """Lay out what was measured: seconds and accuracies with the first classifier, then the other classifiers."""
    rows: dict[str, list[Cell]] = {name: [] for name in options.methods}
    for cell in record["cells"].values():
        if cell["method"] in rows:
            rows[cell["method"]].append(cell)
    rows = {name: cells for name, cells in rows.items() if cells}
    settings = [f"{name}, K={k}" for name in ("LSL", "GLSL") for k in options.shots]
    titles = {name: title(name, cells) for name, cells in rows.items()}
    refits = {name: "–" if name == "none" else ("yes" if cells[0]["refits"] else "no") for name, cells in rows.items()}
    parts = [headline(record, options)]
    for classifier in options.classifiers:
        header, lines = ["method", *settings], []
        for name in rows:
            lines.append([titles[name], *accuracies(rows[name], classifier, options.shots)])
            if classifier == options.classifiers[0]:
                spent = ["–"] * 4 if name == "none" else costs(rows[name], rows.get(REFERENCE, []))
                lines[-1][1:1] = [refits[name], *spent]
        if classifier == options.classifiers[0]:
            header[1:1] = COSTS
        parts.append(f"Final classifier {classifier}:\n\n{markdown_table(header, lines)}")
    return "\n\n".join([*parts, *remarks([cell for cells in rows.values() for cell in cells])]) + "\n"


def headline(record: dict[str, Any], options: argparse.Namespace) -> str:
    """Say what was measured."""
    asked, loads = record["asked"], [cell["load"] for cell in record["cells"].values()]
    return (
        f"{asked['bank']}: {asked['base']} base and {asked['novel']} novel classes, {asked['dimension']} features; "
        f"top-1 accuracy in percent, {options.trials} trials. Seconds of the clock (of the processor); "
        f"threads: {asked['threads']}; load of the machine, this run included, {min(loads):.1f} to {max(loads):.1f}."
    )


def remarks(cells: list[Cell]) -> list[str]:
    """Say what a user of a rival sees where it fails, and how often CTGAN made the class that it was asked for."""
    errors = {
        f"{TITLES[cell['method']]} fails with K={cell['shots']}: {cell['error']}" for cell in cells if "error" in cell
    }
    shares = [
        (TITLES[cell["method"]], cell["shots"], 100 * cell["share_of_class"])
        for cell in cells
        if "share_of_class" in cell
    ]
    made = [
        f"{name}, K={k}: {np.mean([share for *each, share in shares if each == [name, k]]):.2g} % of the rows that it "
        "drew were of the class asked for."
        for name, k in dict.fromkeys((name, k) for name, k, _ in shares)
    ]
    return [*sorted(errors), *made]


def installed(package: str) -> str | None:
    """Give the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def open_record(data: BenchmarkData, options: argparse.Namespace) -> dict[str, Any]:
    """Take up the output file where it is of the same measurement, or begin one."""
    kept = (
        "recipe",
        "device",
        "threads",
        "seed",
        "ctgan_epochs",
        "ctgan_rounds",
        "components",
        "reduced_epochs",
    )
    asked = {
        "bank": options.bank.stem,
        "fingerprint": data.fingerprint,
        "base": len(data.base_classes),
        "novel": len(data.novel_classes),
        "dimension": data.base_train.dimension,
        "classifiers": list(options.classifiers),
        **{name: getattr(options, name) for name in kept},
        "versions": {name: version(name) for name in ("cpaan", "torch", "scikit-learn", "imbalanced-learn")},
    }
    if not options.output.exists():
        return {"asked": asked, "ctgan": installed(CTGAN), "cells": {}}
    record: dict[str, Any] = json.loads(options.output.read_text())
    differing = [name for name, value in asked.items() if record["asked"].get(name) != value]
    if differing:
        raise SystemExit(f"{options.output} was measured with other {', '.join(differing)}; give another --output")
    return record


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    features = Path(os.environ.get("CPAAN_DATA", Path(__file__).parents[2] / "shared" / "data")) / "features"
    parser.add_argument("--bank", type=Path, default=features / "clinc150-minilm.npz")
    parser.add_argument("--setup", type=Path, default=features / "clinc150-setup.json")
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=ROWS)
    parser.add_argument("--shots", type=lambda text: tuple(map(int, text.split(","))), default=(1, 5))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument(
        "--classifiers", type=lambda text: tuple(text.split(",")), default=("linear", "nearest-prototype")
    )
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--ctgan-trials", type=int, default=1)
    parser.add_argument("--ctgan-epochs", type=int, default=1, help="the package's default is 300")
    parser.add_argument("--ctgan-rounds", type=int, default=2)
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--reduced-epochs", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing, lay out what the output file holds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("rivals.json"))
    options = parser.parse_args()
    if unknown := [name for name in options.methods if name not in ROWS]:
        parser.error(f"unknown method {', '.join(unknown)}; choose among {', '.join(ROWS)}")
    return options


def main() -> None:
    """Measure every row; print a table and write the figures."""
    options = parse()
    if not options.table and {CTGAN, REDUCED} & set(options.methods) and installed(CTGAN) is None:
        tell(NO_CTGAN)
        options.methods = tuple(name for name in options.methods if name not in (CTGAN, REDUCED))
    for path in (options.bank, options.setup):
        if not path.exists():
            raise SystemExit(f"no file {path}; give --bank and --setup, or set CPAAN_DATA to the folder with the data")
    data = load_benchmark(options.bank, options.setup)
    record = open_record(data, options)
    if not options.table:
        Bench(data, options, record).run()
    if not record["cells"]:
        raise SystemExit(f"nothing is measured yet in {options.output}")
    sys.stdout.write(table(record, options))


if __name__ == "__main__":
    main()
