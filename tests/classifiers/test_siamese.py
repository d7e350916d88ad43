"""The siamese network: odds, loss and class scores against loops."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cpaan.classifiers import meta as network_module
from cpaan.classifiers import siamese
from cpaan.classifiers.meta import keep_few
from cpaan.classifiers.siamese import SiameseNetwork, TwinNetwork, balanced_pair_loss
from cpaan.errors import InputError

D = 5
SMALL: dict[str, Any] = {"episodes": 20, "width": 8, "device": "cpu", "random_state": 0, "learning_rate": 0.05}


def blobs(n_classes: int, per_class: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 1, D))
    X = (centers + rng.normal(size=(n_classes, per_class, D))).reshape(-1, D)
    return X, np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


def trained_twin() -> TwinNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = TwinNetwork(D, 8, directions=False).double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_()
    return network


def test_odds_against_loops_with_weights_of_either_sign() -> None:
    network = trained_twin()
    left, right = (torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (4, 3))
    found = network(left, right)
    alpha = network.importance
    assert (alpha > 0).any()
    assert (alpha < 0).any()
    for i in range(4):
        for j in range(3):
            a, b = network.embed(left[i]), network.embed(right[j])
            expected = network.bias + sum(alpha[k] * (a[k] - b[k]).abs() for k in range(D))
            torch.testing.assert_close(found[i, j], expected)
    torch.testing.assert_close(found, network(right, left).T)


def test_gradients_of_the_odds() -> None:
    network = trained_twin()
    left, right = (torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (2, 3))
    parameters = dict(network.named_parameters())

    def odds(*values: torch.Tensor) -> torch.Tensor:
        named = dict(zip(parameters, values, strict=True))
        found: torch.Tensor = torch.func.functional_call(network, named, (left, right))
        return found

    assert torch.autograd.gradcheck(odds, tuple(value.detach().requires_grad_() for value in parameters.values()))


def test_pairs_of_one_class_and_of_two_count_half_each() -> None:
    odds = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
    same = torch.tensor([[True, False, False], [False, False, False]])
    probabilities = odds.sigmoid()
    alike = -probabilities[0, 0].log()
    unlike = -(1 - probabilities[~same]).log().mean()
    torch.testing.assert_close(balanced_pair_loss(odds, same), (alike + unlike) / 2)
    only = torch.ones_like(same)
    torch.testing.assert_close(balanced_pair_loss(odds, only), -probabilities.log().mean())


@pytest.mark.parametrize("match", ["prototype", "nearest", "mean"])
def test_class_scores_against_loops_whatever_the_blocks(match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siamese, "PAIRS_AT_ONCE", 30)
    classifier = SiameseNetwork(match=match, support_per_class=100, **SMALL).meta_fit(*blobs(6, 10, seed=0))
    X, y = blobs(3, 4, seed=1)
    X, y = X[:-2], y[:-2]  # classes of different sizes
    scores = classifier.fit(X, y).scores(X[::2])
    network = classifier.network_
    embedded = network.embed(classifier.scaling_.apply(torch.tensor(X)))
    alpha = network.importance

    def odds(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(network.bias + (alpha * (a - b).abs()).sum())

    for row, query in enumerate(embedded[::2]):
        for column, label in enumerate(classifier.classes_):
            members = embedded[torch.tensor(y == label)]
            single = [odds(query, member) for member in members]
            expected = {"nearest": max(single), "mean": sum(single) / len(single)}
            expected["prototype"] = odds(query, members.mean(0))
            assert scores[row, column] == pytest.approx(expected[match])


@pytest.mark.parametrize("match", ["prototype", "nearest"])
def test_examples_are_embedded_in_blocks(match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = SiameseNetwork(match=match, **SMALL).meta_fit(*blobs(6, 10, seed=0))
    X, y = blobs(5, 6, seed=1)
    expected = classifier.fit(X, y).scores(X)
    sizes: list[int] = []
    classifier.network_.embedding.register_forward_hook(lambda module, given, found: sizes.append(len(given[0])))
    monkeypatch.setattr(network_module, "ROWS_AT_ONCE", 7)
    classifier.fit(X, y)
    assert sizes == [7, 7, 7, 7, 2]
    np.testing.assert_allclose(classifier.scores(X), expected, atol=1e-12)


def test_training_tells_like_from_unlike_pairs_better() -> None:
    history = SiameseNetwork(**{**SMALL, "episodes": 100, "width": 16}).meta_fit(*blobs(20, 10, seed=0)).history_
    assert np.mean(history["loss"][-10:]) < 0.5 * history["loss"][0]


def test_few_examples_are_kept_of_each_class() -> None:
    targets = np.array([0, 1, 0, 2, 0, 1, 0, 0])
    kept = keep_few(targets, 2, seed=0)
    assert np.bincount(targets[kept]).tolist() == [2, 2, 1]
    assert (np.diff(kept) > 0).all()
    drawn = {tuple(keep_few(targets, 2, seed=seed)) for seed in range(50)}
    assert len(drawn) == 10  # all pairs of the five examples of class 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"match": "best"}, "match must be one of prototype, nearest, mean, not 'best'"),
        ({"width": -1}, "width must be a whole number of at least 0, not -1"),
        ({"support_per_class": 0}, "support_per_class must be a whole number of at least 1, not 0"),
        ({"recipe": "slow"}, "unknown recipe 'slow'; choose one of quick, paper"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SiameseNetwork(**{**SMALL, **settings}).fit(*blobs(3, 4, seed=0))
