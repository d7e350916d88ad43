import builtins
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.evaluation.tuning import (
    Scorer,
    Setting,
    Tuning,
    TuningPlan,
    held_out_fold,
    make_space,
    open_study,
    paired_gain,
    read_tuning,
    rounded,
    tune,
)
from cpaan.gan.objective import find_variant
from cpaan.gan.recipe import PAPER, QUICK

pytest.importorskip("optuna", reason="needs the extra 'tune'")

rng = np.random.default_rng(0)
X = (2 * rng.normal(size=(16, 1, 6)) + rng.normal(size=(16, 24, 6))).reshape(-1, 6).astype(np.float32)
BASE = FeatureSet(X, np.repeat([f"c{i:02}" for i in range(16)], 24))
FAST: dict[str, Any] = {"episodes": 2, "width": 8, "noise_dimension": 4, "center": "shots"}
PLAN = TuningPlan(numbers=FAST, device="cpu", draws=1)


def wanted(numbers: Mapping[str, Any]) -> float:
    """A score that is best at one corner of the grid."""
    own = {"cycle_weight": 50.0, "covariance_weight": 10.0, "ky_fan_rank": 10, **numbers}
    return float(own["cycle_weight"] / 100 - own["covariance_weight"] / 100 + own["ky_fan_rank"] / 10)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any], int]]:
    """Numbers score as `wanted` says, without training, and what was asked for is remembered."""
    found: list[tuple[int, dict[str, Any], int]] = []

    def score(scorer: Scorer, numbers: Mapping[str, Any], fold: int) -> float:
        found.append((scorer.plan.seed, dict(numbers), fold))
        return 50 + wanted(numbers) + 10 * fold

    monkeypatch.setattr(Scorer, "score", score)
    return found


GRID = TuningPlan(numbers={**FAST, "novel_per_episode": 3, "shots_per_episode": 2}, device="cpu")  # 27 points are left


def rows(features: Any) -> set[tuple[float, ...]]:
    return set(map(tuple, features.tolist()))


def test_folds_hold_every_class_out_once_and_share_no_example() -> None:
    held: list[Any] = []
    for fold in range(4):
        data = held_out_fold(BASE, fold, 4, most_shots=5, seed=3)
        held += data.novel_classes
        assert not set(data.novel_classes) & set(data.base_classes)
        assert len(data.base_classes) + len(data.novel_classes) == 16
        pool = rows(data.shot_source.take(np.concatenate(data.shot_source.members)).features)
        parts = [pool, *(rows(part.features) for part in (data.base_train, data.base_test, data.novel_test))]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(BASE)
        for part in (data.base_train, data.base_test, data.novel_test, data.shots(0, 5)):
            for features, label in zip(part.features, part.labels, strict=True):
                assert features in BASE.features[BASE.labels == part.classes[label]]
    assert sorted(held) == list(range(16))
    again = held_out_fold(BASE, 0, 4, most_shots=5, seed=3)
    assert again.fingerprint == held_out_fold(BASE, 0, 4, most_shots=5, seed=3).fingerprint
    assert again.novel_classes != held_out_fold(BASE, 0, 4, most_shots=5, seed=4).novel_classes


def test_small_classes_are_not_held_out_and_too_few_classes_are_refused() -> None:
    sizes = np.r_[np.full(8, 12), np.full(4, 9), 1]
    mixed = FeatureSet(np.arange(float(sizes.sum())).reshape(-1, 1), np.repeat(np.arange(13), sizes))
    held = [c for fold in range(4) for c in held_out_fold(mixed, fold, 4, most_shots=5, seed=0).novel_classes]
    assert len(held) == 8
    assert set(held) == set(range(8))
    assert 12 not in held_out_fold(mixed, 0, 4, most_shots=5, seed=0).base_classes  # nothing left to test with
    with pytest.raises(InputError, match="0 of 13 base classes have the 15 examples"):
        held_out_fold(mixed, 0, 4, most_shots=10, seed=0)


def test_the_grid_lies_about_the_recipes_own_numbers() -> None:
    grid = make_space("paper", PAPER, find_variant("ccov-gan"), 300, {})
    assert {name: distribution.choices for name, distribution in grid.items()} == {
        "cycle_weight": (1.0, 5.0, 25.0),
        "covariance_weight": (0.1, 0.5, 2.5),
        "ky_fan_rank": (5, 10, 20),
        "novel_per_episode": (10, 20, 40),
        "shots_per_episode": (5, 10, 20),
    }
    few = make_space("paper", QUICK, find_variant("ccyc-gan"), 12, {"shots_per_episode": 3})
    assert {name: distribution.choices for name, distribution in few.items()} == {
        "cycle_weight": (10.0, 50.0, 250.0),
        "novel_per_episode": (3, 6),
    }
    assert [rounded(value) for value in (0.00123456, 12345.6, 0.0)] == [0.00123, 12300.0, 0.0]
    wide = make_space("wide", QUICK, find_variant("ccov-gan"), 40, {})
    assert set(wide) > {"learning_rate", "width", "perplexity", "covariance_pairs", "within_distance", "generator"}
    assert "perplexity" not in make_space("wide", PAPER, find_variant("ccov-gan"), 40, {})
    with pytest.raises(InputError, match="unknown space 'narrow'; choose one of paper, wide"):
        make_space("narrow", QUICK, find_variant("ccov-gan"), 40, {})
    with pytest.raises(InputError, match="nothing is left to tune: --set fixes every number"):
        make_space("paper", PAPER, find_variant("ccov-gan"), 300, grid)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "smote"}, "smote has no numbers to tune"),
        ({"method": "linear"}, "linear makes no examples"),
        ({"classifier": "maml"}, "maml is itself trained"),
        ({"classifier": "nearest-prototype"}, "nearest-prototype scores all numbers alike"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"shots": (0, 5)}, "shots must be whole numbers of at least 1"),
        ({"normalize": "l3"}, "unknown normalization"),
        ({"numbers": {"cycle_wait": 1}}, "ccov-gan has no cycle_wait"),
    ],
)
def test_plans_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuningPlan(**changes)


def test_with_means_of_shots_the_nearest_prototype_can_be_tuned() -> None:
    plan = TuningPlan(classifier="nearest-prototype", numbers={"center": "shots"})
    assert plan.augmenter({}).center == "shots"


def test_a_score_is_that_of_a_trained_augmenter_and_depends_on_the_numbers_alone() -> None:
    scorer = Scorer(PLAN, BASE)
    first = scorer.score({}, 0)
    assert first == scorer.score({}, 0)
    assert 100 / 16 < first <= 100
    assert first != scorer.score({"learning_rate": 0.5, "within_distance": 3.0}, 0)
    assert first != scorer.afresh().score({}, 0)


def test_the_whole_grid_is_tried_once_and_the_best_is_measured_afresh(
    tmp_path: Path, asked: list[tuple[int, dict[str, Any], int]]
) -> None:
    found = tune(GRID, BASE, tmp_path / "study.log", trials=100)
    best = found.settings[0]
    assert best.numbers == {"cycle_weight": 250.0, "covariance_weight": 2.0, "ky_fan_rank": 20}
    assert len(found.settings) + found.given_up == 27
    assert found.given_up > 0  # hopeless ones are not tried in every fold
    started = [tuple(numbers.items()) for seed, numbers, fold in asked if seed == 0 and fold == 0 and numbers]
    assert len(started) == len(set(started)) == 27
    assert found.own == tuple(50 + wanted({}) + 10 * fold for fold in range(4))
    gain = found.gain(best)
    assert gain is not None
    assert gain.mean == pytest.approx(wanted(best.numbers) - wanted({}))
    assert gain.half_width == pytest.approx(0)
    afresh = [(numbers, fold) for seed, numbers, fold in asked if seed == 1]
    assert afresh == [({}, fold) for fold in range(4)] + [(best.numbers, fold) for fold in range(4)]
    assert found.confirmed_gain is not None
    # Nothing is left to do, and nothing is done again.
    before = len(asked)
    assert tune(GRID, BASE, tmp_path / "study.log", trials=100) == found
    assert len(asked) == before


def test_an_interrupted_study_goes_on_and_forgets_nothing(
    tmp_path: Path, asked: list[tuple[int, dict[str, Any], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, score, stop_after = tmp_path / "study.log", Scorer.score, 0

    def interrupted(scorer: Scorer, numbers: Mapping[str, Any], fold: int) -> float:
        if len(asked) >= stop_after:
            raise KeyboardInterrupt
        return score(scorer, numbers, fold)

    monkeypatch.setattr(Scorer, "score", interrupted)
    for most in (2, 9, 15):
        stop_after = most
        with pytest.raises(KeyboardInterrupt):
            tune(GRID, BASE, path, trials=5)
    assert len(read_tuning(open_study(path)).settings) == 2
    stop_after = 1000
    found = tune(GRID, BASE, path, trials=5, confirm=False)
    assert len(found.settings) + found.given_up == 5
    assert [fold for seed, numbers, fold in asked if not numbers] == [0, 1, 2, 3]  # the recipe's own, once each
    assert found.confirmed is None


@pytest.mark.usefixtures("asked")
def test_two_share_a_study_and_the_file_is_json(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    tune(GRID, BASE, path, trials=3, confirm=False)
    first, second = open_study(path, GRID, BASE), open_study(path, GRID, BASE)
    first.enqueue_trial({"cycle_weight": 50.0})
    assert len(second.trials) == 4
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())


@pytest.mark.usefixtures("asked")
def test_a_wide_space_is_searched_and_what_does_not_go_together_is_given_up(tmp_path: Path) -> None:
    plan = TuningPlan(space="wide", numbers={**FAST, "batch_size": 60}, device="cpu")
    found = tune(plan, BASE, tmp_path / "study.log", trials=16, confirm=False)
    assert len(found.settings) + found.given_up == 16
    assert found.given_up > 0
    for setting in found.settings:
        numbers = setting.numbers
        assert numbers["novel_per_episode"] * numbers["shots_per_episode"] < 60
        assert numbers["novel_per_episode"] <= 6
        assert numbers["learning_rate"] == float(f"{numbers['learning_rate']:.3g}")
    means = [setting.mean for setting in found.settings]
    assert means == sorted(means, reverse=True)


@pytest.mark.usefixtures("asked")
def test_another_plan_other_data_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    tune(GRID, BASE, path, trials=1, confirm=False)
    with pytest.raises(InputError, match="is a study with another folds, seed; choose another file"):
        tune(TuningPlan(numbers=GRID.numbers, folds=3, seed=1), BASE, path, trials=1)
    with pytest.raises(InputError, match="another data"):
        tune(GRID, BASE.take(np.arange(300)), path, trials=1)
    assert tune(TuningPlan(numbers=GRID.numbers, device="auto"), BASE, path, trials=1, confirm=False).settings
    (tmp_path / "text").write_text("not a study\n" * 3)
    with pytest.raises(InputError, match="text is not a study, or a damaged one; choose another"):
        tune(GRID, BASE, tmp_path / "text", trials=1)
    with pytest.raises(InputError, match="does not exist"):
        tune(GRID, BASE, tmp_path / "nowhere" / "study.log", trials=1)


def test_the_identity_of_the_data_does_not_depend_on_how_much_is_hashed_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = GRID.identity(BASE)
    assert expected["data"] == "7bf4b63f1b4c4b45"
    monkeypatch.setattr("cpaan.data.memory_map.BLOCK_BYTES", 50)
    assert GRID.identity(BASE) == expected
    assert GRID.identity(BASE.take(np.arange(len(BASE))[::-1])) != expected


@pytest.mark.usefixtures("asked")
def test_no_further_setting_is_begun_after_the_time(tmp_path: Path) -> None:
    assert tune(GRID, BASE, tmp_path / "study.log", trials=9, timeout=0).settings == ()


def test_without_optuna_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.startswith("optuna"):
            raise ImportError(name)
        return real_import(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'cpaan\[tune\]'"):
        tune(GRID, BASE, tmp_path / "study.log", trials=1)


def test_the_interval_is_wider_than_that_of_folds_that_do_not_overlap() -> None:
    gain = paired_gain([51.0, 52.0, 54.0, 51.0], [50.0, 50.0, 50.0, 50.0])
    assert gain is not None
    assert gain.mean == 2.0
    # Student's t with 3 degrees of freedom, s² (1/4 + 1/3): Nadeau and Bengio.
    assert gain.half_width == pytest.approx(3.18245 * (2.0 * (1 / 4 + 1 / 3)) ** 0.5, rel=1e-4)
    assert Tuning((50.0,), (), 0).gain(Setting(0, {}, (51.0, 52.0))) is None
