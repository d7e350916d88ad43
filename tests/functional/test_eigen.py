"""The eigen solvers against LAPACK, on spectra that break careless ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.functional.eigen import (
    eigh_by_size,
    jacobi_eigh,
    leading_combinations,
    leading_eigenvectors,
    shifted_cholesky,
)

DTYPES = [torch.float64, torch.float32]


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """Return a symmetric matrix that has these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    basis: Tensor = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)).Q
    return (basis * values.double()) @ basis.mT


def products(M: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda block: M @ block


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_leading_eigenvalues_of_both_signs(dtype: torch.dtype, scale: float) -> None:
    spectrum = torch.tensor([(-1.0) ** i * 0.85**i for i in range(120)], dtype=torch.float64)
    M = (scale * with_spectrum(spectrum)).to(dtype)
    values, vectors = leading_eigenvectors(products(M), 120, (), 8, dtype=dtype, iterations=6)
    torch.testing.assert_close(values / scale, spectrum[:8].to(dtype), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(8, dtype=dtype), rtol=0, atol=1e-4)
    assert (M @ vectors / scale - vectors * values / scale).abs().max() < 1e-2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("iterations", [0, 1, 3, 40])
@pytest.mark.parametrize("spectrum", [[], [4.0], [1.0] * 5 + [-1.0] * 5, [1e6, 1e-6], [3.0] * 200])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_every_rank_stays_finite_and_feasible(
    spectrum: list[float], iterations: int, dtype: torch.dtype, scale: float
) -> None:
    eigenvalues = scale * torch.tensor(spectrum + [0.0] * (200 - len(spectrum)), dtype=torch.float64)
    M = with_spectrum(eigenvalues).to(dtype)
    values, vectors = leading_eigenvectors(products(M), 200, (), 10, dtype=dtype, iterations=iterations)
    assert torch.isfinite(values).all()
    assert torch.linalg.matrix_norm(vectors.double(), ord=2) <= 1 + 1e-4
    if iterations >= 3:
        torch.testing.assert_close(
            values.abs().sum().double(), eigenvalues.abs().topk(10).values.sum(), rtol=1e-4, atol=0
        )


def test_whole_space_is_exact_without_iterations() -> None:
    M = with_spectrum(torch.linspace(-3, 2, 12))
    values, vectors = leading_eigenvectors(products(M), 12, (), 30, dtype=torch.float64, iterations=0)
    assert vectors.shape == (12, 12)
    torch.testing.assert_close(values.sort().values, torch.linspace(-3, 2, 12).double())


def test_start_at_the_eigenvectors_needs_no_iterations() -> None:
    M = with_spectrum(torch.linspace(-1, 1, 150))
    _, vectors = torch.linalg.eigh(M)
    start = torch.cat((vectors[:, :3], vectors[:, -3:]), dim=-1)
    warm, _ = leading_eigenvectors(products(M), 150, (), 6, dtype=torch.float64, iterations=1, start=start)
    cold, _ = leading_eigenvectors(products(M), 150, (), 6, dtype=torch.float64, iterations=1)
    exact = torch.linspace(-1, 1, 150).abs().topk(6).values.sum()
    assert abs(warm.abs().sum() - exact) < 1e-3
    assert abs(cold.abs().sum() - exact) > 1e-2


@pytest.mark.parametrize("start", [torch.zeros(150, 20), torch.ones(150, 30), torch.eye(150)[:, :2]])
def test_useless_start_is_recovered_from(start: Tensor) -> None:
    spectrum = torch.tensor([0.8**i for i in range(150)])
    M = with_spectrum(spectrum)
    values, _ = leading_eigenvectors(products(M), 150, (), 6, dtype=torch.float64, iterations=6, start=start)
    torch.testing.assert_close(values, spectrum[:6].double(), rtol=1e-4, atol=0)


def test_batches_agree_with_single_matrices() -> None:
    M = torch.stack([with_spectrum(0.8 ** torch.arange(60), seed) for seed in range(4)]).reshape(2, 2, 60, 60)
    values, vectors = leading_eigenvectors(products(M), 60, (2, 2), 5, dtype=torch.float64)
    assert values.shape == (2, 2, 5)
    assert vectors.shape == (2, 2, 60, 5)
    alone, _ = leading_eigenvectors(products(M[1, 0]), 60, (), 5, dtype=torch.float64)
    torch.testing.assert_close(values[1, 0], alone)


def test_same_bits_twice_and_global_generator_untouched() -> None:
    M = with_spectrum(0.9 ** torch.arange(100)).float()
    before = torch.get_rng_state()
    first = leading_eigenvectors(products(M), 100, (), 5, dtype=torch.float32)
    torch.rand(3)
    torch.set_rng_state(before)
    second = leading_eigenvectors(products(M), 100, (), 5, dtype=torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("wrong", [{"m": 0}, {"iterations": -1}, {"oversampling": -1}, {"start": torch.ones(7, 2)}])
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    settings: dict[str, object] = {"m": 2, "dtype": torch.float32} | wrong
    with pytest.raises(InputError, match=next(iter(wrong))):
        leading_eigenvectors(products(torch.eye(5)), 5, (), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shifted_cholesky_bounds_a_singular_gram_matrix(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    C = torch.randn(4, 200, generator=generator).to(dtype)
    C = torch.cat((C, C, torch.zeros(1, 200, dtype=dtype), 1e-10 * C))
    L, norms, _ = shifted_cholesky(C @ C.mT)
    Q = torch.linalg.solve_triangular(norms[:, None] * L, C, upper=False)
    assert torch.linalg.matrix_norm(Q.double(), ord=2) <= 1 + 1e-4
    torch.testing.assert_close(norms[:, None] * L @ Q, C, rtol=1e-3, atol=1e-5)


def test_failed_cholesky_still_bounds() -> None:
    L, _, _ = shifted_cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))  # indefinite: no Gram matrix at all
    torch.testing.assert_close(L, 2**0.5 * torch.eye(2))


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
