"""Threads that share a fitted model, or train at the same time, get what one thread alone gets."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from cpaan import CPAAN, CosineClassifier, EmpiricalBayes, FeatureHallucination, FeatureImagination, LowShotClassifier
from cpaan.methods import CLASSIFIERS, Settings, augmenter_classes, make_classifier, set_numbers

THREADS, ROUNDS, D = 8, 2, 5
STEPS: dict[str, Any] = {"episodes": 3, "iterations": 3, "base_episodes": 3, "width": 8, "centroids": 4}
CPAAN_SIZES = {"recipe": "quick", "center": "shots", "batch_size": 40, "novel_per_episode": 2}


def classes(n_classes: int, per_class: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = 4 * rng.normal(size=(n_classes, 1, D)) + rng.normal(size=(n_classes, per_class, D))
    return X.reshape(-1, D), np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


BASE = classes(6, 8, seed=0)
NOVEL = [classes(2, 1 + thread % 3, seed=thread + 1) for thread in range(THREADS)]  # other classes for each thread


def small(estimator: Any) -> Any:
    """Shorten the training of an estimator, whatever its numbers are called."""
    numbers = {**STEPS, **(CPAAN_SIZES if isinstance(estimator, CPAAN) else {}), "device": "cpu", "random_state": 0}
    return set_numbers(estimator, numbers, strict=False)


@cache
def fitted(kind: Any) -> Any:
    return small(kind()).fit(*BASE)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """Do the work of all threads at the same time."""
    start = Barrier(THREADS)

    def wait_and_work(thread: int) -> Any:
        start.wait(timeout=600)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(wait_and_work, range(THREADS)))


def assert_same_bits(work: Callable[[int], bytes]) -> None:
    alone = [work(thread) for thread in range(THREADS)]
    assert len(set(alone)) > 1  # threads that were given one another's answer would be noticed
    for _ in range(ROUNDS):
        assert at_once(work) == alone


@pytest.mark.parametrize("kind", augmenter_classes(), ids=lambda kind: kind.__name__)
def test_threads_augment_with_one_model_as_one_by_one(kind: Any) -> None:
    augmenter = fitted(kind)

    def work(thread: int) -> bytes:
        made, names = augmenter.augment(*NOVEL[thread], per_class=20 + thread)
        assert names.tolist() == np.repeat(np.unique(NOVEL[thread][1]), 20 + thread).tolist()
        found: bytes = made.tobytes()
        return found

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert_same_bits(work)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", list(CLASSIFIERS))
def test_threads_score_with_one_classifier_as_one_by_one(name: str) -> None:
    classifier = small(make_classifier(name, Settings(device="cpu")))
    if hasattr(classifier, "meta_fit"):
        classifier.meta_fit(*BASE)
    classifier.fit(*BASE)
    assert_same_bits(lambda thread: classifier.scores(NOVEL[thread][0]).tobytes())


def test_threads_ask_one_low_shot_classifier_as_one_by_one() -> None:
    model = LowShotClassifier(augmenter=EmpiricalBayes(random_state=0), classifier=CosineClassifier()).fit(*BASE)
    model.add_classes(*NOVEL[0])
    assert_same_bits(lambda thread: model.predict_proba(NOVEL[thread][0]).tobytes())


@pytest.mark.filterwarnings("ignore:an episode has")
@pytest.mark.parametrize("kind", [CPAAN, FeatureHallucination, FeatureImagination], ids=lambda kind: kind.__name__)
def test_threads_train_models_of_their_own_as_one_by_one(kind: Any) -> None:
    def work(thread: int) -> bytes:
        augmenter = small(kind()).set_params(random_state=thread).fit(*BASE)
        found: bytes = augmenter.augment(*NOVEL[1], per_class=5)[0].tobytes()
        return found

    alone = [work(thread) for thread in range(THREADS)]
    assert at_once(work) == alone
