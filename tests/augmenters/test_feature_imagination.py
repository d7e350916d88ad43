"""Feature imagination: a hallucinator that learns from the classifier's loss."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from cpaan import InputError
from cpaan.augmenters.feature_imagination import NOISE, FeatureImagination, Hallucinator, ImaginedSupport
from cpaan.classifiers.episodic import EpisodicTraining
from cpaan.classifiers.matching import PrototypeMatchingNetwork, PrototypeMatchingScores
from cpaan.classifiers.meta import MetaRecipe, Task, TaskSampler
from cpaan.classifiers.prototypical import PrototypicalNetwork, PrototypicalScores
from cpaan.methods import METHODS, OWN
from cpaan.training.bank import ClassBank

FloatArray = npt.NDArray[np.float64]
SMALL: dict[str, Any] = {"episodes": 3, "ways": 6, "shots": (1, 3), "queries": 2, "device": "cpu", "random_state": 0}
NAMES = ["prototypical", "prototype-matching"]
NETWORKS = [
    lambda: PrototypicalScores(5, 8, directions=True),
    lambda: PrototypeMatchingScores(5, 8, context_width=4),
]


def classes_of(n_classes: int, per_class: int, seed: int = 0) -> tuple[FloatArray, npt.NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    X = 3 * rng.normal(size=(n_classes, 1, 5)) + rng.normal(size=(n_classes, per_class, 5)) + 2
    return X.reshape(-1, 5), np.repeat([f"{seed}-{i:02}" for i in range(n_classes)], per_class)


BASE = classes_of(12, 8)
NOVEL = classes_of(3, 2, seed=1)


class Detached(ImaginedSupport):
    """Makes the same examples, through which no gradient comes."""

    def __call__(self, examples: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
        support, labels = super().__call__(examples, counting)
        return support.detach(), labels


def gradients(make_network: Any, support_of: type[ImaginedSupport]) -> list[Tensor | None]:
    X, y = torch.tensor(BASE[0]).float(), torch.arange(12).repeat_interleave(8)
    bank = ClassBank.from_examples(X, y, 12)
    hallucinator, network = Hallucinator(5, noise=NOISE), make_network()
    generator = torch.Generator().manual_seed(0)
    recipe = MetaRecipe(1, 6, (1, 3), 2, 1e-3, 1)
    supporter = support_of(hallucinator, 2, generator)
    training = EpisodicTraining(network, nn.ModuleList([network, hallucinator]), supporter, recipe, 0.0)
    task = TaskSampler(bank, 6, (3,), 2).draw(generator)
    training.loss(task, torch.tensor([[True, False, False]] * 5 + [[True] * 3])).backward()
    assert network.log_scale.grad is not None
    return [parameter.grad for parameter in hallucinator.parameters()]


@pytest.mark.parametrize("make_network", NETWORKS)
def test_the_hallucinator_learns_through_the_classifier_and_only_so(make_network: Any) -> None:
    for gradient in gradients(make_network, ImaginedSupport):
        assert gradient is not None
        assert float(gradient.abs().max()) > 1e-6
    assert all(gradient is None for gradient in gradients(make_network, Detached))


def test_the_hallucinator_begins_as_its_seed_with_a_little_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, 7, 4, generator=generator)
    torch.testing.assert_close(Hallucinator(4, noise=0.3)(x, z), x + 0.3 * z)
    floor = torch.tensor([0.0, 0.5, -9.0, 0.0])
    torch.testing.assert_close(Hallucinator(4, noise=0.3, floor=floor)(x, z), (x + 0.3 * z).maximum(floor))


def test_made_examples_come_from_shots_that_count_of_classes_with_few() -> None:
    examples = torch.arange(12.0).reshape(3, 4, 1)
    counting = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    generator = torch.Generator().manual_seed(0)
    support, labels = ImaginedSupport(Hallucinator(1, noise=0.0), 50, generator)(examples, counting)
    assert support[:7].flatten().tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert labels.tolist() == [0, 0, 1, 1, 1, 1, 2] + [0] * 50 + [2] * 50
    assert set(support[7:57].flatten().tolist()) == {0.0, 1.0}
    assert set(support[57:].flatten().tolist()) == {8.0}


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_hallucinator_repeats_shots_in_the_users_units(name: str) -> None:
    X, y = BASE[0] * 1e6, BASE[1]
    augmenter = FeatureImagination(classifier=name, learning_rate=1e-12, held_out=0, **SMALL).fit(X, y)
    made, names = augmenter.augment(NOVEL[0] * 1e6, NOVEL[1], per_class=400)
    unit = NOISE * np.sqrt(np.mean((X - X.mean(0)) ** 2))
    for novel in np.unique(names):
        shots = NOVEL[0][NOVEL[1] == novel] * 1e6
        offsets = (made[names == novel][:, None] - shots[None]) / unit
        nearest = np.take_along_axis(offsets, np.square(offsets).sum(2).argmin(1)[:, None, None], 1)
        assert nearest.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_it_brings_the_classifier_that_it_was_trained_with(name: str, tmp_path: Path) -> None:
    augmenter = FeatureImagination(classifier=name, **SMALL).fit(*BASE)
    kind = {"prototypical": PrototypicalNetwork, "prototype-matching": PrototypeMatchingNetwork}[name]
    assert type(augmenter.classifier_) is kind
    assert augmenter.classifier_.meta_fitted_
    made, names = augmenter.augment(*NOVEL)
    X, y = np.concatenate([NOVEL[0], made]), np.concatenate([NOVEL[1], names])
    expected = augmenter.classifier_.fit(X, y).scores(X)
    augmenter.save(tmp_path)
    loaded = FeatureImagination.load(tmp_path, device="cpu")
    np.testing.assert_array_equal(loaded.augment(*NOVEL)[0], made)
    np.testing.assert_array_equal(loaded.classifier_.fit(X, y).scores(X), expected)
    assert loaded.history_ == augmenter.history_


def test_both_networks_are_trained() -> None:
    augmenter = FeatureImagination(held_out=0, learning_rate=1e-2, **SMALL).fit(*BASE)
    start = Hallucinator(5, noise=NOISE)
    assert not torch.allclose(augmenter.hallucinator_.first.weight.float(), start.first.weight)
    network: Any = augmenter.classifier_.network_
    assert network.embedding.residual.branch[2].weight.abs().max() > 1e-3


def test_features_that_are_never_negative_stay_so() -> None:
    X, y = np.abs(BASE[0]), BASE[1]
    shots = np.zeros((1, 5))
    for rectify, lowest in (("auto", 0.0), (True, 0.0), (False, -1e9)):
        made, _ = FeatureImagination(rectify=rectify, **SMALL).fit(X, y).augment(shots, ["new"], per_class=50)
        assert lowest <= made.min() <= 0
        assert (made.min() == 0) == (rectify is not False)
    assert FeatureImagination(**SMALL).fit(*BASE).hallucinator_.floor is None


def test_it_learns_what_the_classifier_lacks() -> None:
    """Shots are mirror images of what they stand for, which no class mean of them can undo but G can learn."""
    generator = torch.Generator().manual_seed(0)
    hallucinator = Hallucinator(5, noise=NOISE)
    network = PrototypicalScores(5, 0, directions=False)
    supporter = ImaginedSupport(hallucinator, 3, generator)
    recipe = MetaRecipe(1, 6, (1, 3), 2, 1e-3, 1)
    training = EpisodicTraining(network, nn.ModuleList([network, hallucinator]), supporter, recipe, 0.0)
    optimizer = torch.optim.Adam(hallucinator.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        centers = torch.randn(6, 1, 5, generator=generator)
        examples = centers + 0.1 * torch.randn(6, 5, 5, generator=generator)
        mirrored = torch.cat([-examples[:, :3], examples[:, 3:]], 1)
        task = Task(mirrored[:, :3], mirrored[:, 3:], torch.arange(6))
        loss = training.loss(task, torch.tensor([[True, False, False]] * 6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


def test_a_refused_fit_changes_nothing() -> None:
    augmenter = FeatureImagination(**SMALL).fit(*BASE)
    before = dict(vars(augmenter))
    for wrong in ({"episodes": 0}, {"held_out": "x"}, {"weight_decay": -1}, {"rectify": "yes"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            augmenter.set_params(**wrong).fit(10 * NOVEL[0] + 5, NOVEL[1])  # type: ignore[no-untyped-call]
        augmenter.set_params(**{key: before[key] for key in wrong})  # type: ignore[no-untyped-call]
        assert all(vars(augmenter)[key] is value for key, value in before.items())


def test_the_table_of_methods_has_it_on_both_classifiers() -> None:
    for name in ("feature-imagination", "feature-imagination-pmn"):
        assert METHODS[name].classifier == OWN


def test_wrong_settings_are_named() -> None:
    for setting, message in (
        ({"classifier": "linear"}, "classifier must be one of prototypical, prototype-matching, not 'linear'"),
        ({"generated": 0}, "generated must be a whole number of at least 1"),
        ({"rectify": "yes"}, "rectify must be True, False or 'auto'"),
        ({"episodes": 0}, "episodes must be"),
    ):
        with pytest.raises(InputError, match=message):
            FeatureImagination(**{**SMALL, **setting}).fit(*BASE)
