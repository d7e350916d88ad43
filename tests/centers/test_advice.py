"""Predictions against what augmentation then truly gains."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cpaan import InputError
from cpaan.centers.advice import advise_on, class_separation
from cpaan.centers.calibrated import Calibrated
from cpaan.data.feature_set import FeatureSet
from cpaan.math.linear_gaussian import class_moments
from cpaan.training.bank import ClassBank

BASE, NOVEL, TRAIN, TEST, DIMENSION = 32, 16, 40, 40, 30


def generated(base: float, novel: float, informative: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Classes that differ in some directions, base ones more than novel ones, and examples that vary in all."""
    rng = np.random.default_rng(seed)
    far = np.r_[np.full(BASE, base), np.full(NOVEL, novel)].reshape(-1, 1, 1)
    centers = far * rng.normal(size=(BASE + NOVEL, 1, DIMENSION)) * (np.arange(DIMENSION) < informative)
    examples = centers + rng.normal(size=(BASE + NOVEL, TRAIN + TEST, DIMENSION))
    return examples[:, :TRAIN], examples[:, TRAIN:]


def feature_set(examples: NDArray[Any], first: int = 0) -> FeatureSet:
    labels = np.repeat(np.arange(first, first + len(examples)), examples.shape[1])
    return FeatureSet(examples.reshape(-1, DIMENSION), labels)


def true_gain(train: NDArray[Any], test: NDArray[Any], k: int) -> tuple[float, float]:
    """LSL and GLSL of test examples, averaged over all draws of K shots that follow one another."""
    bank = ClassBank.from_examples(*feature_set(train[:BASE]).to_torch(), BASE)
    model = Calibrated(rounds=2).fit(bank)
    means, gains = train[:BASE].mean(1), []
    for start in range(0, min(10 * k, TRAIN), k):
        shots = train[BASE:, start : start + k]
        labels = torch.arange(NOVEL).repeat_interleave(k)
        P = model.estimate(torch.tensor(shots.reshape(-1, DIMENSION)), labels, NOVEL).numpy()
        gains.append(np.subtract(accuracies(test, means, P), accuracies(test, means, shots.mean(1))))
    lsl, glsl = np.mean(gains, axis=0)
    return float(lsl), float(glsl)


def accuracies(test: NDArray[Any], means: NDArray[Any], novel: NDArray[Any]) -> tuple[float, float]:
    everything = np.concatenate([means, novel])
    distances = ((test[:, :, None] - everything) ** 2).sum(-1)
    glsl = (distances.argmin(-1) == np.arange(BASE + NOVEL)[:, None]).mean()
    lsl = (distances[BASE:, :, BASE:].argmin(-1) == np.arange(NOVEL)[:, None]).mean()
    return 100 * lsl, 100 * glsl


@pytest.mark.parametrize(
    ("far", "informative", "k", "verdict"),
    [
        (1.2, 6, 5, "helps"),  # few directions tell classes apart, and base classes know which
        (1.5, 30, 5, "will not help"),  # means of five shots are as good as any
    ],
)
def test_predictions_are_honest_where_it_helps_and_where_it_does_not(
    far: float, informative: int, k: int, verdict: str
) -> None:
    train, test = generated(far, far, informative, seed=0)
    advice = advise_on(feature_set(train[:BASE]), feature_set(train[BASE:], BASE), rounds=3)
    place = advice.shots.index(k)
    for prediction, truth in zip((advice.lsl[place], advice.glsl[place]), true_gain(train, test, k), strict=True):
        assert prediction.low - 1 <= truth <= prediction.high + 1
        assert prediction.verdict == verdict
        assert truth > 2 if verdict == "helps" else abs(truth) < 0.5


def test_features_that_know_base_classes_better_are_noticed() -> None:
    train, test = generated(2.0, 0.8, 10, seed=1)
    advice = advise_on(feature_set(train[:BASE]), feature_set(train[BASE:], BASE), rounds=3)
    assert advice.separation == pytest.approx(0.4, abs=0.08)
    lsl, glsl = true_gain(train, test, 1)
    assert advice.lsl[0].low - 1 <= lsl <= advice.lsl[0].high + 1
    assert advice.glsl[0].low - 1 <= glsl <= advice.glsl[0].high + 1
    # As if novel classes were like base classes, it would promise too much.
    assert advice.plain_glsl[0].verdict == "helps"
    assert advice.plain_glsl[0].low > glsl + 1
    assert advice.glsl[0].verdict == "cannot tell"


def test_separation_does_not_depend_on_how_many_examples_are_known() -> None:
    train, _ = generated(2.0, 1.0, 10, seed=2)
    base = feature_set(train[:BASE])
    found = []
    for n in (1, 3, 40):
        novel = feature_set(train[BASE:, :n])
        found.append(class_separation(class_moments(*base.to_torch(), BASE), class_moments(*novel.to_torch(), NOVEL)))
    np.testing.assert_allclose(found, 0.5, atol=0.1)


def test_separation_stays_between_bounds() -> None:
    train, _ = generated(1.0, 4.0, 10, seed=3)
    base, novel = feature_set(train[:BASE]), feature_set(train[BASE:])
    moments = class_moments(*base.to_torch(), BASE)
    assert class_separation(moments, class_moments(*novel.to_torch(), NOVEL)) == 1.0
    alike = feature_set(train[BASE:] * 1e-6)
    assert 0 < class_separation(moments, class_moments(*alike.to_torch(), NOVEL)) < 0.1
    same = FeatureSet(np.zeros((4, DIMENSION)), [0, 0, 1, 1])
    assert 0 < class_separation(moments, class_moments(*same.to_torch(), 2)) <= 1
    alone = FeatureSet(np.zeros((2, DIMENSION)), [0, 0])
    assert class_separation(moments, class_moments(*alone.to_torch(), 1)) == 1.0


def test_too_few_base_classes_are_refused() -> None:
    train, _ = generated(1.0, 1.0, 10, seed=0)
    with pytest.raises(InputError, match="needs 6 base classes"):
        advise_on(feature_set(train[:4]), feature_set(train[BASE:], BASE))
