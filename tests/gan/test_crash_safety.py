"""Training that is killed, stopped or no longer finite."""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpaan import CPAAN, InputError
from cpaan.data.folders import CONFIG, TENSORS
from cpaan.gan.callbacks import Checkpoints, EarlyStopping, TrainingEvent
from cpaan.gan.episodes import Episode
from cpaan.gan.objective import Losses, TrainingStep
from cpaan.methods import set_numbers
from cpaan.training.checkpoints import Stopped, read_checkpoint, write_checkpoint
from cpaan.training.progress import History


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


TINY: dict[str, Any] = {
    "recipe": "quick",
    "episodes": 8,
    "width": 16,
    "noise_dimension": 4,
    "novel_per_episode": 3,
    "halve_every": 3,
    "center": "shots",
    "random_state": 0,
    "device": "cpu",
}
rng = np.random.default_rng(0)
X = (3 * rng.normal(size=(12, 1, 6)) + rng.normal(size=(12, 20, 6))).reshape(-1, 6)
y = np.repeat(np.arange(12), 20)


def weights(augmenter: CPAAN) -> dict[str, torch.Tensor]:
    return augmenter._tensors()  # examples that are kept included: they are drawn after training


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class CrashError(Exception):
    pass


def crash_at(episode: int) -> Callable[[TrainingEvent], None]:
    def crash(event: TrainingEvent) -> None:
        if event.episode == episode:
            raise CrashError

    return crash


@pytest.fixture(scope="module")
def whole() -> CPAAN:
    return cpaan(**TINY).fit(X, y)


@pytest.mark.parametrize("every", [1, 3])
def test_a_training_that_crashed_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, whole: CPAAN, every: int
) -> None:
    for episode in (1, 4, 5, 7):
        saved = Checkpoints(tmp_path, every=every, resume=True)
        with pytest.raises(CrashError):
            cpaan(callbacks=[saved, crash_at(episode)], **TINY).fit(X, y)
    resumed = cpaan(callbacks=[Checkpoints(tmp_path, every=every, resume=True)], **TINY).fit(X, y)
    assert same(weights(resumed), weights(whole))
    assert resumed.history_ == whole.history_
    # And once more from the end, where nothing is left to train.
    again = cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **TINY).fit(X, y)
    assert same(weights(again), weights(whole))


def test_training_further_and_directly_can_be_resumed_too(tmp_path: Path) -> None:
    def further(*callbacks: Any) -> CPAAN:
        augmenter = cpaan(**TINY).fit(X[:160], y[:160])
        augmenter.callbacks = callbacks
        return augmenter.partial_fit(X[160:], y[160:], episodes=5)

    def direct(*callbacks: Any) -> CPAAN:
        return cpaan(callbacks=callbacks, **TINY).fit_direct(X[:60], y[:60], X[200:205], y[200:205])

    for name, train in (("further", further), ("direct", direct)):
        folder = tmp_path / name
        with pytest.raises(CrashError):
            train(Checkpoints(folder, every=1), crash_at(4))
        assert same(weights(train(Checkpoints(folder, resume=True))), weights(train()))


def test_early_stopping_is_resumed_with_the_networks_that_it_kept(tmp_path: Path) -> None:
    def fitted(*callbacks: Any) -> tuple[CPAAN, EarlyStopping]:
        stopping = EarlyStopping("cycle_base", patience=2)
        # Before the other in the list, and yet it saves what that remembers of the same logging step.
        return cpaan(callbacks=[*callbacks, stopping], **{**TINY, "episodes": 30}).fit(X, y), stopping

    expected, stopping = fitted()
    last = expected.history_["episode"][-1]
    assert last < 30
    with pytest.raises(CrashError):
        fitted(Checkpoints(tmp_path, every=1), crash_at(last - 1))
    found, resumed = fitted(Checkpoints(tmp_path, resume=True))
    assert same(weights(found), weights(expected))
    assert (resumed.values, resumed.best_episode) == (stopping.values, stopping.best_episode)


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"random_state": 1}, X, "seed: "),
        ({"episodes": 9}, X, "episodes: 8 there, 9 now"),
        ({"variant": "c-gan"}, X, "variant: 'ccov-gan' there, 'c-gan' now"),
        ({"learning_rate": 0.5}, X, "learning_rate: "),
        ({}, X + 1e-3, "base examples: "),
    ],
)
def test_other_data_or_numbers_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], data: Any, message: str
) -> None:
    with pytest.raises(CrashError):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1), crash_at(3)], **TINY).fit(X, y)
    with pytest.raises(InputError, match="of another training") as refused:
        cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **{**TINY, **changes}).fit(data, y)
    assert message in str(refused.value)


@pytest.mark.parametrize(("file", "text"), [(TENSORS, "truncated or damaged"), (CONFIG, "does not match its checksum")])
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path: Path, whole: CPAAN, file: str, text: str) -> None:
    with pytest.raises(CrashError):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1), crash_at(6)], **TINY).fit(X, y)
    newest = tmp_path / "0000000005" / file
    content = newest.read_bytes()
    place = content.index(b'"episodes": 8') + 12 if file == CONFIG else len(content) // 2
    newest.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])  # one bit
    with pytest.warns(UserWarning, match="taking the one before it") as noted:
        resumed = cpaan(callbacks=[Checkpoints(tmp_path, every=1, resume=True)], **TINY).fit(X, y)
    assert text in str(noted[0].message)
    assert same(weights(resumed), weights(whole))
    # Where none is whole, it begins anew, and what is damaged does not crowd out what is not.
    for damaged in tmp_path.glob("*/" + TENSORS):
        damaged.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="starts from the beginning"), pytest.raises(CrashError):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1, resume=True), crash_at(4)], **TINY).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[1]["step"] == 3


def test_a_folder_that_is_removed_on_the_way_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def remove(event: TrainingEvent) -> None:
        if event.episode == 3:
            for file in sorted(folder.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            folder.rmdir()

    with pytest.raises(InputError, match="was removed during training"):
        cpaan(callbacks=[remove, Checkpoints(folder, every=1)], **TINY).fit(X, y)


def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, whole: CPAAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, left = os.replace, iter(range(5))  # two files each: the third checkpoint has its tensors and no more

    def fill_up(source: Any, target: Any) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fill_up)
    with pytest.raises(InputError, match="No space left on device"):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1)], **TINY).fit(X, y)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000001", "0000000002"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **TINY).fit(X, y)
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_episode_and_saves(
    tmp_path: Path, whole: CPAAN, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_on, calls = TrainingStep.train_on, iter(range(1, 1000))

    def signalled(step: TrainingStep, episode: Episode, noise: Any) -> Losses:
        if next(calls) == 5:
            signal.raise_signal(number)
        return train_on(step, episode, noise)

    before = signal.getsignal(number)
    monkeypatch.setattr("cpaan.gan.loop.LOGGINGS", 2)  # so that it stops between two logging steps
    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "train_on", signalled)
        augmenter = cpaan(callbacks=[Checkpoints(tmp_path, every=9, stop_on_signals=True)], **TINY)
        with pytest.raises(Stopped, match="after episode 5 of 8") as stopped:
            augmenter.fit(X, y)
    assert stopped.value.signal == number
    assert signal.getsignal(number) == before
    resumed = cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **TINY).fit(X, y)
    expected = cpaan(**TINY).fit(X, y)
    assert same(weights(resumed), weights(whole))
    assert resumed.history_ == expected.history_
    assert resumed.history_["episode"] == [4, 8]


def spoil(monkeypatch: pytest.MonkeyPatch, bad: Callable[[int], bool], term: str = "covariance") -> None:
    """Make a term of the loss infinite in some of the episodes that are trained on, counted from 1."""
    calls = iter(range(1, 1000))
    covariance_losses, cycle_losses = TrainingStep.covariance_losses, TrainingStep.cycle_losses

    def spoilt_covariance(step: TrainingStep, *rest: Any) -> Losses:
        losses = covariance_losses(step, *rest)
        return {name: loss * torch.inf if bad(next(calls)) else loss for name, loss in losses.items()}

    def spoilt_cycle(step: TrainingStep, *rest: Any) -> Losses:
        factor = torch.nan if bad(next(calls)) else 1.0
        return {name: loss * factor for name, loss in cycle_losses(step, *rest).items()}

    if term == "covariance":
        monkeypatch.setattr(TrainingStep, "covariance_losses", spoilt_covariance)
    else:
        monkeypatch.setattr(TrainingStep, "cycle_losses", spoilt_cycle)


def test_a_loss_that_is_not_finite_once_is_rolled_back_at_half_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.gan.loop.LOGGINGS", 4)  # every second episode
    rates: dict[int, float] = {}

    def remember(event: TrainingEvent) -> None:
        rates[event.episode] = float(event.run.step.learning_rate)

    spoil(monkeypatch, lambda call: call == 3)
    with pytest.warns(UserWarning, match=r"^covariance is not finite in episode 3: going back to episode 2 .*1 of 3"):
        augmenter = cpaan(callbacks=[remember], **{**TINY, "learning_rate": 0.01, "halve_every": 100}).fit(X, y)
    assert rates == pytest.approx({2: 0.01, 4: 0.005, 6: 0.005, 8: 0.005})
    assert augmenter.history_["episode"] == [2, 4, 6, 8]
    assert all(np.isfinite(augmenter.history_["covariance"]))
    assert all(value.isfinite().all() for value in weights(augmenter).values())


def test_the_state_before_is_what_training_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    restore = TrainingStep.restore

    def remember(event: TrainingEvent) -> None:
        seen.append({name: value.clone() for name, value in event.run.step.state().items()})

    def restored(step: TrainingStep, tensors: dict[str, torch.Tensor]) -> None:
        restore(step, tensors)
        assert same(step.state(), seen[-1])  # moments and steps of Adam included

    spoil(monkeypatch, lambda call: call == 4)
    monkeypatch.setattr(TrainingStep, "restore", restored)
    with pytest.warns(UserWarning, match="going back to episode 3"):
        cpaan(callbacks=[remember], **TINY).fit(X, y)
    assert len(seen) == 8


def test_losses_that_are_never_finite_are_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.gan.loop.LOGGINGS", 4)
    spoil(monkeypatch, lambda call: call >= 5, "cycle")
    expected = (
        "training has failed: cycle_base and cycle_novel are not finite in episode 5, even after halving .* 3 times"
    )
    with pytest.warns(UserWarning, match="going back") as noted, pytest.raises(InputError, match=expected):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1)], **TINY).fit(X, y)
    assert [str(note.message)[-12:] for note in noted] == [f"(try {k} of 3)" for k in (1, 2, 3)]
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[1]["step"] == 4  # the last good state
    assert all(value.isfinite().all() for value in found[0].values())


def test_networks_that_are_spoilt_by_a_gradient_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    train_on, calls = TrainingStep.train_on, iter(range(1, 1000))

    def spoilt(step: TrainingStep, episode: Episode, noise: Any) -> Losses:
        losses = train_on(step, episode, noise)
        if next(calls) == 8:  # the last, so that no later loss tells of it
            next(iter(step.trained.parameters())).data.fill_(torch.nan)
        return losses

    monkeypatch.setattr(TrainingStep, "train_on", spoilt)
    with pytest.warns(UserWarning, match="a weight or its gradient is not finite after one of the episodes 8 to 8"):
        augmenter = cpaan(**TINY).fit(X, y)
    assert all(value.isfinite().all() for value in weights(augmenter).values())


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_a_graph_that_was_recorded_is_rolled_back_and_resumed_as_well(tmp_path: Path, device: str) -> None:
    spoilt: list[int] = []

    def spoil_once(event: TrainingEvent) -> None:
        if event.episode == 6 and not spoilt:  # after the capture, where there is one
            spoilt.append(event.episode)
            for networks in (event.run.step.trained, event.run.step.networks):
                next(iter(networks.generator_parameters())).data.fill_(torch.nan)

    numbers = {**TINY, "episodes": 12, "device": device}
    saved = Checkpoints(tmp_path, every=5)
    with pytest.warns(UserWarning, match="not finite .*7: going back to episode 6"), pytest.raises(CrashError):
        cpaan(callbacks=[saved, spoil_once, crash_at(11)], **numbers).fit(X, y)
    resumed = cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **numbers).fit(X, y)
    assert resumed.history_["episode"] == [*range(1, 13)]
    assert all(value.isfinite().all() for value in weights(resumed).values())


def test_a_decomposition_that_fails_is_rolled_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    train_on, calls = TrainingStep.train_on, iter(range(1, 1000))

    def failing(step: TrainingStep, episode: Episode, noise: Any) -> Losses:
        if next(calls) == 3:
            torch.linalg.eigh(torch.full((3, 3), torch.nan))
        return train_on(step, episode, noise)

    monkeypatch.setattr(TrainingStep, "train_on", failing)
    monkeypatch.setattr("cpaan.gan.loop.LOGGINGS", 2)
    with pytest.warns(UserWarning, match="a covariance cannot be decomposed.* in episode 3: going back to episode 0"):
        augmenter = cpaan(**TINY).fit(X, y)
    assert augmenter.history_["episode"] == [4, 8]
    assert all(value.isfinite().all() for value in weights(augmenter).values())


def test_a_rate_that_was_halved_stays_so_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda call: call == 2)
    with pytest.warns(UserWarning, match="half the learning rate"):
        expected = cpaan(**TINY).fit(X, y)
    monkeypatch.undo()
    spoil(monkeypatch, lambda call: call == 2)
    with pytest.warns(UserWarning, match="half the learning rate"), pytest.raises(CrashError):
        cpaan(callbacks=[Checkpoints(tmp_path, every=1), crash_at(5)], **TINY).fit(X, y)
    monkeypatch.undo()
    assert same(weights(cpaan(callbacks=[Checkpoints(tmp_path, resume=True)], **TINY).fit(X, y)), weights(expected))


def test_history_tells_the_first_step_that_was_not_finite() -> None:
    history = History()
    for a, b in ((1.0, 1.0), (2.0, float("nan")), (float("inf"), 1.0)):
        history.add({"a": torch.tensor(a), "b": torch.tensor(b)})
    assert history.first_not_finite() == (("b",), 2)
    history.forget()
    assert history.first_not_finite() is None
    history.add({"a": torch.tensor(1.0), "b": torch.tensor(1.0)})
    restored = History.from_state(json.loads(json.dumps(history.state())))
    restored.add({"a": torch.tensor(float("inf")), "b": torch.tensor(float("-inf"))})
    assert restored.first_not_finite() == (("a", "b"), 2)


def test_only_the_last_two_checkpoints_stay_and_none_of_another_future(tmp_path: Path) -> None:
    for step in (10, 20, 30, 15):
        write_checkpoint(tmp_path, step, {"weight": torch.ones(1)}, {})
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [15]


KILLING = """
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np
import torch
from cpaan import CPAAN
from cpaan.gan.callbacks import Checkpoints
from cpaan.methods import set_numbers

torch.optim.Adam([torch.zeros(1)])  # the first optimizer of a process imports much
folder, numbers, moments = Path(sys.argv[1]), json.loads(sys.argv[2]), random.Random(0)
X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
checkpoints = folder / "checkpoints"

def start(name, callbacks):
    process = os.fork()
    if process == 0:
        set_numbers(CPAAN(callbacks=callbacks), numbers).fit(X, y).save(folder / name)
        os._exit(0)
    return process

def end_of(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def newest():
    return max((int(path.name) for path in checkpoints.glob("*")), default=0)

def saved():
    return [Checkpoints(checkpoints, every=1, resume=True)]

ends = []
for _ in range(6):
    before, process = newest(), start("killed", saved())
    while newest() <= before and not os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.001)
    time.sleep(moments.uniform(0, 0.05))
    os.kill(process, signal.SIGKILL)
    ends.append(end_of(process))
assert end_of(start("resumed", saved())) == end_of(start("whole", [])) == 0
print(json.dumps(ends))
"""


def test_a_process_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    # One process imports everything and forks all others: kills fall into training, and not into imports, and every
    # training begins in the same state. In the process of the tests, another test may have changed how torch computes.
    command = [sys.executable, "-c", KILLING, str(tmp_path), json.dumps({**TINY, "episodes": 90})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    assert ends[:3] == [-signal.SIGKILL] * 3  # later ones may have been done before
    assert set(ends) <= {0, -signal.SIGKILL}
    resumed, whole = (CPAAN.load(tmp_path / name, device="cpu") for name in ("resumed", "whole"))
    assert same(weights(resumed), weights(whole))
    assert resumed.history_ == whole.history_
