"""A study of Optuna's in a file of JSON lines, which several processes or machines share; nothing is unpickled.

Reference: T. Akiba, S. Sano, T. Yanase, T. Ohta and M. Koyama, "Optuna: A next-generation hyperparameter optimization
framework", KDD 2019.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpaan.data.feature_set import FeatureSet
from cpaan.data.folders import require_writable_file
from cpaan.data.untrusted import require_file
from cpaan.errors import InputError
from cpaan.evaluation.executors import run_in_processes
from cpaan.evaluation.tuning import Choice, Dimension, Scorer, Setting, Tuning, TuningPlan

if TYPE_CHECKING:
    from optuna import Study, Trial

NAME = "cpaan"
STARTUP = 5  # trials that are finished before others are given up against their median
Tell = Callable[[int, int], None]


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
    """Try numbers until a study has so many trials; one that is there goes on.

    Parameters
    ----------
    plan : what is tuned
    base : training examples of base classes
    path : file of the study; others may be at work on it
    trials : finished or given up, by all together; several processes may overshoot by one each
    timeout : seconds after which no further trial is begun here
    jobs : processes on this machine
    confirm : whether to measure the best setting afresh in the end
    tell : called with the number of trials done and that of all
    """
    require_writable_file(path)
    scorer = Scorer(plan, base)
    plan.space_for(base), scorer.fold(0)  # what cannot be tuned is refused before there is a file
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
    """Open or begin a study; refuse one of another plan or other data, or a file of another kind.

    Without a plan, a study that is there is opened to be read.
    """
    optuna = require_optuna()
    journal = optuna.storages.journal
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Windows lets not everyone make links.
    lock = journal.JournalFileOpenLock(str(path)) if os.name == "nt" else None
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
    # The library raises nearly anything at files that are none of its own.
    except Exception as error:
        raise InputError(f"{path} is no study, or a damaged one; give another file") from error
    if plan is not None and base is not None:
        _require_same(study, path, plan.identity(base))
        # A seed of its own for each start: two processes with one seed would try the same numbers.
        seed = int(np.random.SeedSequence([plan.seed, len(study.trials), os.getpid()]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * STARTUP)
    return study


def read_tuning(study: "Study") -> Tuning:
    """Give what a study found so far."""
    optuna = require_optuna()
    states = optuna.trial.TrialState
    done = [
        Setting(trial.number, trial.user_attrs["numbers"], tuple(trial.user_attrs["scores"]))
        for trial in study.get_trials(deepcopy=False, states=[states.COMPLETE])
    ]
    best_first = tuple(sorted(done, key=lambda setting: (-setting.mean, setting.trial)))
    attributes = study.user_attrs
    afresh = attributes.get(f"afresh {best_first[0].trial}") if best_first else None
    return Tuning(
        own=tuple(attributes.get("own", ())),
        settings=best_first,
        given_up=len(study.get_trials(deepcopy=False, states=[states.PRUNED])),
        confirmed=None if afresh is None else (tuple(afresh), tuple(attributes["own afresh"])),
    )


def require_optuna() -> Any:
    """Give Optuna, which is imported when it is first needed; refuse where it is not installed."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise InputError("tuning needs Optuna: pip install 'cpaan[tune]'") from error
    return optuna


def _require_same(study: "Study", path: Path, wanted: dict[str, Any]) -> None:
    there = study.user_attrs.get("plan")
    if there is None:
        study.set_user_attr("plan", wanted)
    elif there != wanted:
        other = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        raise InputError(f"{path} is a study with another {', '.join(other)}; give another file, or the same settings")


def _score_own(study: "Study", scorer: Scorer, name: str = "own") -> None:
    """Score the recipe's own numbers in the folds that are missing, each of which is kept at once."""
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
    grid = _grid(space, scorer.plan.seed) if scorer.plan.space == "paper" else None
    total = trials if grid is None else min(trials, len(grid))
    states = require_optuna().trial.TrialState

    def done() -> int:
        return len(study.get_trials(deepcopy=False, states=[states.COMPLETE, states.PRUNED]))

    while done() < total and (deadline is None or time.time() < deadline):
        if grid is not None:
            point = next(_untried(study, grid), None)
            if point is None:
                return
            study.enqueue_trial(point)
        study.optimize(lambda trial: _objective(trial, scorer, space), n_trials=1)
        if tell is not None:
            tell(min(done(), total), total)


def _grid(space: tuple[Dimension, ...], seed: int) -> list[dict[str, Any]]:
    """List all points in an order that is random but the same for all who share a study."""
    choices = [dimension for dimension in space if isinstance(dimension, Choice)]
    names = [dimension.name for dimension in choices]
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(d.values for d in choices))]
    return [points[place] for place in np.random.default_rng(seed).permutation(len(points))]


def _untried(study: "Study", grid: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give points that nobody tried, then those that somebody is trying now or was when they were killed."""
    states = require_optuna().trial.TrialState
    finished = [t.params for t in study.get_trials(deepcopy=False, states=[states.COMPLETE, states.PRUNED])]
    running = [t.params for t in study.get_trials(deepcopy=False, states=[states.RUNNING])]
    yield from (point for point in grid if point not in finished and point not in running)
    yield from (point for point in grid if point not in finished and point in running)


def _objective(trial: "Trial", scorer: Scorer, space: tuple[Dimension, ...]) -> float:
    optuna, plan = require_optuna(), scorer.plan
    numbers = {dimension.name: dimension.suggest(trial) for dimension in space}
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
