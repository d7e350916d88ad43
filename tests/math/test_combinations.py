"""Combinations of rows against the eigenvectors of what the rows make up."""

import pytest
import torch
from torch import Tensor

from cpaan.math.ky_fan_cuda import leading_combinations

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize(("rows", "positive"), [(20, 12), (64, 30), (9, 9), (12, 1)])
def test_leading_combinations_of_rows_are_leading_eigenvectors(rows: int, positive: int, device: str) -> None:
    count, dimension = min(8, rows), 70
    W = torch.randn(4, rows, dimension, generator=torch.Generator().manual_seed(rows)).to(device)
    W = W * (0.8 ** torch.arange(rows, device=device)).unsqueeze(-1)
    signs = torch.ones(rows, 1, device=device)
    signs[positive:] = -1
    U = W.mT @ leading_combinations(W @ W.mT, positive, count)
    U = torch.linalg.qr(U.double()).Q
    M = (W.mT @ (signs * W)).double()
    found = torch.linalg.eigvalsh(U.mT @ M @ U).abs().sort(descending=True).values[:, :3].sum(-1)
    exact = torch.linalg.eigvalsh(M).abs().sort(descending=True).values[:, :3].sum(-1)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=0)


def falling_rows(seed: int, ratio: float) -> Tensor:
    """Give 24 rows whose lengths fall."""
    W = torch.randn(24, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return W * (ratio ** torch.arange(24)).unsqueeze(-1)


def projector(vectors: Tensor) -> Tensor:
    Q: Tensor = torch.linalg.qr(vectors).Q
    return Q @ Q.mT


def test_every_step_is_the_filter_of_the_matrix_that_the_rows_make_up() -> None:
    W, signs = falling_rows(0, 0.95), torch.ones(24, 1, dtype=torch.float64)
    signs[12:] = -1
    M = W.mT @ (signs * W)
    Q = torch.linalg.qr(W.mT @ leading_combinations(W @ W.mT, 12, 8, steps=0)).Q
    for steps in (1, 2, 3):
        Z = M @ Q
        Q = torch.linalg.qr(M @ Z - Z.norm(dim=0).min() ** 2 / 2 * Q).Q
        found = W.mT @ leading_combinations(W @ W.mT, 12, 8, steps=steps)
        torch.testing.assert_close(projector(found), Q @ Q.mT, rtol=0, atol=1e-9)


def test_matrices_of_a_batch_do_not_matter_to_each_other() -> None:
    grams = [W @ W.mT for W in (falling_rows(0, 0.95), falling_rows(1, 0.5))]
    alone = torch.stack([leading_combinations(gram, 12, 8) for gram in grams])
    torch.testing.assert_close(leading_combinations(torch.stack(grams), 12, 8), alone, rtol=1e-6, atol=1e-9)


@needs_cuda
def test_a_gpu_begins_where_a_processor_begins() -> None:
    W = torch.randn(6, 64, 200, generator=torch.Generator().manual_seed(0)) * (0.95 ** torch.arange(64)).unsqueeze(-1)
    gram = W @ W.mT
    found = leading_combinations(gram.cuda(), 32, 16, steps=0)
    torch.testing.assert_close(found.cpu(), leading_combinations(gram, 32, 16, steps=0), rtol=1e-3, atol=1e-4)
