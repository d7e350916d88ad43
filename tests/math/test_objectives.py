"""The loss terms against loops over pairs."""

import math

import numpy as np
import pytest
import torch

from cpaan.math.covariance import covariance
from cpaan.math.losses import (
    covariance_loss,
    cycle_loss,
    fake_loss,
    fooling_loss,
    heaviest_pairs,
    left_out_bound,
    real_loss,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 5, 4, generator=GENERATOR).double()
WEIGHTS = torch.rand(3, 5, generator=GENERATOR).double()


def probability(n: int, m: int, label: int) -> float:
    row = [math.exp(v) for v in LOGITS[n, m].tolist()]
    return row[label] / sum(row)


def test_adversarial_terms_are_weighted_mean_negative_log_probabilities() -> None:
    log_probabilities = LOGITS.log_softmax(-1)
    labels = torch.arange(3).unsqueeze(1)
    real = fake = fool = 0.0
    for n in range(3):
        for m in range(5):
            real -= math.log(probability(n, m, n)) / 15
            fake -= float(WEIGHTS[n, m]) * math.log(probability(n, m, 3)) / 15
            fool -= float(WEIGHTS[n, m]) * math.log(probability(n, m, n)) / 15
    assert real_loss(log_probabilities, labels).item() == pytest.approx(real)
    assert fake_loss(log_probabilities, WEIGHTS).item() == pytest.approx(fake)
    assert fooling_loss(log_probabilities, labels, WEIGHTS).item() == pytest.approx(fool)


def test_cycle_loss_is_the_weighted_squared_way_off() -> None:
    returned, started = torch.randn(3, 5, 2).double(), torch.randn(1, 5, 2).double()
    slow = sum(
        float(WEIGHTS[n, m]) * math.dist(returned[n, m].tolist(), started[0, m].tolist()) ** 2 / 15
        for n in range(3)
        for m in range(5)
    )
    assert cycle_loss(returned, started, WEIGHTS).item() == pytest.approx(slow)


def test_covariance_loss_is_the_weighted_sum_of_largest_singular_values() -> None:
    synthetic, factors = torch.randn(2, 30, 4).double(), torch.randn(2, 3, 6, 4).double()
    counted = (torch.rand(2, 30) > 0.3).double()
    weights = torch.rand(2, 3).double()
    slow = 0.0
    for n in range(2):
        sigma_g = covariance(synthetic[n][counted[n] > 0])
        for p in range(3):
            singular = torch.linalg.svdvals(factors[n, p].T @ factors[n, p] - sigma_g)
            slow += float(weights[n, p] * singular[:2].sum()) / 2
    assert covariance_loss(synthetic, counted, factors, weights, m=2).item() == pytest.approx(slow)


def test_covariance_loss_is_least_where_covariances_agree_and_ignores_the_mean() -> None:
    base = torch.randn(40, 4).double()
    factor = ((base - base.mean(0)) / 40**0.5).view(1, 1, 40, 4)
    ones, weight = torch.ones(1, 40).double(), torch.ones(1, 1).double()
    losses = [
        float(covariance_loss((base * s + 7).unsqueeze(0), ones, factor, weight, m=4)) for s in (0.0, 0.9, 1.0, 1.1)
    ]
    assert losses[2] == pytest.approx(0, abs=1e-9)
    assert min(losses[0], losses[1], losses[3]) > 0.1


def test_covariance_gradient_widens_a_narrow_generator() -> None:
    base = torch.randn(40, 4).double()
    factor = ((base - base.mean(0)) / 40**0.5).view(1, 1, 40, 4)
    scale = torch.tensor(0.5, dtype=torch.double, requires_grad=True)
    loss = covariance_loss((base * scale).unsqueeze(0), torch.ones(1, 40).double(), factor, torch.ones(1, 1), m=2)
    loss.backward()
    assert scale.grad is not None
    assert scale.grad < 0


def test_heaviest_pairs_keep_the_total() -> None:
    weights = torch.tensor([[0.05, 0.15, 0.2], [0.3, 0.1, 0.0]])
    kept, classes = heaviest_pairs(weights, 2)
    torch.testing.assert_close(kept.sum(1), weights.sum(1))
    assert classes.tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize("seed", range(8))
def test_the_loss_of_the_heaviest_pairs_is_within_its_bound(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(6, 5, 4, generator=generator)).Q.mT
    lengths = torch.rand(6, 4, 1, generator=generator).sort(dim=1, descending=True).values
    factors = (axes * lengths * torch.tensor([0.1, 1.0, 3.0]).repeat(2)[:, None, None]).double()
    synthetic = torch.randn(2, 30, 5, generator=generator).double() * 10 ** (seed % 3 - 1)
    weights = torch.softmax(3 * torch.randn(2, 6, generator=generator), dim=-1).double()
    ones = torch.ones(2, 30).double()
    everything = covariance_loss(synthetic, ones, factors.unsqueeze(0), weights, m=2)
    for number in range(1, 7):
        kept, classes = heaviest_pairs(weights, number)
        loss = covariance_loss(synthetic, ones, factors[classes], kept, m=2)
        bound = float(left_out_bound(weights, number, factors, synthetic, m=2))
        assert abs(float(loss - everything)) <= bound + 1e-9
    assert bound == pytest.approx(0, abs=1e-12)  # nothing is left out


def test_the_bound_is_what_is_left_out_times_the_farthest_that_covariances_can_be() -> None:
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(3, 5, 4, generator=generator)).Q.mT
    factors = (
        axes * torch.tensor([3.0, 2.0, 1.0, 0.5])[:, None] * torch.tensor([1.0, 4.0, 2.0])[:, None, None]
    ).double()
    synthetic = torch.randn(2, 30, 5, generator=generator).double() * torch.tensor([1.0, 5.0])[:, None, None]
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]).double()
    norm = max(np.linalg.svd((f.T @ f).numpy(), compute_uv=False)[:2].sum() for f in factors)
    spread = [np.trace(np.cov(rows.numpy(), rowvar=False, bias=True)) for rows in synthetic]
    for number, left_out in ((1, (0.5, 0.2)), (2, (0.2, 0.1))):
        slow = sum(lost * (norm + trace) for lost, trace in zip(left_out, spread, strict=True)) / 2
        assert left_out_bound(weights, number, factors, synthetic, m=2).item() == pytest.approx(slow, rel=1e-5)
