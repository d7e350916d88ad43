"""Prototypical, matching and prototype matching networks: formulas, invariances, and that they learn."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from cpaan import InputError
from cpaan.classifiers import meta as network_module
from cpaan.classifiers.episodic import EpisodicClassifier
from cpaan.classifiers.matching import (
    STEPS,
    MatchingNetwork,
    MatchingScores,
    PrototypeMatchingNetwork,
    PrototypeMatchingScores,
    QueryContext,
    SupportContext,
)
from cpaan.classifiers.prototypical import PrototypicalNetwork, PrototypicalScores
from cpaan.data import glyph_split, load_glyphs
from cpaan.data.low_shot import draw_shots
from cpaan.evaluation.scores import evaluate_low_shot

FloatArray = npt.NDArray[np.float64]
SMALL: dict[str, Any] = {"episodes": 4, "ways": 6, "shots": (1, 3), "queries": 2, "width": 8, "device": "cpu"}
KINDS: list[type[EpisodicClassifier]] = [PrototypicalNetwork, MatchingNetwork, PrototypeMatchingNetwork]
NETWORKS = [
    lambda: PrototypicalScores(5, 8, directions=True),
    lambda: MatchingScores(5, 8, context_width=4),
    lambda: PrototypeMatchingScores(5, 8, context_width=4),
]
SIZES = (3, 1, 4)


def classes_of(n_classes: int, per_class: int, seed: int = 0) -> tuple[FloatArray, npt.NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    X = 3 * rng.normal(size=(n_classes, 1, 5)) + rng.normal(size=(n_classes, per_class, 5)) + 2
    return X.reshape(-1, 5), np.repeat([f"{seed}-{i:02}" for i in range(n_classes)], per_class)


BASE = classes_of(12, 8)
NOVEL = classes_of(3, 4, seed=1)


def perturbed(network: nn.Module) -> nn.Module:
    """Take a network away from its beginning, where much of it is the identity."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return network.double()


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(sum(SIZES), 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    return support, labels, torch.randn(6, 5, generator=generator, dtype=torch.float64)


def embedded(network: Any, x: FloatArray) -> FloatArray:
    """Embed one example by hand: x + V relu(U x + u) + v."""
    first, _, last = network.branch
    U, u, V, v = (p.detach().numpy() for p in (first.weight, first.bias, last.weight, last.bias))
    result: FloatArray = x + V @ np.maximum(U @ x + u, 0) + v
    return result


def cosine(a: FloatArray, b: FloatArray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def direction(x: FloatArray) -> FloatArray:
    scaled: FloatArray = np.sqrt(len(x)) * x / np.linalg.norm(x)
    return scaled


@pytest.mark.parametrize("directions", [True, False])
def test_prototypical_scores_are_scaled_squared_distances_to_class_means(directions: bool) -> None:
    network: Any = perturbed(PrototypicalScores(5, 8, directions=directions))
    support, labels, query = problem()
    scores = network.score(network.encode(support, labels, 3), query).detach().numpy()
    keep = direction if directions else lambda x: x
    f = [embedded(network.embedding.residual, keep(x)) for x in support.numpy()]
    scale = np.exp(network.log_scale.item())
    for i, x in enumerate(query.numpy()):
        for k in range(3):
            mean = np.mean([f[j] for j in range(8) if labels[j] == k], axis=0)
            distance = np.sum((embedded(network.embedding.residual, keep(x)) - mean) ** 2)
            assert scores[i, k] == pytest.approx(-scale * distance, rel=1e-9)


def test_matching_without_context_is_cosine_attention_over_the_support() -> None:
    network: Any = perturbed(MatchingScores(5, 8, context_width=0))
    support, labels, query = problem()
    support, labels = support[[0, 1, 4, 5, 2, 3]], torch.tensor([0, 0, 1, 1, 2, 2])  # as many of each class
    scores = network.score(network.encode(support, labels, 3), query).detach().numpy()
    g = [embedded(network.embedding, x) for x in support.numpy()]
    scale = np.exp(network.log_scale.item())
    for i, x in enumerate(query.numpy()):
        a = np.exp([scale * cosine(embedded(network.embedding, x), gi) for gi in g])
        a /= a.sum()
        P = [sum(a[j] for j in range(6) if labels[j] == k) for k in range(3)]
        np.testing.assert_allclose(np.exp(scores[i]), P, rtol=1e-9)


@pytest.mark.parametrize("width", [0, 4])
def test_in_matching_repeated_examples_count_once(width: int) -> None:
    """A class is no likelier for having many examples: those of one class may be repeated without any effect."""
    network: Any = perturbed(MatchingScores(5, 8, context_width=width))
    network.of_support = None  # which reads a longer support otherwise
    support, labels, query = problem()
    once = network.score(network.encode(support, labels, 3), query)
    rows = torch.tensor([*range(8), 3, 3, 3])
    again = network.score(network.encode(support[rows], labels[rows], 3), query)
    torch.testing.assert_close(again, once)


def test_prototype_matching_without_context_is_cosine_matching_with_class_means() -> None:
    network: Any = perturbed(PrototypeMatchingScores(5, 8, context_width=0))
    support, labels, query = problem()
    scores = network.score(network.encode(support, labels, 3), query).detach().numpy()
    e = [embedded(network.embedding, direction(x)) for x in support.numpy()]
    scale = np.exp(network.log_scale.item())
    for i, x in enumerate(query.numpy()):
        for k in range(3):
            mean = np.mean([e[j] for j in range(8) if labels[j] == k], axis=0)
            expected = scale * cosine(embedded(network.embedding, direction(x)), mean)
            assert scores[i, k] == pytest.approx(expected, rel=1e-9)


def test_the_context_of_a_query_is_an_lstm_that_reads_by_attention() -> None:
    context: Any = perturbed(QueryContext(5, 4))
    support, _, query = problem()
    weights = torch.rand(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cell = nn.LSTMCell(10, 4, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([context.of_query.weight, context.of_read.weight], dim=1))
        cell.weight_hh.copy_(context.of_hidden.weight)
        cell.bias_ih.copy_(context.of_query.bias)
        cell.bias_hh.zero_()
        found = context(query, support, weights.log())
        for i in range(len(query)):
            x, states = query[i : i + 1], (torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
            h = x
            for _ in range(STEPS):
                close = np.array([cosine(h[0].numpy(), g) for g in support.numpy()])
                a = weights.numpy() * np.exp(context.log_scale.exp().item() * close)
                r = torch.as_tensor(sum(a[j] / a.sum() * support[j].numpy() for j in range(8)))
                states = cell(torch.cat([x[0], r])[None], states)
                h = x + states[0] @ context.output.weight.T
            torch.testing.assert_close(found[i], h[0])


def test_the_context_of_a_support_reads_it_in_both_directions() -> None:
    context: Any = perturbed(SupportContext(5, 4))
    support, _, _ = problem()
    with torch.no_grad():
        changed = support.clone()
        changed[3] += 1
        differs = (context(changed) - context(support)).abs().amax(1)
    assert (differs > 1e-6).all()


@pytest.mark.parametrize("make", NETWORKS)
def test_every_weight_of_a_network_gets_the_gradient_of_finite_differences(make: Any) -> None:
    network: Any = perturbed(make())
    support, labels, query = problem()
    truth = torch.tensor([0, 1, 2, 0, 1, 2])

    def loss() -> torch.Tensor:
        scores = network.score(network.encode(support, labels, 3), query)
        return nn.functional.cross_entropy(scores, truth)

    names, weights = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss(), weights)
    for name, weight, gradient in zip(names, weights, gradients, strict=True):
        place = int(gradient.abs().argmax())
        assert gradient.flatten()[place] != 0, name
        values = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                weight.view(-1)[place] += step
                values.append(loss().item())
        with torch.no_grad():
            weight.view(-1)[place] += 1e-6
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(gradient.flatten()[place].item(), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("make", NETWORKS)
def test_networks_begin_with_their_features_unchanged(make: Any) -> None:
    network = make().double()
    without = PrototypicalScores(5, 0, directions=True) if isinstance(network, PrototypicalScores) else None
    if without is None:
        without = type(network)(5, 0, context_width=0)
    support, labels, query = problem()
    found = network.score(network.encode(support, labels, 3), query)
    torch.testing.assert_close(found, without.score(without.encode(support, labels, 3), query), check_dtype=False)


@pytest.mark.parametrize(
    "kind",
    [PrototypicalNetwork, partial(MatchingNetwork, context=False), partial(PrototypeMatchingNetwork, context=False)],
)
def test_names_and_order_of_classes_do_not_matter_without_context(kind: Any) -> None:
    X, y = NOVEL
    names = {"1-00": "z", "1-01": "m", "1-02": "a"}
    classifier = kind(random_state=0, **SMALL).meta_fit(*BASE)
    first = classifier.fit(X, y).scores(X)
    order = np.random.default_rng(0).permutation(len(X))
    renamed = classifier.fit(X[order], [names[y[i]] for i in order]).scores(X)
    np.testing.assert_allclose(renamed[:, ::-1], first, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_classifier_gives_the_same_scores(kind: Any, tmp_path: Path) -> None:
    classifier = kind(random_state=3, **SMALL).meta_fit(*BASE)
    classifier.save(tmp_path)
    loaded = kind.load(tmp_path, device="cpu")
    X = np.concatenate([BASE[0], NOVEL[0]])
    y = np.concatenate([BASE[1], NOVEL[1]])
    np.testing.assert_array_equal(loaded.fit(X, y).scores(X), classifier.fit(X, y).scores(X))
    assert loaded.history_ == classifier.history_
    assert loaded.base_classes_ == classifier.base_classes_


def test_matching_keeps_a_few_examples_of_each_class_and_draws_them_by_its_seed() -> None:
    X, y = np.concatenate([BASE[0], NOVEL[0]]), np.concatenate([BASE[1], NOVEL[1]])
    classifier = MatchingNetwork(support_per_class=5, random_state=0, **SMALL).meta_fit(*BASE).fit(X, y)
    assert classifier.memory_[2].tolist() == [5] * 12 + [4] * 3
    same = MatchingNetwork(support_per_class=5, random_state=0, **SMALL).meta_fit(*BASE).fit(X, y)
    np.testing.assert_array_equal(same.scores(X), classifier.scores(X))
    classifier.random_state = 1
    assert not np.allclose(classifier.fit(X, y).scores(X), same.scores(X))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_embedded_in_blocks(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = kind(random_state=0, **SMALL).meta_fit(*BASE)
    X, y = classes_of(5, 6, seed=2)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    expected = classifier.fit(X, y).scores(X)
    sizes: list[int] = []
    classifier.network_.embedding.register_forward_hook(lambda module, given, found: sizes.append(len(given[0])))
    monkeypatch.setattr(network_module, "ROWS_AT_ONCE", 7)
    classifier.fit(X, y)
    assert sizes == [7, 7, 7, 7, 2]
    np.testing.assert_allclose(classifier.scores(X), expected, atol=1e-12)


def test_without_directions_and_embedding_scores_are_plain_squared_euclidean_distances() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(48, 40)) * rng.uniform(0.1, 9, (48, 1)) + 5, np.repeat(np.arange(12), 4)
    untrained: dict[str, Any] = {**SMALL, "width": 0, "episodes": 1, "learning_rate": 1e-12, "random_state": 0}
    classifier = PrototypicalNetwork(directions=False, **untrained).meta_fit(X, y)
    x = (X - X.mean(0)) / np.sqrt(np.mean((X - X.mean(0)) ** 2))
    means = np.array([x[y == k].mean(0) for k in range(12)])
    expected = -np.square(x[:, None] - means).sum(2) / np.sqrt(40)
    np.testing.assert_allclose(classifier.fit(X, y).scores(X), expected, rtol=1e-6)


@pytest.mark.parametrize(("dimension", "automatic"), [(31, False), (32, True)])
def test_directions_are_taken_from_32_features_on_or_as_said(dimension: int, automatic: bool, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(24, dimension))
    y = np.repeat(np.arange(8), 3)
    scores: dict[Any, FloatArray] = {}
    for directions in ("auto", True, False):
        classifier = PrototypicalNetwork(directions=directions, random_state=0, **SMALL).meta_fit(X, y)
        scores[directions] = classifier.fit(X, y).scores(X)
        classifier.save(tmp_path / str(directions))
        loaded = PrototypicalNetwork.load(tmp_path / str(directions), device="cpu")
        np.testing.assert_array_equal(loaded.fit(X, y).scores(X), scores[directions])
    np.testing.assert_array_equal(scores["auto"], scores[automatic])
    assert not np.allclose(scores["auto"], scores[not automatic])


@pytest.mark.parametrize("kind", KINDS)
def test_a_glyph_is_told_from_27_others_by_one_example(kind: Any) -> None:
    glyphs = load_glyphs()
    base, novel = (glyphs.select(names) for names in glyph_split())
    shots, unseen = draw_shots(novel, 1, 0)
    few: dict[str, Any] = {"episodes": 20, "ways": 15, "shots": (1, 2, 4), "queries": 1, "width": 64, "held_out": 0}
    classifier = kind(random_state=0, device="cpu", **few)
    if kind is not PrototypicalNetwork:
        classifier.set_params(context_width=16)
    classifier.meta_fit(base.features, base.names)
    losses = classifier.history_["loss"]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    classifier.fit(np.concatenate([base.features, shots.features]), np.concatenate([base.names, shots.names]))
    scores = evaluate_low_shot(classifier, unseen.features, unseen.names, novel.classes)
    assert scores.lsl[1] > 40  # chance: 3.6


def test_wrong_settings_are_named() -> None:
    for kind, setting, message in (
        (PrototypicalNetwork, {"width": -1}, "width must be a whole number of at least 0"),
        (PrototypicalNetwork, {"held_out": 0.9}, "held_out must be a share from 0 to 0.5"),
        (PrototypicalNetwork, {"held_out": "x"}, "held_out must be a share from 0 to 0.5, not 'x'"),
        (PrototypicalNetwork, {"recipe": "slow"}, "unknown recipe 'slow'"),
        (PrototypicalNetwork, {"directions": "up"}, "directions must be True, False or 'auto', not 'up'"),
        (MatchingNetwork, {"support_per_class": 0}, "support_per_class must be"),
        (PrototypeMatchingNetwork, {"context_width": 0}, "context_width must be"),
    ):
        with pytest.raises(InputError, match=message):
            kind(**{**SMALL, **setting}).meta_fit(*BASE)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_units_of_features(kind: Any, scale: float) -> None:
    classifier = kind(random_state=0, **SMALL)
    expected = classifier.meta_fit(*BASE).fit(*NOVEL).scores(NOVEL[0])
    scaled = classifier.meta_fit(BASE[0] * scale, BASE[1]).fit(NOVEL[0] * scale, NOVEL[1]).scores(NOVEL[0] * scale)
    np.testing.assert_allclose(scaled, expected, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["constant", "line", "single", "two classes"])
def test_odd_features_give_finite_scores(kind: Any, shape: str) -> None:
    X, y = BASE
    X, y = {
        "constant": (np.full_like(X, 7e8), y),
        "line": (X[:, :1], y),
        "single": (X[::8], y[::8]),
        "two classes": (X[:16], y[:16]),
    }[shape]
    scores = kind(random_state=0, **SMALL).meta_fit(X, y).fit(X, y).scores(X)
    assert np.isfinite(scores).all()
