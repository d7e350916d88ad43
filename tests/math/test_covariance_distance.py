"""Distances of covariances against singular values from NumPy, their gradient against finite differences."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.math import ky_fan, ky_fan_cuda
from cpaan.math.covariance import deviation_factor, leading_rows
from cpaan.math.ky_fan import covariance_distance, eigenpairs_of_difference

FEATURES = Path(__file__).parents[2].parent / "shared" / "data" / "features" / "tiny-imagenet-resnet10.npz"


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def factors(N: int, P: int, r: int, D: int, seed: int = 0, ratio: float = 0.8) -> Tensor:
    """Factors with orthogonal rows whose lengths fall."""
    axes: Tensor = torch.linalg.qr(normal(N, P, D, r, seed=seed)).Q.mT
    return axes * (ratio ** torch.arange(r, dtype=torch.float64)).unsqueeze(-1)


def reference(base: Tensor, samples: Tensor, m: int) -> Tensor:
    """Singular values of one difference after the other: sizes of eigenvalues, since a difference is symmetric."""
    found = torch.zeros(len(samples), base.shape[1], dtype=torch.float64)
    for n, G in enumerate(samples.double().numpy()):
        for p in range(base.shape[1]):
            F = base[n if len(base) > 1 else 0, p].double().numpy()
            found[n, p] = np.sort(np.abs(np.linalg.eigvalsh(F.T @ F - G.T @ G)))[-m:].sum()
    return found


SOLVERS = ["exact", "iterative"]
SHAPES = [(5, 4, 40), (5, 4, 12), (1, 1, 4), (8, 3, 8), (3, 9, 8)]


@pytest.mark.parametrize("m", [1, 3, 10])
@pytest.mark.parametrize(("r", "s", "D"), SHAPES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_distances_are_sums_of_singular_values(r: int, s: int, D: int, m: int, shared: bool, solver: str) -> None:
    base, samples = factors(1 if shared else 3, 2, r, D), normal(3, s, D, seed=1) / D**0.5
    found = covariance_distance(base, samples, m, solver)
    torch.testing.assert_close(found, reference(base, samples, m), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("r", "s", "D"), SHAPES)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck(r: int, s: int, D: int, m: int, solver: str) -> None:
    base, samples = factors(2, 2, r, D), (normal(2, s, D, seed=1) / D**0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda G: covariance_distance(base, G, m, solver), (samples,), atol=1e-5)


@pytest.mark.parametrize(("r", "s"), [(100, 8), (8, 100), (100, 100)])
def test_long_factors_give_a_lower_bound_that_is_close_and_a_subgradient(r: int, s: int) -> None:
    D, m = 120, 5
    base, samples = factors(2, 3, r, D), normal(2, s, D, seed=1) * 0.9 ** torch.arange(D) / s**0.5
    exact, found = reference(base, samples, m), covariance_distance(base, samples.requires_grad_(), m, "iterative")
    assert bool((found <= exact * (1 + 1e-9)).all())
    assert float((1 - found.detach() / exact).max()) < 1e-3
    found.sum().backward()
    assert samples.grad is not None
    # Along a line the change of the exact norms is what the gradient says, up to what the bound lacks.
    step = 1e-4 * normal(2, s, D, seed=2)
    change = (reference(base, samples.detach() + step, m) - reference(base, samples.detach() - step, m)).sum() / 2
    assert float(change) == pytest.approx(float((samples.grad * step).sum()), rel=2e-2)


@pytest.mark.parametrize(("r", "s"), [(100, 8), (8, 100)])
def test_a_product_makes_up_for_the_rows_that_are_left_out(r: int, s: int) -> None:
    D = 120
    base = factors(2, 3, r, D, ratio=0.98 if r > s else 0.8)
    samples = normal(2, s, D, seed=1) * (0.9 if r > s else 0.97) ** torch.arange(D) / s**0.5
    assert float((1 - covariance_distance(base, samples, 5, "iterative") / reference(base, samples, 5)).max()) < 3e-5


@pytest.mark.parametrize(
    ("r", "s", "D", "looked_at"),
    [
        (5, 4, 90, 9),
        (70, 4, 90, 64),
        (30, 34, 90, 64),
        (60, 40, 90, 64),
        (9, 40, 90, 49),
        (9, 50, 90, 41),
        (70, 50, 90, 64),
        (9, 50, 12, 21),
    ],
)
def test_few_rows_are_looked_at_first_however_long_the_factors(
    r: int, s: int, D: int, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done with a Gram matrix grows with the cube of its size, and kernels hold no more than 64 rows."""
    sizes = []

    def recorded(gram: Tensor, positive: int, count: int) -> Tensor:
        sizes.append(gram.shape[-1])
        return leading_combinations(gram, positive, count)

    leading_combinations = ky_fan_cuda.leading_combinations
    monkeypatch.setattr(ky_fan_cuda, "leading_combinations", recorded)
    base, samples = normal(2, 3, r, D).float(), normal(2, s, D, seed=1).float()
    assert covariance_distance(base, samples, 3, "iterative").dtype == torch.float32
    assert sizes == [looked_at]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("s", [7, 30])
def test_products_with_the_difference_have_all_digits_on_a_processor(s: int, shared: bool, dtype: torch.dtype) -> None:
    base, samples = normal(1 if shared else 2, 3, 5, 20), normal(2, s, 20, seed=1)
    rows = normal(2, 3, 4, 20, seed=2)
    M = base.mT @ base - (samples.mT @ samples).unsqueeze(1)
    difference = ky_fan_cuda._Difference(base.to(dtype), samples.to(dtype))
    rounding = 300 * torch.finfo(dtype).eps
    torch.testing.assert_close(difference.times(rows.to(dtype)).double(), -rows @ M, rtol=0, atol=rounding)
    torch.testing.assert_close(
        difference.among(rows.to(dtype)).double(), rows @ M @ rows.mT, rtol=0, atol=10 * rounding
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_many_pairs_are_those_of_one_novel_class_after_the_other(shared: bool, solver: str) -> None:
    base, samples = factors(1 if shared else 3, 150, 6, 20), normal(3, 5, 20, seed=1)
    bases = base.expand(3, -1, -1, -1).split(1)
    expected = [covariance_distance(*part, 4, solver) for part in zip(bases, samples.split(1), strict=True)]
    torch.testing.assert_close(covariance_distance(base, samples, 4, solver), torch.cat(expected), rtol=1e-9, atol=0)


@pytest.mark.parametrize("D", [8, 60])
def test_no_gradient_flows_to_the_base(D: int) -> None:
    base = factors(1, 2, 4, D).requires_grad_()
    samples = normal(1, 3, D).requires_grad_()
    covariance_distance(base, samples, 2).sum().backward()
    assert base.grad is None
    assert samples.grad is not None


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("D", [30, 300])
@pytest.mark.parametrize("solver", SOLVERS)
def test_units_do_not_matter(scale: float, D: int, solver: str) -> None:
    base, samples = factors(2, 2, 20, D).float(), normal(2, 10, D, seed=1).float() / D**0.5
    expected = covariance_distance(base, samples, 4, solver)
    found = covariance_distance(base * scale, samples * scale, 4, solver) / scale / scale
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("D", [30, 300])
@pytest.mark.parametrize("solver", SOLVERS)
def test_vanishing_equal_and_dependent_factors(D: int, dtype: torch.dtype, solver: str) -> None:
    base = factors(1, 1, 20, D).to(dtype)
    zero = torch.zeros(1, 10, D, dtype=dtype)
    cases = {
        "nothing made": (base, zero),
        "nothing known": (torch.zeros_like(base), base[0, :, :10]),
        "neither": (torch.zeros_like(base), zero),
        "made along known axes": (base, base[0, :, :10] * 0.5),
        "equal": (base[:, :, :10], base[0, :, :10]),
        "one example again and again": (base, normal(1, 1, D).to(dtype).expand(1, 10, D)),
        "padded with zeros": (torch.nn.functional.pad(base, (0, 0, 0, 6)), normal(1, 10, D).to(dtype)),
    }
    for name, (F, G) in cases.items():
        leaf = G.clone().requires_grad_()
        found = covariance_distance(F, leaf, 5, solver)
        found.sum().backward()
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all()), name
        size = float(F.square().sum() + G.square().sum())
        error = float((found.detach().double() - reference(F, G, 5)).abs().max())
        assert error <= 1e-4 * float(found.detach().max()) + 2e-5 * size, name


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_that_are_rounding_do_not_count(solver: str) -> None:
    # Rotated factors of a class with few examples end in rows of rounding errors, which are orthogonal to nothing.
    D = 300
    base = factors(1, 1, 20, D).float()
    noise = 1e-8 * (base[:, :, :6] + 0.1 * normal(1, 1, 6, D, seed=3).float())
    samples = (normal(1, 10, 20, seed=1).float() @ base[0]) / 3  # among the axes of the base
    found = covariance_distance(torch.cat((base, noise), dim=-2), samples, 5, solver)
    torch.testing.assert_close(found.double(), reference(base, samples, 5), rtol=1e-4, atol=0)


@cache
def real_classes(rank: int, examples: int) -> tuple[Tensor, Tensor]:
    if not FEATURES.exists():
        pytest.skip(f"needs {FEATURES.name}")
    with np.load(FEATURES) as bank:
        features, labels = torch.tensor(bank["features"]).float(), torch.tensor(bank["labels"])
    classes = [features[labels == label] for label in range(24)]
    base = torch.stack([leading_rows(deviation_factor(x), rank) for x in classes[:20]]).reshape(5, 4, rank, -1)
    return base, torch.stack([deviation_factor(x[:examples]) for x in [*classes[20:], classes[0]]])


@pytest.mark.parametrize(("rank", "examples"), [(64, 40), (64, 300), (300, 40), (300, 300)])
@pytest.mark.parametrize("size", [0.3, 1.0])
def test_on_real_features_the_value_is_within_a_thousandth_and_the_subgradient_feasible(
    rank: int, examples: int, size: float
) -> None:
    base, samples = real_classes(rank, examples)
    samples = size * samples
    expected = reference(base, samples, 10)
    assert float((covariance_distance(base, samples, 10, "iterative") / expected - 1).abs().max()) < 1e-3
    theta, U = (found.double() for found in eigenpairs_of_difference(base, samples, 10, "iterative"))
    U = U.mT
    S = (U * theta.sign().unsqueeze(-2)) @ U.mT  # of rank 10 at most
    M = base.double().mT @ base.double() - (samples.double().mT @ samples.double()).unsqueeze(1)
    assert float(torch.linalg.eigvalsh(S).abs().max()) < 1 + 1e-4
    assert bool(((S * M).sum((-2, -1)) > 0.999 * expected).all())


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("s", [2, 12, 67])
@pytest.mark.parametrize("D", [1, 2, 3, 6])
def test_more_rows_than_features_in_single_precision(D: int, s: int, device: str, solver: str) -> None:
    """Rows depend on each other then, and made examples that hardly vary leave Gram matrices of rounding alone."""
    length = 10.0 ** -torch.arange(40).remainder(4)
    base, samples = factors(1, 5, D, D).float(), (normal(40, s, D, seed=1) * length.view(-1, 1, 1) / s**0.5).float()
    found = covariance_distance(base.to(device), samples.to(device), 10, solver).cpu().double()
    exact = reference(base, samples, 10)
    assert float(((found - exact).abs() / exact.clamp_min(1e-2)).max()) < 1e-3


def test_the_exact_solver_is_exact_and_so_is_its_gradient() -> None:
    base, samples = factors(3, 4, 20, 60, ratio=0.9).float(), normal(3, 10, 60, seed=1).float() / 60**0.5
    matrices = base.double().mT @ base.double() - (samples.double().mT @ samples.double()).unsqueeze(1)
    values, vectors = torch.linalg.eigh(matrices)
    order = values.abs().argsort(descending=True)[..., :5]
    U = vectors.gather(-1, order.unsqueeze(-2).expand(-1, -1, 60, -1))
    signs = values.gather(-1, order).sign().unsqueeze(-2)
    expected = -2 * samples.double() @ ((U * signs) @ U.mT).sum(1)
    leaf = samples.clone().requires_grad_()
    found = covariance_distance(base, leaf, 5, "exact")
    found.sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(found.double(), reference(base, samples, 5), rtol=1e-6, atol=0)
    assert float((leaf.grad - expected).norm() / expected.norm()) < 5e-6


@pytest.mark.parametrize(
    ("r", "s", "D", "solver"), [(20, 12, 99, "exact"), (60, 40, 32, "exact"), (20, 13, 99, "iterative")]
)
def test_a_processor_decomposes_small_differences_and_iterates_on_large_ones(
    r: int, s: int, D: int, solver: str
) -> None:
    base, samples = normal(2, 3, r, D).float(), normal(2, s, D, seed=1).float()
    assert ky_fan.SMALL == 32
    assert torch.equal(covariance_distance(base, samples, 3), covariance_distance(base, samples, 3, solver))


@pytest.mark.parametrize("size", [1e-18, 1e-15, 1e-12, 1e-10, 1e-8, 1.0, 1e6])
def test_examples_that_are_all_alike_can_be_decomposed(size: float) -> None:
    """LAPACK fails on some of the matrices that such examples leave."""
    for seed in range(30):
        samples = (size * normal(1, 1, 30, seed=seed).float()).expand(1, 15, 30)
        for base in (torch.zeros(1, 1, 0, 30), torch.zeros(1, 1, 3, 30)):
            found = covariance_distance(base, samples, 10, "exact")
            torch.testing.assert_close(found[0, 0], samples.square().sum(), rtol=1e-4, atol=1e-36)


def test_tiny_rows_that_depend_on_each_other_stay_finite() -> None:
    """What rounding leaves of constant features: squares of its rounding are below the smallest float."""
    generator = torch.Generator().manual_seed(0)
    for size in (1e-9, 1e-12, 1e-15):
        rows = (
            size * torch.randn(3, 1, 30, generator=generator) * (1 + 1e-7 * torch.randn(3, 15, 1, generator=generator))
        )
        samples = rows.requires_grad_()
        covariance_distance(torch.zeros(1, 3, 3, 30), samples, 10).sum().backward()
        assert samples.grad is not None
        assert samples.grad.isfinite().all()
