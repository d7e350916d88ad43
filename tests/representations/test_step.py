"""Penalties and losses of backbones against slow definitions."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from cpaan.representations.step import l2_penalty, prototypical_logits, prototypical_loss, sgm_penalty


def test_sgm_is_the_squared_gradient_of_a_linear_classifier() -> None:
    """The definition, by autograd: ‖∂ loss(Wφ, y) / ∂W‖², averaged over examples."""
    torch.manual_seed(0)
    features, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 0, 1])
    weights = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    norms = []
    for feature, label in zip(features, labels, strict=True):
        loss = cross_entropy((weights @ feature).unsqueeze(0), label.unsqueeze(0))
        norms.append(torch.autograd.grad(loss, weights)[0].square().sum())
    found = sgm_penalty(features, features @ weights.T, labels)
    torch.testing.assert_close(found, torch.stack(norms).mean())


def test_penalties_have_gradients() -> None:
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    assert torch.autograd.gradcheck(lambda x: sgm_penalty(x, x @ weights.T, labels), features)
    assert torch.autograd.gradcheck(l2_penalty, features)


def test_prototypical_logits_are_scaled_squared_distances() -> None:
    torch.manual_seed(0)
    queries, centers = torch.randn(7, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    found = prototypical_logits(queries, centers, 0.3)
    torch.testing.assert_close(found, -0.3 * torch.cdist(queries, centers) ** 2)


def test_prototypical_loss_by_loops() -> None:
    torch.manual_seed(0)
    support, support_labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([2, 0, 1, 1, 0, 2])
    queries, query_labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    features, labels = torch.cat([support, queries]), torch.cat([support_labels, query_labels])
    loss, accuracy = prototypical_loss(features, labels, 6, 3, 0.7)
    centers = [support[support_labels == c].mean(0) for c in range(3)]
    expected, right = 0.0, 0
    for query, label in zip(queries, query_labels.tolist(), strict=True):
        scores = torch.tensor([-0.7 * float((query - center) @ (query - center)) for center in centers])
        expected -= float(scores.log_softmax(0)[label]) / 5
        right += int(scores.argmax()) == label
    assert float(loss) == pytest.approx(expected)
    assert float(accuracy) == pytest.approx(right / 5)
