import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from cpaan import CPAAN, InputError
from cpaan.centers import Calibrated, ShotMean
from cpaan.centers.cross_validation import choose_held_out, share_to_hold_out
from cpaan.classifiers.linear import LinearClassifier
from cpaan.data.folders import TENSORS
from cpaan.deviations import Translated, translated
from cpaan.deviations.translated import HeldOutScore
from cpaan.gan.callbacks import (
    Callback,
    Checkpoints,
    EarlyStopping,
    PrintedProgress,
    TensorBoard,
    TrainingEvent,
    checkpoint_networks,
)
from cpaan.gan.episodes import Episode, EpisodicSampler
from cpaan.gan.networks import Architecture, Networks, build_networks
from cpaan.methods import set_numbers
from cpaan.training.bank import ClassBank
from cpaan.training.checkpoints import read_checkpoint


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


TINY: dict[str, Any] = {
    "recipe": "quick",
    "episodes": 8,
    "width": 16,
    "noise_dimension": 4,
    "novel_per_episode": 3,
    "center": "shots",
    "random_state": 0,
    "device": "cpu",
}
rng = np.random.default_rng(0)
X = (3 * rng.normal(size=(12, 1, 6)) + rng.normal(size=(12, 20, 6))).reshape(-1, 6)
y = np.repeat(np.arange(12), 20)


def weights(augmenter: CPAAN) -> dict[str, torch.Tensor]:
    return augmenter.model_.networks.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def copied(event: TrainingEvent) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in event.run.networks.state_dict().items()}


class Told:
    """Plays scores to whoever asks for the score, and remembers the networks that went with each."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.seen: list[dict[str, torch.Tensor]] = []

    def __call__(self, event: TrainingEvent) -> None:
        self.seen.append(copied(event))
        event.run._scored = event.episode, self.scores[len(self.seen) - 1]
        event.run._score = lambda _: pytest.fail("the score of a logging step is computed once")


def test_a_function_of_ones_own_sees_every_logging_step_and_ends_training() -> None:
    seen: list[TrainingEvent] = []

    def stop_at_five(event: TrainingEvent) -> None:
        seen.append(event)
        if event.episode == 5:
            event.run.stop()

    after: list[int] = []
    augmenter = cpaan(callbacks=[stop_at_five], tell=lambda progress: after.append(progress.episode), **TINY).fit(X, y)
    assert [event.episode for event in seen] == [1, 2, 3, 4, 5] == after == augmenter.history_["episode"]
    assert [event.first for event in seen] == [True, False, False, False, False]
    assert {event.episodes for event in seen} == {8}
    assert seen[2].losses["covariance"] == augmenter.history_["covariance"][2]
    # Stopped, and otherwise trained as ever: the same networks as those of five episodes.
    assert same(weights(augmenter), weights(cpaan(**{**TINY, "episodes": 5}).fit(X, y)))


def test_early_stopping_keeps_the_networks_with_the_best_score() -> None:
    told, stopping = Told([50.0, 70.0, 60.0, 70.0, 65.0, 90.0, 0.0, 0.0]), EarlyStopping(patience=3)
    augmenter = cpaan(callbacks=[told, stopping], **TINY).fit(X, y)
    assert augmenter.history_["episode"] == [1, 2, 3, 4, 5]
    assert (stopping.best_episode, stopping.best_value) == (2, 70.0)
    assert stopping.values == {1: 50.0, 2: 70.0, 3: 60.0, 4: 70.0, 5: 65.0}
    assert same(weights(augmenter), told.seen[1])
    assert not same(told.seen[1], told.seen[4])


def test_the_best_networks_are_kept_where_training_was_not_stopped_too_and_a_second_training_begins_anew() -> None:
    told, stopping = Told([50.0, 40.0, 80.0, 10.0, 20.0, 30.0, 40.0, 50.0]), EarlyStopping(patience=9)
    callbacks: list[Callback] = [told, stopping]
    augmenter = cpaan(callbacks=callbacks, **TINY).fit(X, y)
    assert (stopping.best_episode, len(stopping.values)) == (3, 8)
    assert same(weights(augmenter), told.seen[2])
    callbacks[0] = Told([5.0] * 8)
    augmenter.fit(X, y)
    assert (stopping.best_episode, stopping.best_value) == (1, 5.0)


def test_looks_may_be_rarer_than_logging_steps_and_ties_may_count() -> None:
    told = Told([50.0, 99.0, 70.0, 99.0, 99.0, 70.0, 99.0, 60.0])
    stopping = EarlyStopping(patience=2, every=3, ties=True)
    augmenter = cpaan(callbacks=[told, stopping], **TINY).fit(X, y)
    assert stopping.values == {1: 50.0, 3: 70.0, 6: 70.0, 8: 60.0}  # and the last always
    assert stopping.best_episode == 6
    assert same(weights(augmenter), told.seen[5])
    strict = EarlyStopping(patience=2, every=3)
    cpaan(callbacks=[Told(told.scores), strict], **TINY).fit(X, y)
    assert strict.best_episode == 3


def test_a_loss_is_better_where_it_is_lower() -> None:
    stopping = EarlyStopping("cycle_base", patience=100)
    augmenter = cpaan(callbacks=[stopping], **TINY).fit(X, y)
    losses = augmenter.history_["cycle_base"]
    assert stopping.best_value == min(losses)
    assert stopping.best_episode == augmenter.history_["episode"][int(np.argmin(losses))]


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(InputError, match="unknown quantity 'loss'; watch one of score, discriminator_novel_real"):
        cpaan(callbacks=[EarlyStopping("loss")], **TINY).fit(X, y)
    with pytest.raises(InputError, match=r"no base classes are held out: hold some out with CPAAN\(held_out=0\.25\)"):
        cpaan(callbacks=[EarlyStopping()], **TINY).fit(X, y)
    with pytest.raises(InputError, match="no score"):
        cpaan(callbacks=[EarlyStopping()], held_out=0.2, **TINY).fit_direct(X, y, X[:5] + 9, ["new"] * 5)
    with pytest.raises(InputError, match="callbacks must be a list"):
        cpaan(callbacks=print, **TINY).fit(X, y)
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="patience must be"):
            EarlyStopping(patience=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="every must be"):
            Checkpoints("here", every=wrong)  # type: ignore[arg-type]


def test_networks_are_scored_on_classes_that_they_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[tuple[float, ...]] = set()
    draw = EpisodicSampler.draw

    def spied(sampler: EpisodicSampler, generator: torch.Generator) -> Episode:
        episode = draw(sampler, generator)
        for examples in (episode.base_examples, episode.novel_examples):
            drawn.update(map(tuple, examples.flatten(0, 1).tolist()))
        return episode

    monkeypatch.setattr(EpisodicSampler, "draw", spied)
    stopping = EarlyStopping(patience=100)
    augmenter = cpaan(callbacks=[stopping], held_out=0.25, **TINY).fit(X, y)
    units = augmenter.units_.apply(torch.tensor(X)).float()
    classes = {int(label) for label, row in zip(y, units.tolist(), strict=True) if tuple(row) in drawn}
    assert len(classes) == 9  # three of twelve are held out
    assert augmenter.classes_ == tuple(range(12))  # and lend afterwards
    assert len(stopping.values) == 8
    assert 100 / 3 < max(stopping.values.values()) <= 100  # better than guessing among three


AUTO: dict[str, Any] = {
    **TINY,
    "recipe": "default",
    "episodes": 60,
    "novel_per_episode": 4,
    "patience": 2,
}
X_AUTO = (3 * rng.normal(size=(20, 1, 6)) + rng.normal(size=(20, 12, 6))).reshape(-1, 6)
Y_AUTO = np.repeat(np.arange(20), 12)


def test_the_default_stops_by_itself_where_the_score_does_not_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([10.0, 60.0, 50.0, 60.0, 40.0, 30.0])
    seen: list[dict[str, torch.Tensor]] = []

    def told(_: HeldOutScore, networks: Networks) -> float:
        seen.append({name: value.clone() for name, value in networks.state_dict().items()})
        return next(scores)

    monkeypatch.setattr(HeldOutScore, "__call__", told)
    augmenter = cpaan(**AUTO).fit(X_AUTO, Y_AUTO)
    assert len(seen) == 6
    assert augmenter.history_["episode"][-1] == 25  # logged at each, looked at in 1, 5, 10, …, 25
    assert same(weights(augmenter), seen[3])


@pytest.mark.parametrize("changes", [{"held_out": 0.0}, {"patience": 0}, {"held_out": 0.2}, {"recipe": "quick"}])
def test_nothing_stops_a_training_unasked_otherwise(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldOutScore, "__call__", lambda *_: pytest.fail("looked at"))
    settings = {**AUTO, **changes}
    if settings["recipe"] == "quick":
        del settings["patience"]
    assert cpaan(**settings).fit(X_AUTO, Y_AUTO).history_["episode"][-1] == 60


def test_few_base_classes_are_all_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldOutScore, "__call__", lambda *_: pytest.fail("looked at"))
    few = slice(0, 19 * 12)
    assert cpaan(**AUTO).fit(X_AUTO[few], Y_AUTO[few]).history_["episode"][-1] == 60


def test_a_training_that_stops_by_itself_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[torch.Tensor] = []

    def falling(_: HeldOutScore, networks: Networks) -> float:
        """Score how near networks still are to the first that were seen, in whichever training that was."""
        weight = torch.cat([value.flatten() for value in networks.state_dict().values()])
        first.append(weight.clone())
        return -float((weight - first[0]).norm())

    monkeypatch.setattr(HeldOutScore, "__call__", falling)
    whole = cpaan(**AUTO).fit(X_AUTO, Y_AUTO)
    assert whole.history_["episode"][-1] == 10  # looked at in 1, 5 and 10

    def kill(event: TrainingEvent) -> None:
        if event.episode == 8:
            raise KeyboardInterrupt

    saved = Checkpoints(tmp_path, every=2, resume=True)
    with pytest.raises(KeyboardInterrupt):
        cpaan(callbacks=[kill, saved], **AUTO).fit(X_AUTO, Y_AUTO)
    for _ in range(2):  # from where it was killed, and then from its end
        resumed = cpaan(callbacks=[lambda _: None, saved], **AUTO).fit(X_AUTO, Y_AUTO)
        assert resumed.history_ == whole.history_
        assert same(weights(resumed), weights(whole))


def test_a_rule_of_ones_own_for_when_to_stop_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldOutScore, "__call__", lambda *_: pytest.fail("looked at"))
    told, stopping = Told([0.0] * 60), EarlyStopping("covariance", patience=60)
    augmenter = cpaan(callbacks=[stopping, told], **AUTO).fit(X_AUTO, Y_AUTO)
    assert augmenter.history_["episode"][-1] == 60
    assert same(weights(augmenter), told.seen[stopping.best_episode - 1])


def test_the_last_logging_step_is_looked_at_always(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, seen = iter([1.0, 2.0]), []
    monkeypatch.setattr(HeldOutScore, "__call__", lambda *_: next(scores))
    settings = {**AUTO, "episodes": 4, "callbacks": [lambda event: seen.append(copied(event))]}
    augmenter = cpaan(**settings).fit(X_AUTO, Y_AUTO)
    assert same(weights(augmenter), seen[3])
    assert next(scores, None) is None


@pytest.mark.parametrize("large", [19, 22, 60])
def test_few_large_classes_among_many_small_ones_are_not_all_held_out(large: int) -> None:
    counts = torch.tensor([20] * large + [6] * 78)
    share = share_to_hold_out("auto", counts, look=True)
    held = choose_held_out(counts, share, seed=0)
    if large < 20:
        assert held is None
    else:
        assert held is not None
        assert abs(len(held) - large / 4) <= 1
        assert (counts[held] == 20).all()


@pytest.mark.parametrize("held_out", ["none", 1.0, -0.1])
def test_shares_that_are_none_are_refused(held_out: Any) -> None:
    with pytest.raises(InputError, match="held_out must be a share"):
        cpaan(held_out=held_out, **AUTO).fit(X_AUTO, Y_AUTO)


def test_the_score_is_that_of_the_examples_that_are_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """About estimated centres of the other classes, with the covariance that the networks lose."""
    seen: list[Any] = []

    class Watched(LinearClassifier):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Watched":
            seen.append((X, y))
            super().fit(X, y, sample_weight)
            return self

    monkeypatch.setattr(translated, "LinearClassifier", Watched)
    bank = ClassBank.from_examples(torch.tensor(X_AUTO).float(), torch.tensor(Y_AUTO), 20)
    center, held = Calibrated(rounds=1).fit(bank), torch.arange(5)
    networks = build_networks(Architecture(6, 8, 4, 0, cycle=False, residual=False, gain=1.0, negative_slope=0.1), 0)
    traces = []
    for restored in (False, True):
        deviations = Translated(variant="c-gan", recipe="quick", residual_covariance=restored)
        score = HeldOutScore(deviations, center, bank, held, 1.0)
        score(networks)
        (features, labels), shots = seen[-1], score._shots
        together = np.stack([features[labels == c].mean(0) for c in range(5)])
        wanted = score._center.estimate(shots, score._shot_labels, 5).numpy()
        np.testing.assert_allclose(together, wanted, atol=1e-6)
        assert not np.allclose(together, shots.reshape(5, 5, 6).mean(1), atol=0.05)
        traces.append(np.mean([features[25:][labels[25:] == c].var(0).sum() for c in range(5)]))
    assert traces[1] > 2 * traces[0]  # networks without training hardly vary


def test_what_the_score_holds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translated, "MOST_NUMBERS", 12 * 15 * 6)
    bank = ClassBank.from_examples(torch.tensor(X_AUTO).float(), torch.tensor(Y_AUTO), 20)
    score = HeldOutScore(Translated(variant="c-gan", recipe="quick"), ShotMean(), bank, torch.arange(5), 1.0)
    assert score._base.reservoir is not None
    assert score._base.reservoir.counts.tolist() == [12] * 15
    assert len(score._queries) == 5 * (12 - 5)  # all there are: fewer classes may have more
    monkeypatch.setattr(translated, "MOST_NUMBERS", 7 * 15 * 6)
    few = HeldOutScore(Translated(variant="c-gan", recipe="quick"), ShotMean(), bank, torch.arange(5), 1.0)
    assert few._base.reservoir is not None
    assert few._base.reservoir.counts.tolist() == [7] * 15
    assert len(few._queries) == 5 * (12 - 5)
    monkeypatch.setattr(translated, "MOST_NUMBERS", 0)
    fewest = HeldOutScore(Translated(variant="c-gan", recipe="quick"), ShotMean(), bank, torch.arange(5), 1.0)
    assert fewest._base.reservoir is not None
    assert fewest._base.reservoir.counts.tolist() == [1] * 15
    assert len(fewest._queries) == 5 * 5


def test_looking_at_the_score_changes_nothing() -> None:
    looked = cpaan(callbacks=[lambda event: print(event.run.score())], held_out=0.25, **TINY).fit(X, y)
    assert same(weights(looked), weights(cpaan(held_out=0.25, **TINY).fit(X, y)))


def test_checkpoints_hold_the_whole_state_and_only_the_last_two_stay(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    states: dict[int, Any] = {}

    def remember(event: TrainingEvent) -> None:
        optimizer = dict(enumerate(event.run.step.generators.memory))
        states[event.episode] = copy.deepcopy((event.run.networks.state_dict(), optimizer, event.run.generator))

    saved = Checkpoints(folder, every=3)
    augmenter = cpaan(callbacks=[remember, saved], **TINY).fit(X, y)
    assert sorted(path.name for path in folder.iterdir()) == ["0000000006", "0000000008"]
    read = read_checkpoint(folder)
    assert read is not None
    tensors, config = read
    networks, optimizer, _ = states[8]
    assert config["step"] == 8
    assert config["history"]["episodes"] == augmenter.history_["episode"]
    assert config["numbers"]["width"] == 16
    assert same(checkpoint_networks(folder).state_dict(), networks)
    for number, moments in optimizer.items():
        for name, value in moments.items():
            assert torch.equal(tensors[f"generators.{number}.{name}"], value)
    assert any(name.startswith("discriminators.0.") for name in tensors)
    assert tensors["random_state"].dtype == torch.uint8
    # One that a crash tore is passed over.
    (folder / "0000000008" / TENSORS).write_bytes(b"torn")
    with pytest.warns(UserWarning, match="damaged"):
        assert same(checkpoint_networks(folder).state_dict(), states[6][0])
    # A second training with the same callback replaces its own, and nobody else's.
    augmenter.fit(X, y)
    assert sorted(path.name for path in folder.iterdir()) == ["0000000006", "0000000008"]
    with pytest.raises(InputError, match="checkpoints of an earlier training"):
        cpaan(callbacks=[Checkpoints(folder)], **TINY).fit(X, y)


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no checkpoint"):
        checkpoint_networks(tmp_path)


def test_progress_is_printed_now_and_then_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    cpaan(callbacks=[PrintedProgress(every=3)], **TINY).fit(X, y)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"episode {episode} of 8" for episode in (3, 6, 8)]
    assert "covariance" in lines[0]


class Writer:
    """Remembers scalars as a SummaryWriter takes them."""

    made: list["Writer"] = []  # noqa: RUF012  # emptied by the test that uses it

    def __init__(self, folder: str) -> None:
        self.folder, self.closed = folder, False
        self.scalars: list[tuple[str, float, int]] = []
        self.lock = iter(())  # what cannot be copied
        Writer.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_tensorboard_gets_losses_and_scores_and_does_not_keep_estimators_from_being_copied() -> None:
    Writer.made.clear()
    stopping = EarlyStopping(patience=100)
    augmenter = cpaan(callbacks=[TensorBoard("logs", writer=Writer), stopping], held_out=0.25, **TINY).fit(X, y)
    [writer] = Writer.made
    assert writer.folder == "logs"
    assert ("loss/covariance", augmenter.history_["covariance"][3], 4) in writer.scalars
    scores = {step: value for tag, value, step in writer.scalars if tag == "score/held_out"}
    assert scores == stopping.values
    clone(augmenter).fit(X, y)
    assert len(Writer.made) == 2
    assert not writer.closed


def test_callbacks_are_not_saved(tmp_path: Path) -> None:
    augmenter = cpaan(callbacks=[PrintedProgress()], **TINY).fit(X, y)
    augmenter.save(tmp_path / "model")
    loaded = CPAAN.load(tmp_path / "model", device="cpu")
    assert loaded.callbacks == ()
    assert np.array_equal(loaded.augment(X[:1] + 1, ["new"])[0], augmenter.augment(X[:1] + 1, ["new"])[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_best_networks_are_those_of_single_precision() -> None:
    told, stopping = Told([50.0, 40.0, 80.0, 10.0, 20.0, 30.0, 40.0, 50.0]), EarlyStopping(patience=4)
    augmenter = cpaan(callbacks=[told, stopping], **{**TINY, "device": "cuda"}).fit(X, y)
    assert augmenter.history_["episode"] == [1, 2, 3, 4, 5, 6, 7]
    assert {value.dtype for value in weights(augmenter).values() if value.is_floating_point()} == {torch.float32}
    assert same(weights(augmenter), told.seen[2])
