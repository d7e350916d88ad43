"""Tune the numbers of a recipe on base classes held out as if novel.

An augmenter is trained on the remaining classes; its score is the top-1 accuracy of a final classifier, averaged over
LSL and GLSL, numbers of shots and draws. Novel classes and test examples play no part. The study of Optuna is a file of
JSON lines, which several processes or machines can share; nothing is unpickled.

Reference: T. Akiba, S. Sano, T. Yanase, T. Ohta and M. Koyama, "Optuna: A next-generation hyperparameter optimization
framework", KDD 2019.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid

from cpaan.augmenters.named import CPAAN
from cpaan.centers import ShotMean
from cpaan.centers.cross_validation import corrected_interval
from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.benchmark import BenchmarkData
from cpaan.data.feature_set import FeatureSet
from cpaan.data.folders import require_writable_file
from cpaan.data.low_shot import ShotSource
from cpaan.data.untrusted import require_file
from cpaan.errors import InputError
from cpaan.evaluation.benchmark import NORMALIZATIONS, normalize, run_in_processes
from cpaan.evaluation.cell import Cell, run_cell
from cpaan.evaluation.fitted_methods import FittedMethods, fit_augmenter
from cpaan.evaluation.run_folder import Interval
from cpaan.gan.objective import Variant, find_variant
from cpaan.gan.recipe import Recipe, make_recipe
from cpaan.methods import Settings, make_augmenter, make_classifier
from cpaan.threads import limited_threads

if TYPE_CHECKING:
    from optuna import Study, Trial

Space = dict[str, Any]  # Optuna's distributions by the name of a number
Tell = Callable[[int, int], None]
Indices = NDArray[np.int64]

SPACES = ("paper", "wide")
MOST_NOVEL, MOST_SHOTS, MOST_RANK = 40, 20, 64  # more leave too few base classes to translate from
FEWEST_FOLDS = 2
FEWEST_QUERIES, MOST_QUERIES = 5, 30
FEWEST_HELD_OUT, FEWEST_REMAINING = 2, 4
FEWEST_EXAMPLES = 2  # of a remaining class: one to train on, one to test
QUERY_SHARE = 4  # test at most a quarter of the examples of a remaining class
STARTUP = 5  # trials to finish before others are pruned against their median
NAME = "cpaan"  # of the study


@dataclass(frozen=True)
class TuningPlan:
    """What to tune, and how to score numbers; saved in the study, and compared when it resumes."""

    method: str = "ccov-gan"  # one of the paper's variants
    recipe: str = "quick"
    space: str = "paper"  # one of SPACES
    classifier: str = "linear"
    normalize: str = "none"
    shots: tuple[int, ...] = (1, 5)
    folds: int = 4  # of the base classes, each held out once
    draws: int = 3  # of the shots of each fold
    numbers: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, changed by name and not tuned
    seed: int = 0  # of every random draw except the numbers to try
    device: str = "auto"  # not compared

    def __post_init__(self) -> None:
        for name, least in (("folds", FEWEST_FOLDS), ("draws", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not self.shots or min(self.shots) < 1:
            raise InputError(f"shots must be whole numbers of at least 1, not {', '.join(map(str, self.shots))}")
        if self.normalize not in NORMALIZATIONS:
            raise InputError(f"unknown normalization {self.normalize!r}; choose one of {', '.join(NORMALIZATIONS)}")
        if not isinstance(self.augmenter({}), CPAAN):
            raise InputError(
                f"{self.method} has no numbers to tune; choose one of c-gan, ccyc-gan, cdeli-gan, ccov-gan"
            )
        if isinstance(make_classifier(self.classifier), MetaClassifier):
            raise InputError(f"{self.classifier} is itself trained; choose nearest-prototype, linear or cosine")
        if self.classifier == "nearest-prototype" and not isinstance(self.augmenter({}).resolve("center"), ShotMean):
            raise InputError(
                "nearest-prototype scores all numbers alike: about an estimated centre, the mean of real and synthetic "
                "examples does not depend on the networks; choose linear or cosine, or --set center=shots"
            )

    @cached_property
    def own(self) -> Recipe:
        """The recipe without tuned numbers."""
        return self.changed({})

    def changed(self, numbers: Mapping[str, Any]) -> Recipe:
        """Change numbers of the recipe; raise an error if they contradict each other."""
        given = {**self.numbers, **numbers}
        return make_recipe(self.recipe, **{k: v for k, v in given.items() if k in Recipe.__dataclass_fields__})

    def augmenter(self, numbers: Mapping[str, Any]) -> Any:
        """Make an augmenter with some numbers."""
        settings = Settings(self.recipe, self.device, self.seed, numbers={**self.numbers, **numbers})
        return make_augmenter(self.method, settings)

    def space_for(self, base: FeatureSet) -> Space:
        """Lay out the search space."""
        fewest = base.n_classes - -(-base.n_classes // self.folds)
        return make_space(self.space, self.own, find_variant(self.method), fewest, self.numbers)

    def identity(self, base: FeatureSet) -> dict[str, Any]:
        """Collect what must not change when a study resumes, as JSON reads it back."""
        plan = {name: value for name, value in asdict(self).items() if name != "device"}
        found: dict[str, Any] = json.loads(json.dumps({**plan, "data": base.fingerprint()}))
        return found


@dataclass(frozen=True)
class Setting:
    """Numbers that were tried, and their score in each fold."""

    trial: int
    numbers: Mapping[str, Any]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score over folds."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class Tuning:
    """What a study found so far."""

    own: tuple[float, ...]  # scores of the recipe's numbers, of the folds done so far
    settings: tuple[Setting, ...]  # those scored in every fold, best first
    given_up: int  # settings pruned before the last fold, or contradictory
    # Scores of the best setting and of the recipe's numbers on other folds.
    confirmed: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def gain(self, setting: Setting) -> Interval | None:
        """Compare a setting with the recipe's numbers, with an interval over folds."""
        return paired_gain(setting.scores, self.own)

    @property
    def confirmed_gain(self) -> Interval | None:
        """Gain of the best setting on other folds: being the best of many is partly luck."""
        return None if self.confirmed is None else paired_gain(*self.confirmed)


def paired_gain(scores: Sequence[float], own: Sequence[float]) -> Interval | None:
    """Average the difference over folds, with an interval for overlapping folds; None if folds are missing."""
    if len(scores) != len(own) or len(own) < FEWEST_FOLDS:
        return None
    return Interval(*corrected_interval(np.subtract(scores, own).tolist(), ratio=1 / (len(own) - 1)))


def tune(
    plan: TuningPlan,
    base: FeatureSet,
    path: Path,
    *,
    trials: int,
    timeout: float | None = None,
    jobs: int = 1,
    confirm: bool = True,
    tell: Tell | None = None,
) -> Tuning:
    """Try numbers until a study has so many trials; an existing study resumes.

    Parameters
    ----------
    plan : what to tune
    base : training examples of base classes
    path : file of the study, which other processes may share
    trials : finished or pruned, in all; each of several processes may overshoot by one
    timeout : seconds after which this call starts no trial
    jobs : processes on this machine
    confirm : score the best setting on other folds in the end
    tell : called with the number of trials done and of all trials
    """
    require_writable_file(path)
    scorer = Scorer(plan, base)
    plan.space_for(base), scorer.fold(0)  # fail before there is a file
    study = open_study(path, plan, base)
    deadline = None if timeout is None else time.time() + timeout
    _score_own(study, scorer)
    if jobs > 1:
        shared = (plan, base, path, trials, deadline)
        for _ in run_in_processes(_work_in_process, shared, [(job,) for job in range(jobs)], jobs):
            pass
    else:
        _work(study, scorer, trials, deadline, tell)
    found = read_tuning(study)
    if confirm and found.settings and found.settings[0].mean > np.mean(found.own):
        _confirm(study, scorer, found.settings[0])
        found = read_tuning(study)
    return found


def open_study(path: Path, plan: TuningPlan | None = None, base: FeatureSet | None = None) -> "Study":
    """Open or create a study, of this plan and these data if they are given."""
    optuna = require_optuna()
    journal = optuna.storages.journal
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lock = journal.JournalFileOpenLock(str(path)) if os.name == "nt" else None  # Windows restricts links
    if path.exists():
        require_file(path)
    try:
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), lock))
        study: Study = optuna.create_study(
            storage=storage,
            study_name=NAME,
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=0),
        )
    except Exception as error:  # Optuna raises nearly anything for foreign files
        raise InputError(f"{path} is not a study, or a damaged one; choose another file") from error
    if plan is not None and base is not None:
        _require_same(study, path, plan.identity(base))
        # Each start needs its own seed: two processes with the same one would try the same numbers.
        seed = int(np.random.SeedSequence([plan.seed, len(study.trials), os.getpid()]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * STARTUP)
    return study


def read_tuning(study: "Study") -> Tuning:
    """Collect what a study found so far."""
    done = [
        Setting(trial.number, trial.user_attrs["numbers"], tuple(trial.user_attrs["scores"]))
        for trial in _trials(study, "COMPLETE")
    ]
    best_first = tuple(sorted(done, key=lambda setting: (-setting.mean, setting.trial)))
    attributes = study.user_attrs
    afresh = attributes.get(f"afresh {best_first[0].trial}") if best_first else None
    return Tuning(
        own=tuple(attributes.get("own", ())),
        settings=best_first,
        given_up=len(_trials(study, "PRUNED")),
        confirmed=None if afresh is None else (tuple(afresh), tuple(attributes["own afresh"])),
    )


def require_optuna() -> Any:
    """Import Optuna, or say how to install it."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise InputError("tuning needs Optuna: pip install 'cpaan[tune]'") from error
    return optuna


def make_space(name: str, recipe: Recipe, variant: Variant, n_base: int, fixed: Mapping[str, Any]) -> Space:
    """Lay a search space around the recipe's own numbers: a λ is meaningful at one feature scale only.

    ``"paper"`` is a grid over λ_cyc, λ_cov, m, N_b and K_b, as the paper searched; ``"wide"`` has more numbers. Numbers
    that are fixed or that the variant does not use are left out; at most half of n_base classes can be meta-novel.
    """
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; choose one of {', '.join(SPACES)}")
    space = _grid(recipe, n_base) if name == "paper" else _wide(recipe, n_base)
    absent = set(fixed)
    if not variant.cycle:
        absent.add("cycle_weight")
    if not variant.covariance:
        absent |= {"covariance_weight", "ky_fan_rank", "covariance_pairs"}
    space = {number: distribution for number, distribution in space.items() if number not in absent}
    if not space:
        raise InputError("nothing is left to tune: --set fixes every number of the space; leave one out")
    return space


def _grid(recipe: Recipe, n_base: int) -> Space:
    most = max(1, n_base // 2)

    def weights(own: float) -> tuple[float, ...]:
        return tuple(rounded(own * factor) for factor in (0.2, 1.0, 5.0))

    def around(own: int, most: int) -> tuple[int, ...]:
        return tuple(sorted({max(1, own // 2), own, min(2 * own, max(own, most))}))

    choices: dict[str, tuple[float, ...]] = {
        "cycle_weight": weights(recipe.cycle_weight),
        "covariance_weight": weights(recipe.covariance_weight),
        "ky_fan_rank": around(recipe.ky_fan_rank, MOST_RANK),
        "novel_per_episode": around(min(recipe.novel_per_episode, most), most),
        "shots_per_episode": around(recipe.shots_per_episode, MOST_SHOTS),
    }
    categorical = require_optuna().distributions.CategoricalDistribution
    return {number: categorical(values) for number, values in choices.items()}


def _wide(recipe: Recipe, n_base: int) -> Space:
    optuna = require_optuna().distributions
    real, whole = partial(optuna.FloatDistribution, log=True), partial(optuna.IntDistribution, log=True)
    ratios = {"cycle_weight": 30, "covariance_weight": 30, "learning_rate": 10, "within_distance": 5}
    space = {name: real(getattr(recipe, name) / ratio, getattr(recipe, name) * ratio) for name, ratio in ratios.items()}
    space |= {
        "ky_fan_rank": whole(1, MOST_RANK),
        "novel_per_episode": whole(2, max(2, min(MOST_NOVEL, n_base // 2))),
        "shots_per_episode": whole(1, MOST_SHOTS),
        "width": optuna.CategoricalDistribution((recipe.width // 2, recipe.width, 2 * recipe.width)),
        "generator": optuna.CategoricalDistribution(("plain", "residual")),
        "covariance_pairs": optuna.CategoricalDistribution((1, 2, 4, 8, "all")),
    }
    if recipe.temperature == "calibrated":
        space["perplexity"] = real(2.0, 30.0)
    return space


def rounded(value: float) -> float:
    """Round to three significant digits, which are enough and can be typed."""
    return float(f"{value:.3g}")


def held_out_fold(base: FeatureSet, fold: int, folds: int, most_shots: int, seed: int) -> BenchmarkData:
    """Split training examples of base classes into a low-shot problem, with numbers as class names.

    Classes with fewer examples than `most_shots` and a few queries are never held out.

    >>> base = FeatureSet(np.arange(240.0).reshape(-1, 1), np.repeat(np.arange(8), 30))
    >>> data = held_out_fold(base, 0, 4, most_shots=5, seed=0)
    >>> len(data.novel_classes), len(data.base_classes), len(data.novel_test), len(data.base_test)
    (2, 6, 50, 42)
    """
    random = np.random.default_rng([seed, folds])
    order = np.argsort(base.labels, kind="stable")
    members = [random.permutation(rows) for rows in np.split(order, np.cumsum(base.counts)[:-1])]
    large = random.permutation(np.flatnonzero(base.counts >= most_shots + FEWEST_QUERIES))
    held = np.sort(large[fold::folds])
    rest = np.setdiff1d(np.flatnonzero(base.counts >= FEWEST_EXAMPLES), held)
    if len(large) // folds < FEWEST_HELD_OUT or len(rest) < FEWEST_REMAINING:
        raise InputError(
            f"{len(large)} of {base.n_classes} base classes have the {most_shots + FEWEST_QUERIES} examples that a "
            f"held-out class needs, too few for {folds} folds of {FEWEST_HELD_OUT} or more with {FEWEST_REMAINING} "
            "remaining; tune with fewer shots or fewer folds, or on more base classes"
        )
    queries = {c: min(MOST_QUERIES, len(members[c]) - most_shots) for c in held}
    queries |= {c: min(MOST_QUERIES, max(1, len(members[c]) // QUERY_SHARE)) for c in rest}
    pool = _examples(base, {c: members[c][queries[c] :] for c in held})
    places = tuple(np.arange(start, stop) for start, stop in pairwise([0, *np.cumsum(pool.counts)]))
    return BenchmarkData(
        base_train=_examples(base, {c: members[c][queries[c] :] for c in rest}),
        base_test=_examples(base, {c: members[c][: queries[c]] for c in rest}),
        novel_test=_examples(base, {c: members[c][: queries[c]] for c in held}),
        shot_source=ShotSource(pool.classes, places, pool.take),
    )


def _examples(base: FeatureSet, rows: Mapping[Any, Indices]) -> FeatureSet:
    labels = np.repeat(np.arange(len(rows)), [len(part) for part in rows.values()])
    return FeatureSet(base.features[np.concatenate([*rows.values()])], labels, map(int, rows))


@dataclass(frozen=True, eq=False)
class Scorer:
    """Score numbers of a recipe, fold by fold."""

    plan: TuningPlan
    base: FeatureSet

    def fold(self, number: int) -> BenchmarkData:
        """Make the low-shot problem of a fold, normalised as planned."""
        plan = self.plan
        return normalize(held_out_fold(self.base, number, plan.folds, max(plan.shots), plan.seed), plan.normalize)

    def score(self, numbers: Mapping[str, Any], number: int) -> float:
        """Train on all classes but those of a fold, and return the mean accuracy on the fold in percent."""
        plan, data = self.plan, self.fold(number)
        augmenter = plan.augmenter(numbers)
        with limited_threads(1):  # several processes try settings side by side
            fit_augmenter(augmenter, data.base_train)
        fitted = FittedMethods({plan.method: augmenter}, {plan.classifier: make_classifier(plan.classifier)})
        cells = [
            Cell(plan.method, plan.classifier, k, draw, plan.seed) for k in plan.shots for draw in range(plan.draws)
        ]
        return float(np.mean([row["top1"] for cell in cells for row in run_cell(data, fitted, cell)]))

    def afresh(self) -> "Scorer":
        """Change the seed, and with it folds, initial weights and shots."""
        return replace(self, plan=replace(self.plan, seed=self.plan.seed + 1))


def _require_same(study: "Study", path: Path, wanted: dict[str, Any]) -> None:
    there = study.user_attrs.get("plan")
    if there is None:
        study.set_user_attr("plan", wanted)
    elif there != wanted:
        other = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        raise InputError(f"{path} is a study with another {', '.join(other)}; choose another file or the same settings")


def _score_own(study: "Study", scorer: Scorer, name: str = "own") -> None:
    """Score the recipe's own numbers in the missing folds, and save each at once."""
    scores = [*study.user_attrs.get(name, ())]
    for fold in range(len(scores), scorer.plan.folds):
        scores.append(scorer.score({}, fold))
        study.set_user_attr(name, scores)


def _confirm(study: "Study", scorer: Scorer, best: Setting) -> None:
    name, afresh = f"afresh {best.trial}", scorer.afresh()
    _score_own(study, afresh, "own afresh")
    if name not in study.user_attrs:
        study.set_user_attr(name, [afresh.score(best.numbers, fold) for fold in range(scorer.plan.folds)])


def _work_in_process(
    plan: TuningPlan, base: FeatureSet, path: Path, trials: int, deadline: float | None, _: int
) -> None:
    _work(open_study(path, plan, base), Scorer(plan, base), trials, deadline, None)


def _work(study: "Study", scorer: Scorer, trials: int, deadline: float | None, tell: Tell | None) -> None:
    space = scorer.plan.space_for(scorer.base)
    grid = _points(space, scorer.plan.seed) if scorer.plan.space == "paper" else None
    total = trials if grid is None else min(trials, len(grid))

    def done() -> int:
        return len(_trials(study, "COMPLETE", "PRUNED"))

    while done() < total and (deadline is None or time.time() < deadline):
        if grid is not None:
            point = _next_point(study, grid)
            if point is None:
                return
            study.enqueue_trial(point)
        study.optimize(lambda trial: _objective(trial, scorer, space), n_trials=1)
        if tell is not None:
            tell(min(done(), total), total)


def _points(space: Space, seed: int) -> list[dict[str, Any]]:
    """List all points of a grid, in a random order that is the same for all processes that share a study."""
    points = list(ParameterGrid({name: distribution.choices for name, distribution in space.items()}))
    return [points[place] for place in np.random.default_rng(seed).permutation(len(points))]


def _next_point(study: "Study", grid: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Pick a point that nobody tried, else one that is being tried, perhaps by a killed process.

    Optuna's GridSampler would never try a point again after Ctrl-C stopped its trial.
    """
    finished = [trial.params for trial in _trials(study, "COMPLETE", "PRUNED")]
    running = [trial.params for trial in _trials(study, "RUNNING")]
    return min((point for point in grid if point not in finished), key=lambda point: point in running, default=None)


def _trials(study: "Study", *states: str) -> list[Any]:
    kinds = require_optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=[kinds[state] for state in states])


def _objective(trial: "Trial", scorer: Scorer, space: Space) -> float:
    optuna, plan = require_optuna(), scorer.plan
    numbers = {name: _suggest(trial, name, distribution) for name, distribution in space.items()}
    trial.set_user_attr("numbers", numbers)
    try:
        plan.changed(numbers)
    except InputError as error:
        raise optuna.TrialPruned(str(error)) from error
    scores: list[float] = []
    for fold in range(plan.folds):
        scores.append(scorer.score(numbers, fold))
        trial.set_user_attr("scores", scores)
        trial.report(float(np.mean(scores)), fold)
        if fold + 1 < plan.folds and trial.should_prune():
            raise optuna.TrialPruned
    return float(np.mean(scores))


def _suggest(trial: "Trial", name: str, distribution: Any) -> Any:
    kinds = require_optuna().distributions
    if isinstance(distribution, kinds.CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, kinds.IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, log=True)
    return rounded(trial.suggest_float(name, distribution.low, distribution.high, log=True))
