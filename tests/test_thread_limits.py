"""Number of threads: chosen by the size of the work, never more than the user allows, and restored afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from cpaan import CPAAN, EmpiricalBayes, LinearClassifier, PooledGaussian, SiameseNetwork
from cpaan.centers import calibrated as center_search
from cpaan.centers import posterior_mean
from cpaan.classifiers import linear
from cpaan.deviations import gaussian
from cpaan.methods import set_numbers
from cpaan.threads import ENOUGH_TO_SHARE, limited_threads, threads_for


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


SMALL, LARGE = ENOUGH_TO_SHARE / 2, 2 * ENOUGH_TO_SHARE


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with threadpool_limits(3, "blas"):
        yield
    torch.set_num_threads(before)


def of_blas() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_small_work_has_one_thread_and_large_work_all() -> None:
    with threads_for(SMALL):
        assert (torch.get_num_threads(), of_blas()) == (1, {1})
    with threads_for(LARGE):
        assert (torch.get_num_threads(), of_blas()) == (3, {3})
    assert (torch.get_num_threads(), of_blas()) == (3, {3})


def test_the_innermost_block_decides() -> None:
    with threads_for(SMALL):
        with threads_for(LARGE):
            assert (torch.get_num_threads(), of_blas()) == (3, {3})
            with threads_for(SMALL):
                assert (torch.get_num_threads(), of_blas()) == (1, {1})
            assert (torch.get_num_threads(), of_blas()) == (3, {3})
        assert (torch.get_num_threads(), of_blas()) == (1, {1})


def test_a_limit_holds_for_all_blocks_inside() -> None:
    with limited_threads(2):
        assert (torch.get_num_threads(), of_blas()) == (2, {2})
        with limited_threads(9), threads_for(LARGE):
            assert (torch.get_num_threads(), of_blas()) == (2, {2})


@pytest.mark.parametrize("number", [1, 2])
def test_what_the_user_set_is_never_raised(number: int) -> None:
    torch.set_num_threads(number)
    with threadpool_limits(number):
        with limited_threads(8), threads_for(LARGE):
            assert (torch.get_num_threads(), of_blas()) == (number, {number})
        assert (torch.get_num_threads(), of_blas()) == (number, {number})


def test_a_users_threadpoolctl_block_holds_for_torch_too() -> None:
    with threadpool_limits(1), threads_for(LARGE):
        assert (torch.get_num_threads(), of_blas()) == (1, {1})
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_environment_says_is_never_raised(variable: str) -> None:
    code = (
        "import torch; from cpaan.threads import threads_for\n"
        "before = torch.get_num_threads()\n"
        "with threads_for(1e30): assert torch.get_num_threads() == before\n"
        "assert torch.get_num_threads() == before; print(before)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, variable: "1"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "1"


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_numbers_are_put_back_after_a_failure(size: float) -> None:
    with pytest.raises(ZeroDivisionError), limited_threads(2), threads_for(size):
        raise ZeroDivisionError
    assert (torch.get_num_threads(), of_blas()) == (3, {3})
    with threads_for(LARGE):
        assert torch.get_num_threads() == 3  # no limit is left behind


def test_python_threads_that_overlap_put_back_what_was_there() -> None:
    both, first_left = Barrier(2), Event()

    def first() -> int:
        torch.set_num_threads(3)
        with threads_for(SMALL):
            both.wait(timeout=60)
        first_left.set()
        return torch.get_num_threads()

    def second() -> tuple[int, set[int], int]:
        torch.set_num_threads(3)
        with threads_for(SMALL):
            both.wait(timeout=60)
            assert first_left.wait(timeout=60)
            inside = torch.get_num_threads(), of_blas()
        return *inside, torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        left, stayed = pool.submit(first), pool.submit(second)
        assert left.result() == 3
        assert stayed.result() == (1, {1}, 3)
    assert of_blas() == {3}


def data(n: int, dimension: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 8
    return rng.normal(size=(8, dimension))[labels] + rng.normal(size=(n, dimension)), labels


def noted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[tuple[int, set[int]]]:
    """Note how many threads there are where a function is called."""
    found, original = [], getattr(module, name)

    def noting(*arguments: Any, **named: Any) -> Any:
        found.append((torch.get_num_threads(), of_blas()))
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, noting)
    return found


@pytest.mark.parametrize(("n", "dimension", "expected"), [(80, 20, 1), (int(2 * ENOUGH_TO_SHARE) // 90_000, 300, 3)])
@pytest.mark.parametrize("kind", [EmpiricalBayes, PooledGaussian])
def test_closed_forms_choose_by_their_size(
    monkeypatch: pytest.MonkeyPatch, kind: Any, n: int, dimension: int, expected: int
) -> None:
    module = posterior_mean if kind is EmpiricalBayes else gaussian
    seen = noted(monkeypatch, module, "bank_moments")
    kind().fit(*data(n, dimension))
    assert seen == [(expected, {expected})]


def test_a_small_linear_classifier_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = noted(monkeypatch, linear, "solve_exactly")
    LinearClassifier().fit(*data(80, 5))
    assert seen == [(1, {1})]


def test_a_large_linear_classifier_has_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.threads.ENOUGH_TO_SHARE", 80 * 5 * 8)
    seen = noted(monkeypatch, linear, "solve_exactly")
    LinearClassifier().fit(*data(80, 5))
    assert seen == [(3, {3})]


@pytest.mark.filterwarnings("ignore:an episode has")
def test_training_and_the_centre_search_have_one_thread_where_they_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    searching = noted(monkeypatch, center_search, "posterior_means")
    training = []
    cpaan(
        recipe="quick",
        episodes=2,
        random_state=0,
        device="cpu",
        tell=lambda _: training.append(torch.get_num_threads()),
    ).fit(*data(160, 6))
    assert set(training) == {1}
    assert searching
    assert all(each == (1, {1}) for each in searching)
    assert torch.get_num_threads() == 3


def test_meta_training_has_one_thread_where_it_is_small() -> None:
    seen: list[int] = []
    SiameseNetwork(episodes=2, device="cpu", tell=lambda _: seen.append(torch.get_num_threads())).fit(*data(80, 5))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3
