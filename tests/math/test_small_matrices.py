"""Small matrices decomposed and factorised, against LAPACK, on spectra that break careless solvers."""

import pytest
import torch
from torch import Tensor

from cpaan.math.ky_fan_cuda import eigh_by_size, jacobi_eigh, shifted_cholesky, whitening

DTYPES = [torch.float64, torch.float32]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """Return a symmetric matrix that has these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    basis: Tensor = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)).Q
    return (basis * values.double()) @ basis.mT


SPECTRA = {
    "spread": torch.linspace(-3, 2, 24),
    "odd size": torch.linspace(-1, 4, 23),
    "repeated": torch.tensor([2.0] * 9 + [-2.0] * 8 + [1e-3] * 7),
    "clustered": torch.cat((1 + 1e-6 * torch.arange(12), -1 - 1e-7 * torch.arange(12))),
    "zero": torch.zeros(16),
    "rank one": torch.tensor([5.0] + [0.0] * 14),
    "graded": 10.0 ** torch.arange(0, -20, -1),
    "large": torch.linspace(-1, 1, 64),
    "huge": 1e20 * torch.linspace(-3, 2, 24),
    "tiny": 1e-20 * torch.linspace(-3, 2, 24),
    "single": torch.tensor([-3.0]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_jacobi_agrees_with_lapack(name: str, dtype: torch.dtype) -> None:
    M = with_spectrum(SPECTRA[name]).to(dtype)
    values, vectors = jacobi_eigh(M)
    size = float(SPECTRA[name].abs().max())
    rounding = 300 * torch.finfo(dtype).eps
    assert torch.isfinite(vectors).all()
    assert (values - torch.linalg.eigvalsh(M)).abs().max() <= rounding * size
    assert (vectors.mT @ vectors - torch.eye(len(M), dtype=dtype)).abs().max() <= rounding
    assert (M @ vectors - vectors * values).abs().max() <= 1e-4 * size


def test_jacobi_residual_is_rounding_where_eigenvalues_differ() -> None:
    M = with_spectrum(torch.linspace(-3, 2, 64))
    values, vectors = jacobi_eigh(M)
    assert (M @ vectors - vectors * values).abs().max() < 1e-13


def test_jacobi_takes_batches() -> None:
    M = torch.stack([with_spectrum(SPECTRA["spread"], seed) for seed in range(6)]).reshape(2, 3, 24, 24)
    values, vectors = jacobi_eigh(M)
    assert vectors.shape == M.shape
    torch.testing.assert_close(values, torch.linalg.eigvalsh(M))
    assert jacobi_eigh(M[:0])[0].shape == (0, 3, 24)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("q", [1, 2, 7, 24, 33, 64])
def test_small_matrices_are_decomposed_by_falling_size_of_their_eigenvalues(q: int, device: str) -> None:
    M = torch.randn(5, q, q, generator=torch.Generator().manual_seed(q)).to(device)
    M = torch.cat((M + M.mT, 1e-15 * (M + M.mT), torch.zeros_like(M)))
    values, vectors = eigh_by_size(M)
    size = M.abs().amax((-2, -1), keepdim=True).clamp_min(1e-30)
    eye = torch.eye(q, device=device).expand(M.shape)
    torch.testing.assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT / size, M / size, rtol=0, atol=1e-4)
    torch.testing.assert_close(vectors.mT @ vectors, eye, rtol=0, atol=1e-4)
    assert bool((values.abs().diff(dim=-1) <= 0).all())
    exact = torch.linalg.eigvalsh(M.double()).abs().sort(descending=True).values
    torch.testing.assert_close(values.abs().double() / size[..., 0], exact / size[..., 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_eigenvectors_are_orthonormal_where_rounding_leaves_a_matrix_not_quite_symmetric(device: str) -> None:
    M = torch.randn(20, 16, 16, generator=torch.Generator().manual_seed(0)).to(device)
    _, vectors = eigh_by_size(M + M.mT + 1e-2 * M)
    eye = torch.eye(16, device=device).expand(M.shape)
    torch.testing.assert_close(vectors.mT @ vectors, eye, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shifted_cholesky_bounds_a_singular_gram_matrix(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    C = torch.randn(4, 200, generator=generator).to(dtype)
    C = torch.cat((C, C, torch.zeros(1, 200, dtype=dtype), 1e-10 * C))
    L, norms, _ = shifted_cholesky(C @ C.mT)
    Q = torch.linalg.solve_triangular(norms[:, None] * L, C, upper=False)
    assert torch.linalg.matrix_norm(Q.double(), ord=2) <= 1 + 1e-4
    torch.testing.assert_close(norms[:, None] * L @ Q, C, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_failed_cholesky_still_bounds(dtype: torch.dtype) -> None:
    L, _, _ = shifted_cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=dtype))  # indefinite: no Gram matrix at all
    torch.testing.assert_close(L, 2**0.5 * torch.eye(2, dtype=dtype), rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_vectors_that_rounding_leaves_without_a_length_are_dropped(device: str) -> None:
    G = torch.diag(torch.tensor([4.0, 1e-3, 0.0, 1.0]))
    G[1, 0] = G[0, 1] = 1.0  # longer than the lengths on the diagonal allow
    G[2, 2], G[2, 3], G[3, 2] = -1e-4, 1e-2, 1e-2
    T = whitening(G.expand(3, 4, 4).to(device)).cpu()
    assert T.isfinite().all()
    assert not T[:, :, 2].any()
    assert (T[:, 2:, 2:].mT @ G[2:, 2:] @ T[:, 2:, 2:]).abs().max() <= 1 + 1e-4
