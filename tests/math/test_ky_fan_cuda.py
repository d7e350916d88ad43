"""The solver of CUDA devices against LAPACK, on spectra that break careless solvers; kernels run on a GPU alone."""

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from cpaan.math import ky_fan_cuda
from cpaan.math.ky_fan import signs_beyond_rounding
from cpaan.math.ky_fan_cuda import (
    eigh_by_size,
    fast_products,
    fixed_block,
    full_precision,
    is_recent_gpu,
    jacobi_eigh,
    kernels_for,
    leading_combinations,
    leading_eigenvectors,
    shifted_cholesky,
    whitening,
)

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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_leading_eigenvalues_of_both_signs(dtype: torch.dtype, scale: float) -> None:
    spectrum = torch.tensor([(-1.0) ** i * 0.85**i for i in range(120)], dtype=torch.float64)
    M = (scale * with_spectrum(spectrum)).to(dtype)
    values, vectors = leading_eigenvectors(M, 8, iterations=6)
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
    values, vectors = leading_eigenvectors(M, 10, iterations=iterations)
    assert torch.isfinite(values).all()
    assert torch.linalg.matrix_norm(vectors.double(), ord=2) <= 1 + 1e-4
    if iterations >= 3:
        torch.testing.assert_close(
            values.abs().sum().double(), eigenvalues.abs().topk(10).values.sum(), rtol=1e-4, atol=0
        )


def test_whole_space_is_exact_without_iterations() -> None:
    M = with_spectrum(torch.linspace(-3, 2, 12))
    values, vectors = leading_eigenvectors(M, 30, iterations=0)
    assert vectors.shape == (12, 12)
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
    values, _ = leading_eigenvectors(M, 6, iterations=iterations)
    torch.testing.assert_close(values.abs(), expected, rtol=1e-9, atol=0)


def test_signs_are_told_from_rounding_in_each_matrix_by_itself() -> None:
    theta = torch.tensor([[[1.0, -1e-3], [1e-12, -1e-14]], [[0.0, 0.0], [-3.0, 1e-9]]])
    expected = torch.tensor([[[1.0, -1.0], [1.0, -1.0]], [[0.0, 0.0], [-1.0, 0.0]]])
    assert torch.equal(signs_beyond_rounding(theta), expected)


def test_batches_agree_with_single_matrices() -> None:
    M = torch.stack([with_spectrum(0.8 ** torch.arange(60), seed) for seed in range(4)]).reshape(2, 2, 60, 60)
    values, vectors = leading_eigenvectors(M, 5)
    assert values.shape == (2, 2, 5)
    assert vectors.shape == (2, 2, 60, 5)
    alone, _ = leading_eigenvectors(M[1, 0], 5)
    torch.testing.assert_close(values[1, 0], alone)


def test_same_bits_twice_and_global_generator_untouched() -> None:
    M = with_spectrum(0.9 ** torch.arange(100)).float()
    before = torch.get_rng_state()
    first = leading_eigenvectors(M, 5)
    torch.rand(3)
    torch.set_rng_state(before)
    second = leading_eigenvectors(M, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


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


@pytest.mark.parametrize(
    ("cuda", "capability", "recent"),
    [("12.4", (8, 0), True), ("12.4", (9, 0), True), ("12.4", (7, 5), False), (None, (9, 0), False)],
)
def test_a_gpu_is_recent_from_ampere_on_unless_it_is_no_nvidia_gpu(
    cuda: str | None, capability: tuple[int, int], recent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = torch.device("cuda", 1)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {second: capability}.__getitem__)
    assert is_recent_gpu(second) is recent


def on_gpu(size: int, dtype: torch.dtype = torch.float32, is_cuda: bool = True) -> Tensor:
    """Give all that is asked of matrices before they are looked at."""
    shape = torch.Size((3, 70, size, size))
    return cast("Tensor", SimpleNamespace(shape=shape, dtype=dtype, is_cuda=is_cuda, device=torch.device("cuda", 1)))


def test_kernels_are_for_matrices_of_single_precision_on_a_gpu_that_are_not_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels, asked = Mock(LARGEST=64), []

    def find_kernels(device: torch.device) -> Mock:
        asked.append(device)
        return kernels

    monkeypatch.setattr(ky_fan_cuda, "find_kernels", find_kernels)
    assert kernels_for(on_gpu(64)) is kernels
    assert kernels_for(on_gpu(65)) is None
    assert kernels_for(on_gpu(64, torch.float64)) is None
    assert kernels_for(on_gpu(64, is_cuda=False)) is None
    assert set(asked) == {torch.device("cuda", 1)}
    monkeypatch.setattr(ky_fan_cuda, "find_kernels", lambda device: None)  # no Triton
    assert kernels_for(on_gpu(64)) is None


def test_kernels_are_imported_for_recent_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    find_kernels, imported = ky_fan_cuda.find_kernels.__wrapped__, Mock()
    monkeypatch.setattr(ky_fan_cuda, "import_module", imported)
    monkeypatch.setattr(ky_fan_cuda, "is_recent_gpu", lambda device: device.type == "cuda")
    assert find_kernels(torch.device("cpu")) is None
    imported.assert_not_called()
    assert find_kernels(torch.device("cuda")) is imported.return_value
    assert find_spec(imported.call_args.args[0])
    monkeypatch.setattr(ky_fan_cuda, "import_module", Mock(side_effect=ImportError))  # no Triton
    assert find_kernels(torch.device("cuda")) is None


def test_kernels_do_the_work_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Mock(SMALL=32)
    monkeypatch.setattr(ky_fan_cuda, "kernels_for", lambda matrices: kernels)
    small, larger = torch.eye(32).repeat(2, 40, 1, 1), torch.eye(33)
    assert eigh_by_size(small) is kernels.eigh_by_size.return_value
    assert torch.equal(eigh_by_size(larger)[0], torch.ones(33))
    kernels.eigh_by_size.assert_called_once_with(small)
    assert whitening(small) is kernels.whitening.return_value
    kernels.whitening.assert_called_once_with(small, shifted_cholesky(small)[2])


def test_kernels_begin_combinations_where_a_processor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, rows = Mock(), torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    gram, begun = rows @ rows.mT, leading_combinations(rows @ rows.mT, 12, 8, steps=0)
    monkeypatch.setattr(ky_fan_cuda, "kernels_for", lambda matrices: kernels)
    assert leading_combinations(gram, 12, 8, steps=3) is kernels.leading_combinations.return_value
    given, start, *others = kernels.leading_combinations.call_args.args
    assert given is gram
    rounding = ky_fan_cuda.ROUNDINGS * torch.finfo(torch.float32).eps
    assert others == [12, 3, shifted_cholesky(torch.eye(8))[2], rounding]
    found, expected = (torch.linalg.qr(rows.mT @ combination).Q for combination in (start, begun))
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT, rtol=0, atol=1e-4)


@pytest.fixture(params=[False, True])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    usual = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = usual


def test_precision_is_as_asked_inside_and_as_before_outside(before: bool) -> None:
    matmul = torch.backends.cuda.matmul
    with fast_products():
        assert matmul.allow_tf32 is True
        with full_precision():
            assert matmul.allow_tf32 is False
        assert matmul.allow_tf32 is True
    assert matmul.allow_tf32 is before
    with pytest.raises(KeyError), fast_products():
        raise KeyError
    assert matmul.allow_tf32 is before
