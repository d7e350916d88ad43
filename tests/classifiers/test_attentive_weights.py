"""The attentive weight generator against its equations in loops, and what it promises about base classes."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator, AttentiveWeights, base_loss, generator_loss
from cpaan.classifiers.cosine import CosineClassifier
from cpaan.classifiers.meta import Task
from cpaan.errors import InputError

B, D = 6, 5
SMALL: dict[str, Any] = {"episodes": 5, "base_episodes": 5, "device": "cpu", "random_state": 0}


def blobs(n_classes: int, per_class: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    centers = 3 * rng.normal(size=(n_classes, 1, D))
    X = (centers + rng.normal(size=(n_classes, per_class, D))).reshape(-1, D)
    return X, np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


BASE, NOVEL = blobs(B, 12, seed=0), blobs(3, 2, seed=1)


@pytest.fixture
def fitted() -> AttentiveWeightGenerator:
    return AttentiveWeightGenerator(**SMALL).meta_fit(*BASE)


def network() -> AttentiveWeights:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AttentiveWeights(D, B, width=4).double()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter))
    return made


def unit(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector)
    return vector / length


def slow_weight(made: AttentiveWeights, examples: Tensor, attended: list[int]) -> Tensor:
    """The published equation, an example and a base class at a time."""
    average, attention = torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for x in examples:
        z = unit(made.embedding(x))
        odds = [(made.attention_scale * unit(made.query @ z) @ unit(made.keys[b])).exp() for b in attended]
        for b, odd in zip(attended, odds, strict=True):
            attention = attention + odd / sum(odds) * unit(made.base_weights[b]) / len(examples)
        average = average + z / len(examples)
    return made.average_gain * average + made.attention_gain * attention


def test_generated_weights_and_both_losses_against_loops() -> None:
    made = network()
    generator = torch.Generator().manual_seed(1)
    support, query = (torch.randn(4, n, D, dtype=torch.float64, generator=generator) for n in (2, 3))
    classes = torch.tensor([4, 1, 0, 5])
    task = Task(support, query, classes)
    weights = [made.base_weights[b] for b in range(B)]
    remaining = [0, 2, 3, 5]  # classes 4 and 1 play novel ones and have no part in the attention
    for place, label in enumerate((4, 1)):
        weights[label] = slow_weight(made, support[place], remaining)
    for loss, rows in ((generator_loss, weights), (base_loss, list(made.base_weights))):
        expected = []
        for place, label in enumerate(classes.tolist()):
            for x in query[place]:
                scores = torch.stack([made.scale * unit(made.embedding(x)) @ unit(w) for w in rows])
                expected.append(cross_entropy(scores, torch.tensor(label)))
        torch.testing.assert_close(loss(made, task), torch.stack(expected).mean())


def test_what_fit_generates_against_loops(fitted: AttentiveWeightGenerator) -> None:
    X, y = np.concatenate([BASE[0], NOVEL[0]]), np.concatenate([BASE[1], NOVEL[1]])
    fitted.fit(X, y)
    scaled = fitted.scaling_.apply(torch.tensor(X))
    for row, label in enumerate(fitted.classes_.tolist()):
        if label in fitted.base_classes_:
            expected = fitted.network_.base_weights[fitted.base_classes_.index(label)]
        else:
            expected = slow_weight(fitted.network_, scaled[torch.tensor(y == label)], list(range(B)))
        np.testing.assert_allclose(fitted.weights_[row], unit(expected).numpy(), atol=1e-10)
    scores = fitted.scores(X)
    for row in (0, 40, len(X) - 1):
        expected_scores = fitted.network_.scale.item() * fitted.weights_ @ unit(scaled[row]).numpy()
        np.testing.assert_allclose(scores[row], expected_scores, atol=1e-9)


def test_without_attention_it_is_the_mean_feature_cosine_classifier(fitted: AttentiveWeightGenerator) -> None:
    with torch.no_grad():
        fitted.network_.attention_gain.fill_(0)
        fitted.network_.average_gain.fill_(1)
    X, y = NOVEL
    plain = CosineClassifier(scale=fitted.network_.scale.item(), center=False, max_iterations=0)
    centred = X - fitted.scaling_.origin.numpy()
    expected = plain.fit(centred, y).scores(centred)
    np.testing.assert_allclose(fitted.fit(X, y).scores(X), expected, atol=1e-9)


def test_novel_classes_change_neither_base_weights_nor_their_scores(fitted: AttentiveWeightGenerator) -> None:
    X, y = BASE
    alone = fitted.fit(X, y)
    weights, scores = alone.weights_.copy(), alone.scores(X)
    both = fitted.fit(np.concatenate([NOVEL[0], X]), np.concatenate([NOVEL[1], y]))
    base = np.isin(both.classes_, y)
    np.testing.assert_array_equal(both.weights_[base], weights)
    np.testing.assert_allclose(both.scores(X)[:, base], scores, atol=1e-12)


def test_base_classes_keep_their_weights_whatever_examples_come_with_them(fitted: AttentiveWeightGenerator) -> None:
    few = fitted.fit(BASE[0][::12] + 5, BASE[1][::12]).weights_
    np.testing.assert_array_equal(few, fitted.fit(*BASE).weights_)


def test_with_novel_classes_alone_it_knows_these_alone(fitted: AttentiveWeightGenerator) -> None:
    fitted.fit(*NOVEL)
    assert fitted.scores(NOVEL[0]).shape == (6, 3)
    assert (fitted.predict(NOVEL[0]) == NOVEL[1]).mean() > 0.8


def test_learning_starts_at_the_published_values() -> None:
    made = AttentiveWeightGenerator(**{**SMALL, "learning_rate": 1e-12}).meta_fit(*BASE).network_
    assert made.scale.item() == pytest.approx(10)
    assert made.attention_scale.item() == pytest.approx(30)
    np.testing.assert_allclose(made.query.numpy(), np.eye(D), atol=1e-6)


def test_both_stages_tell_one_progress_and_learn() -> None:
    told: list[Any] = []
    classifier = AttentiveWeightGenerator(**{**SMALL, "episodes": 60}, tell=told.append).meta_fit(*BASE)
    assert [progress.episode for progress in told] == list(range(1, 66))
    assert {progress.episodes for progress in told} == {65}
    losses = classifier.history_["loss"]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


@pytest.mark.parametrize("n_base", [1, 2, 3])
def test_few_base_classes_are_enough(n_base: int) -> None:
    classifier = AttentiveWeightGenerator(**SMALL).meta_fit(*blobs(n_base, 5, seed=3))
    assert np.isfinite(classifier.fit(*NOVEL).scores(NOVEL[0])).all()


def test_a_feature_transform_is_learned_where_it_is_wanted() -> None:
    classifier = AttentiveWeightGenerator(**SMALL, width=8).meta_fit(*BASE)
    branch = classifier.network_.embedding.branch
    assert branch is not None
    assert max(float(value.abs().max()) for value in branch[2].parameters()) > 0
    with pytest.raises(InputError, match="base_episodes must be a whole number of at least 1, not 0"):
        AttentiveWeightGenerator(**{**SMALL, "base_episodes": 0}).meta_fit(*BASE)
