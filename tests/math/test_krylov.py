"""Block Lanczos against full decompositions."""

import pytest
import torch
from torch import Tensor

from cpaan.math.krylov import block_width, krylov_eigenvectors

DIMENSION = 300


def rotated(values: Tensor) -> Tensor:
    """A symmetric matrix with given eigenvalues, in directions that favour no axis."""
    generator = torch.Generator().manual_seed(1)
    axes = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    matrix: Tensor = axes * values @ axes.mT
    return matrix


def flat() -> Tensor:
    """The eigenvalues of noise, which lie close together, and a few of the other sign beside them."""
    values = torch.linspace(1.0, 0.0, DIMENSION).double()
    values[::60] *= -1.1
    return values


SPECTRA = {
    "falling": 0.9 ** torch.arange(DIMENSION).double() * torch.tensor([1.0, -1.0]).repeat(DIMENSION // 2),
    "flat": flat(),
    "dwarfed": torch.tensor([1e4, *[1.0] * 4, *[-0.5] * 10, *[0.0] * (DIMENSION - 15)]).double(),
    "one value as often as wanted": torch.tensor([2.0] * 6 + [-2.0] * 4 + [1.0] * (DIMENSION - 10)).double(),
    "low rank": torch.tensor([3.0, -2.0, 1.0] + [0.0] * (DIMENSION - 3)).double(),
    "zero": torch.zeros(DIMENSION).double(),
}


@pytest.mark.parametrize("m", [1, 10])
@pytest.mark.parametrize("name", SPECTRA)
def test_leading_eigenvectors_carry_the_largest_eigenvalues(name: str, m: int) -> None:
    matrix = rotated(SPECTRA[name])
    single = matrix.float()
    vectors = krylov_eigenvectors(lambda rows: rows @ single, DIMENSION, m, dtype=torch.float32, tolerance=1e-3)
    basis = vectors.double()
    torch.testing.assert_close(basis @ basis.mT, torch.eye(m).double(), rtol=0, atol=1e-5)
    expected = SPECTRA[name].abs().topk(m).values.sum()
    found = torch.linalg.eigvalsh(basis @ matrix @ basis.mT).abs().sum()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_the_search_goes_on_until_residuals_are_small() -> None:
    matrix = rotated(SPECTRA["falling"])
    calls = []

    def apply(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows @ matrix

    for tolerance in (1e-1, 1e-9):
        calls.append(0)
        vectors = krylov_eigenvectors(apply, DIMENSION, 10, dtype=torch.float64, tolerance=tolerance)
        values = torch.einsum("id,id->i", vectors @ matrix, vectors)
        residuals = (vectors @ matrix - values.unsqueeze(1) * vectors).norm(dim=1)
        assert residuals.max() <= tolerance * values.abs().max()
        assert (values.abs().diff() <= 1e-12).all()
    first, second = (calls.index(0, 1), len(calls) - calls.index(0, 1))
    assert second > first


def test_a_small_matrix_is_searched_as_a_whole() -> None:
    matrix = torch.diag(torch.arange(1.0, 24.0))
    vectors = krylov_eigenvectors(lambda rows: rows @ matrix, 23, 2, dtype=torch.float32, tolerance=1e-6)
    assert vectors.shape == (2, 23)
    assert block_width(2) < 23 < block_width(30)
    whole = krylov_eigenvectors(lambda rows: rows @ matrix, 23, 23, dtype=torch.float32, tolerance=1e-6)
    torch.testing.assert_close(whole.abs(), torch.eye(23).flip(0), rtol=0, atol=1e-4)
