"""Leading eigenpairs against LAPACK, on spectra that break careless solvers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.math.ky_fan_cuda import fixed_block, leading_eigenvectors, signs_beyond_rounding

DTYPES = [torch.float64, torch.float32]


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """Return a symmetric matrix that has these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    basis: Tensor = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)).Q
    return (basis * values.double()) @ basis.mT


def products(M: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda block: M @ block


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


def test_without_oversampling_the_whole_space_is_as_good() -> None:
    M = with_spectrum(torch.linspace(-3, 2, 12))
    values, _ = leading_eigenvectors(products(M), 12, (), 12, dtype=torch.float64, oversampling=0)
    torch.testing.assert_close(values.sort().values, torch.linspace(-3, 2, 12).double())


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_steps_are_a_product_with_the_square_and_then_chebyshev_filters(iterations: int) -> None:
    M = with_spectrum(torch.linspace(-1, 1, 80))
    Q = fixed_block(80, 20, torch.float64, torch.device("cpu"))
    for iteration in range(iterations):
        Z = M @ Q
        c = Z.norm(dim=0).min() if iteration else 0.0
        Q = torch.linalg.qr(M @ Z - c**2 / 2 * Q).Q
    expected = torch.linalg.eigvalsh(Q.mT @ M @ Q).abs().sort(descending=True).values[:6]
    values, _ = leading_eigenvectors(products(M), 80, (), 6, dtype=torch.float64, iterations=iterations)
    torch.testing.assert_close(values.abs(), expected, rtol=1e-9, atol=0)


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


@pytest.mark.parametrize("start", [torch.zeros(150, 20), torch.ones(150, 30) / 12, torch.eye(150)[:, [0, 0, 1]]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_start_is_made_a_whole_orthonormal_block(start: Tensor, dtype: torch.dtype) -> None:
    identity = torch.eye(150, dtype=dtype)
    values, _ = leading_eigenvectors(products(identity), 150, (), 20, dtype=dtype, iterations=0, start=start.double())
    assert values.dtype == dtype
    torch.testing.assert_close(values, torch.ones(20, dtype=dtype), rtol=0, atol=0.1)


def test_every_matrix_of_a_batch_can_have_its_own_start() -> None:
    M = torch.stack([with_spectrum(torch.linspace(-1, 1, 60), seed) for seed in range(4)]).reshape(2, 2, 60, 60)
    vectors = torch.linalg.eigh(M).eigenvectors
    start = torch.cat((vectors[..., :3], vectors[..., -3:]), dim=-1)
    found, _ = leading_eigenvectors(products(M), 60, (2, 2), 6, dtype=torch.float64, iterations=1, start=start)
    for i in range(2):
        for j in range(2):
            alone, _ = leading_eigenvectors(
                products(M[i, j]), 60, (), 6, dtype=torch.float64, iterations=1, start=start[i, j]
            )
            torch.testing.assert_close(found[i, j].abs(), alone.abs())
    assert (found.abs().sum(-1) - torch.linspace(-1, 1, 60).abs().topk(6).values.sum()).abs().max() < 1e-3


@pytest.mark.parametrize("start", [None, torch.eye(30)[:, :4], torch.eye(30)[:, :4].expand(2, 3, 30, 4)])
def test_the_operator_is_given_a_block_for_each_of_its_matrices(start: Tensor | None) -> None:
    shapes = set()

    def doubled(block: Tensor) -> Tensor:
        shapes.add(tuple(block.shape))
        return 2 * block

    leading_eigenvectors(doubled, 30, (2, 3), 4, dtype=torch.float64, oversampling=5, start=start)
    assert shapes == {(2, 3, 30, 9)}


def test_signs_are_told_from_rounding_in_each_matrix_by_itself() -> None:
    theta = torch.tensor([[[1.0, -1e-3], [1e-12, -1e-14]], [[0.0, 0.0], [-3.0, 1e-9]]])
    expected = torch.tensor([[[1.0, -1.0], [1.0, -1.0]], [[0.0, 0.0], [-1.0, 0.0]]])
    assert torch.equal(signs_beyond_rounding(theta), expected)


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
