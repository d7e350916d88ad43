"""The Ky Fan norm against singular values from NumPy, its sub-gradient against the defining inequality."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cpaan.errors import InputError
from cpaan.math import ky_fan
from cpaan.math.ky_fan import ky_fan_norm

FEATURES = Path(__file__).parents[2].parent / "shared" / "data" / "features" / "tiny-imagenet-resnet10.npz"
SOLVERS = ["exact", "iterative", "auto"]


def reference(matrices: Tensor, m: int) -> Tensor:
    """Sum singular values, one matrix after the other, in double precision."""
    array = matrices.detach().double().numpy()
    flat = array.reshape(-1, *array.shape[-2:])
    sums = [np.linalg.svd((M + M.T) / 2, compute_uv=False)[:m].sum() for M in flat]
    return torch.tensor(sums, dtype=torch.float64).reshape(matrices.shape[:-2])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def decaying(D: int, seed: int = 0, ratio: float = 0.6) -> Tensor:
    """Return a symmetric matrix with eigenvalues ±ratio^i: the iteration converges to the last digit."""
    basis: Tensor = torch.linalg.qr(normal(D, D, seed=seed)).Q
    return (basis * (-ratio) ** torch.arange(D)) @ basis.mT


def gradient(M: Tensor, m: int, solver: str) -> Tensor:
    leaf = M.detach().clone().requires_grad_()
    ky_fan_norm(leaf, m, solver).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def inner(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("m", [1, 3, 10, 60, 100])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (0,), (2, 0)])
def test_value_agrees_with_singular_values(shape: tuple[int, ...], m: int, solver: str) -> None:
    M = torch.stack([decaying(60, seed) for seed in range(6)])[: int(np.prod(shape))].reshape(*shape, 60, 60)
    torch.testing.assert_close(ky_fan_norm(M, m, solver), reference(M, m), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("D", "solver"), [(30, "exact"), (150, "iterative")])
def test_small_matrices_are_decomposed_and_large_ones_iterated_on_a_processor(D: int, solver: str) -> None:
    M = normal(3, D, D, dtype=torch.float32)
    assert not torch.equal(ky_fan_norm(M, 5, "exact"), ky_fan_norm(M, 5, "iterative"))
    assert torch.equal(ky_fan_norm(M, 5), ky_fan_norm(M, 5, solver))


def test_a_gpu_decomposes_only_when_told_to_because_it_would_wait_for_the_host() -> None:
    gpu = torch.device("cuda")
    assert not ky_fan._is_exact("auto", 8, gpu)
    assert ky_fan._is_exact("exact", 8, gpu)


@pytest.mark.parametrize("solver", ["exact", "auto"])
def test_input_is_symmetrised(solver: str) -> None:
    M = normal(3, 7, 7)
    torch.testing.assert_close(ky_fan_norm(M, 3, solver), reference(M, 3))
    S = gradient(M, 3, solver)
    torch.testing.assert_close(S, S.mT)


@pytest.mark.parametrize("solver", ["exact", "iterative"])
@pytest.mark.parametrize("m", [1, 4])
def test_gradcheck(solver: str, m: int) -> None:
    M = torch.stack([decaying(26, seed) for seed in range(2)]).requires_grad_()
    assert torch.autograd.gradcheck(lambda A: ky_fan_norm(A, m, solver), (M,))


SPECTRA = {"zero": [0.0] * 40, "equal": [2.0] * 40, "rank two": [3.0, -3.0] + [0.0] * 38}
SPECTRA["few of both signs"] = [1.0] * 9 + [-1.0] * 9 + [1e-3] * 22
SPECTRA["many of both signs"] = [1.0] * 20 + [-1.0] * 20


@pytest.mark.parametrize(
    ("solver", "name"),
    [("exact", name) for name in SPECTRA] + [("iterative", name) for name in list(SPECTRA)[:4]],
)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=10, deadline=None)
def test_subgradient_inequality(solver: str, name: str, seed: int, size: float) -> None:
    basis: Tensor = torch.linalg.qr(normal(40, 40, seed=seed)).Q
    X = (basis * torch.tensor(SPECTRA[name], dtype=torch.float64)) @ basis.mT
    noise = size * normal(40, 40, seed=seed + 1)
    Y = X + noise + noise.mT
    S = gradient(X, 5, solver)
    torch.testing.assert_close(inner(S, X), reference(X, 5), rtol=1e-9, atol=1e-9)
    assert reference(Y, 5) >= reference(X, 5) + inner(S, Y - X) - 1e-9 * (1 + size)


def test_iterative_falls_short_where_both_signs_fill_the_space() -> None:
    basis: Tensor = torch.linalg.qr(normal(40, 40)).Q
    X = (basis * torch.tensor([1.0] * 20 + [-1.0] * 20)) @ basis.mT
    value, S = ky_fan_norm(X, 5, "iterative"), gradient(X, 5, "iterative")
    assert 4.5 <= value <= 5
    assert torch.linalg.matrix_norm(S, ord=2) <= 1 + 1e-9
    torch.testing.assert_close(inner(S, X), value)  # a feasible S, so that f(Y) ≥ ⟨S, Y⟩ for every Y


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_matrix(solver: str, dtype: torch.dtype) -> None:
    M = torch.zeros(2, 150, 150, dtype=dtype)
    assert torch.equal(ky_fan_norm(M, 10, solver), torch.zeros(2, dtype=dtype))
    assert torch.equal(gradient(M, 10, solver), torch.zeros_like(M))


@pytest.mark.parametrize("solver", SOLVERS)
def test_m_above_the_rank(solver: str) -> None:
    factor = normal(3, 200, seed=3, dtype=torch.float32)
    M = factor.mT @ factor
    torch.testing.assert_close(ky_fan_norm(M, 10, solver).double(), reference(M, 10), rtol=1e-4, atol=0)
    S = gradient(M, 10, solver).double()
    assert torch.linalg.matrix_norm(S, ord=2) <= 1 + 1e-4
    assert torch.linalg.matrix_rank(S, atol=1e-4) == 3


@pytest.mark.parametrize("solver", SOLVERS)
@given(seed=st.integers(0, 10_000), factor=st.floats(-1e3, 1e3))
@settings(max_examples=10, deadline=None)
def test_it_is_a_norm_that_ignores_the_basis(solver: str, seed: int, factor: float) -> None:
    A, B = decaying(50, seed, ratio=0.3), decaying(50, seed + 1, ratio=0.3)
    basis: Tensor = torch.linalg.qr(normal(50, 50, seed=seed + 2)).Q
    a, b = ky_fan_norm(A, 4, solver), ky_fan_norm(B, 4, solver)
    torch.testing.assert_close(ky_fan_norm(factor * A, 4, solver), abs(factor) * a, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(ky_fan_norm(basis @ A @ basis.mT, 4, solver), a, rtol=1e-6, atol=0)
    assert ky_fan_norm(A + B, 4, solver) <= (a + b) * (1 + 1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_extreme_scales(solver: str, scale: float) -> None:
    M = decaying(120).float()
    ones = gradient(M, 5, solver)
    torch.testing.assert_close(ky_fan_norm(scale * M, 5, solver) / scale, ky_fan_norm(M, 5, solver))
    torch.testing.assert_close(gradient(scale * M, 5, solver), ones, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    M = decaying(30).to(dtype)
    value = ky_fan_norm(M, 3)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), reference(M, 3), rtol=1e-5, atol=0)
    assert gradient(M, 3, "auto").dtype == dtype


@pytest.mark.parametrize("solver", SOLVERS)
def test_same_bits_twice(solver: str) -> None:
    M = normal(3, 130, 130, dtype=torch.float32)
    before = torch.get_rng_state()
    assert torch.equal(ky_fan_norm(M, 10, solver), ky_fan_norm(M, 10, solver))
    assert torch.equal(gradient(M, 10, solver), gradient(M, 10, solver))
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_input_is_named() -> None:
    M = torch.eye(3)
    for m in (0, -1, 2.0, True, None):
        with pytest.raises(InputError, match="integer of 1 or more"):
            ky_fan_norm(M, m)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'auto', 'exact', 'iterative'"):
        ky_fan_norm(M, 1, "fast")
    for shape in ((3,), (3, 4), (0, 0)):
        with pytest.raises(InputError, match="D, D"):
            ky_fan_norm(torch.zeros(shape), 1)


@pytest.fixture(scope="module")
def differences() -> Tensor:
    """Return Σ_x of all examples of a class less the covariance of 40 examples of another."""
    if not FEATURES.exists():
        pytest.skip(f"{FEATURES.name} is not there")
    with np.load(FEATURES) as stored:
        train = ~stored["is_test"]
        X, y = torch.from_numpy(stored["features"][train].astype(np.float64)), stored["labels"][train]
    classes = np.unique(y)[:80]
    groups = [X[torch.from_numpy(y == label)] for label in classes]

    def covariance(group: Tensor) -> Tensor:
        return torch.cov(group.mT, correction=0)

    pairs = [covariance(a) - covariance(b[:40]) for a, b in zip(groups, groups[1:] + groups[:1], strict=True)]
    return torch.stack(pairs).float()


def test_iterative_on_covariance_differences(differences: Tensor) -> None:
    exact = ky_fan_norm(differences.double(), 10, "exact")
    value = ky_fan_norm(differences, 10, "iterative").double()
    assert ((value - exact).abs() / exact).max() < 2e-4  # asked for: 1e-3
    S = gradient(differences, 10, "iterative").double()
    spectrum = torch.linalg.eigvalsh(S).abs()
    assert len(differences) >= 80
    assert spectrum.max() <= 1 + 1e-4
    assert ((spectrum > 1e-5).sum(-1) <= 10).all()
    assert (inner(S, differences.double()) >= 0.9998 * exact).all()  # asked for: 0.999
