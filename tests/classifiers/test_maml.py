"""MAML: the meta-gradient against finite differences, and the inner loop against hand-written steps."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.classifiers.maml import MAML, AdaptiveLearner, task_loss
from cpaan.classifiers.meta import Task
from cpaan.errors import InputError

N, K, Q, D = 3, 2, 2, 4
SMALL: dict[str, Any] = {"episodes": 3, "width": 8, "device": "cpu", "random_state": 0}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def learner(head: str, *, width: int = 5, first_order: bool = False) -> AdaptiveLearner:
    """A learner in double precision, with parameters away from their start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AdaptiveLearner(
            D, width, directions=False, head=head, head_rate=2.0, body_rate=0.3, first_order=first_order
        ).double()
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if not name.startswith("log_"):
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def a_task() -> Task:
    return Task(random(N, K, D), random(N, Q, D, seed=1), torch.arange(N))


def meta_gradient(network: AdaptiveLearner, steps: int) -> dict[str, Tensor]:
    names = dict(network.named_parameters())
    found = torch.autograd.grad(task_loss(network, a_task(), steps), list(names.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(names.items(), found, strict=True)}


@pytest.mark.parametrize("head", ["common", "prototype"])
def test_meta_gradient_against_finite_differences_and_unlike_the_first_order_one(head: str) -> None:
    network, steps, step = learner(head), 3, 1e-6
    exact = meta_gradient(network, steps)
    for name, parameter in network.named_parameters():
        flat, slopes = parameter.data.view(-1), []
        for index in range(len(flat)):
            ends = []
            for sign in (1, -1):
                flat[index] += sign * step
                ends.append(float(task_loss(network, a_task(), steps).detach()))
                flat[index] -= sign * step
            slopes.append((ends[0] - ends[1]) / (2 * step))
        torch.testing.assert_close(
            exact[name].flatten(), torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-7
        )
    approximate = meta_gradient(learner(head, first_order=True), steps)
    parts = [name for name in exact if name.startswith("embedding")]
    differences = [float((exact[name] - approximate[name]).norm() / exact[name].norm()) for name in parts]
    assert min(differences) > 1e-3
    values = [float(task_loss(learner(head, first_order=f), a_task(), steps).detach()) for f in (False, True)]
    assert values[0] == pytest.approx(values[1])  # only the gradient is approximate


@pytest.mark.parametrize("head", ["common", "prototype"])
def test_inner_steps_against_automatic_differentiation_by_hand(head: str) -> None:
    network, counts = learner(head), [1, 2, 4]
    labels = torch.repeat_interleave(torch.arange(N), torch.tensor(counts))
    support = random(len(labels), D)
    adapted = network.adapt(support, labels, N, steps=2)
    body = {name: value.detach().clone() for name, value in network.embedding.named_parameters()}
    if head == "common":
        weights = (network.common[:-1] / math.sqrt(D)).detach().repeat(N, 1)
        biases = network.common[-1].detach().repeat(N)
    else:
        means = torch.stack([network.embedding(support[labels == c]).mean(0) for c in range(N)]).detach()
        sharpness = math.exp(float(network.log_sharpness.detach())) / D
        weights, biases = 2 * sharpness * means, -sharpness * means.square().sum(1)
    for _ in range(2):
        leaves = [value.clone().requires_grad_() for value in (*body.values(), weights, biases)]
        named = dict(zip(body, leaves, strict=False))
        embedded = torch.func.functional_call(network.embedding, named, (support,))
        log_probabilities = (embedded @ leaves[-2].T + leaves[-1]).log_softmax(1)
        per_class = [-log_probabilities[labels == c, c].mean() for c in range(N)]
        slopes = torch.autograd.grad(sum(per_class) / N, leaves)
        body = {name: value - 0.3 * slope for (name, value), slope in zip(body.items(), slopes, strict=False)}
        weights, biases = weights - 2.0 * N / D * slopes[-2], biases - 2.0 * N / D * slopes[-1]
    torch.testing.assert_close(adapted.weights, weights, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(adapted.biases, biases, rtol=1e-6, atol=1e-6)
    for name, value in body.items():
        torch.testing.assert_close(adapted.body[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head", ["common", "prototype"])
def test_the_order_of_classes_does_not_matter(head: str) -> None:
    network, labels = learner(head), torch.arange(N).repeat_interleave(K)
    support, query, order = random(N * K, D), random(5, D, seed=1), torch.tensor([2, 0, 1])
    first = network.scores(network.adapt(support, labels, N, steps=3), query)
    renamed = network.scores(network.adapt(support, order[labels], N, steps=3), query)
    torch.testing.assert_close(renamed[:, order], first)


def test_one_step_from_zero_gives_class_means_for_any_number_of_classes() -> None:
    """w_c = ρ/D (l_c − mean of all l), whatever N: what the factor N in the head's rate is for."""
    for ways in (2, 7, 40):
        network = AdaptiveLearner(D, 0, directions=False, head="common", head_rate=2.0, body_rate=0.3).double()
        support, labels = random(3 * ways, D), torch.arange(ways).repeat_interleave(3)
        means = support.reshape(ways, 3, D).mean(1)
        found = network.adapt(support, labels, ways, steps=1).weights
        torch.testing.assert_close(found, 2.0 / D * (means - means.mean(0)), rtol=1e-6, atol=1e-6)


def test_a_head_of_prototypes_begins_as_the_nearest_prototype() -> None:
    network, labels = learner("prototype"), torch.arange(N).repeat_interleave(K)
    support, query = random(N * K, D), random(6, D, seed=1)
    found = network.scores(network.adapt(support, labels, N, steps=0), query).softmax(1)
    means = network.embedding(support).reshape(N, K, D).mean(1)
    distances = (network.embedding(query).unsqueeze(1) - means).square().sum(2)
    expected = (-network.log_sharpness.exp() / D * distances).softmax(1)
    torch.testing.assert_close(found, expected)


def test_an_example_far_out_leaves_everything_finite() -> None:
    network, labels = learner("common"), torch.arange(N).repeat_interleave(K)
    support = random(N * K, D)
    support[0] *= 1e30
    scores = network.scores(network.adapt(support, labels, N, steps=10), support)
    assert torch.isfinite(scores).all()


def blobs(n_classes: int, per_class: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    centers = 2 * rng.normal(size=(n_classes, 1, D))
    X = (centers + rng.normal(size=(n_classes, per_class, D))).reshape(-1, D)
    return X, np.repeat(np.arange(n_classes), per_class)


@pytest.mark.parametrize("head", ["common", "prototype"])
def test_meta_training_lowers_the_loss_and_moves_the_embedding_and_both_rates(head: str) -> None:
    settings = {**SMALL, "head": head, "episodes": 60, "learning_rate": 1e-2, "head_rate": 0.1, "body_rate": 0.01}
    trained = MAML(**settings).meta_fit(*blobs(12, 10, seed=0))
    losses = trained.history_["loss"]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
    start = dict(MAML(**settings)._built(D, 12, trained._seed(0)).named_parameters())
    unused = "log_sharpness" if head == "common" else "common"
    for name, value in trained.network_.named_parameters():
        moved = float((value - start[name]).abs().max().detach())
        assert (moved > 0.01) == (name != unused), name


def test_fit_takes_the_steps_of_fit() -> None:
    trained = MAML(steps=1, **SMALL).meta_fit(*blobs(8, 10, seed=0))
    X, y = blobs(3, 2, seed=1)
    scores = []
    for fit_steps in (1, 10):
        trained.fit_steps = fit_steps
        scores.append(trained.fit(X, y).scores(X))
        labels, network = torch.as_tensor(y), trained.network_
        support = trained.scaling_.apply(torch.tensor(X))
        expected = network.scores(network.adapt(support, labels, 3, steps=fit_steps), support)
        np.testing.assert_allclose(scores[-1], expected, atol=1e-12)
    assert np.abs(scores[1] - scores[0]).max() > 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "own"}, "head must be one of common, prototype, not 'own'"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"body_rate": 0.0}, "body_rate must be a positive number, not 0.0"),
        ({"shots": ()}, "shots must be one or more whole numbers of at least 1"),
        ({"head_rate": "x"}, "head_rate must be a positive number, not 'x'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    X = np.random.default_rng(0).normal(size=(12, D))
    with pytest.raises(InputError, match=message):
        MAML(**{**SMALL, **settings}).fit(X, np.arange(12) % 3)
