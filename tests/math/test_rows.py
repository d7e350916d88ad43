"""Work in blocks: the same as all at once, but for rounding where there are many."""

import pytest
import torch
from torch import Tensor

from cpaan.math import rows as module
from cpaan.math.prototypes import prototypes
from cpaan.math.rows import is_large, largest_absolute, row_blocks, row_mean

ROWS = torch.randn(1000, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0)) + 3


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_IN_BLOCK", 100)
    monkeypatch.setattr(module, "MOST_NUMBERS_AT_ONCE", 1000)


def test_rows_that_fit_are_averaged_as_any_tensor_is() -> None:
    assert not is_large(ROWS)
    assert torch.equal(row_mean(ROWS), ROWS.mean(0))


@pytest.mark.usefixtures("small_blocks")
def test_more_rows_are_averaged_block_by_block() -> None:
    assert is_large(ROWS)
    assert len(list(row_blocks(ROWS))) == 84
    torch.testing.assert_close(row_mean(ROWS), ROWS.mean(0), rtol=1e-14, atol=0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("row", [0, 11, 12, 999])
def test_the_largest_value_is_found_in_any_block(row: int) -> None:
    changed = ROWS.clone()
    changed[row, 3] = -77
    assert largest_absolute(changed) == 77


class OnDisk:
    """Rows that can only be read a few at a time."""

    shape, device = ROWS.shape, ROWS.device

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        found = ROWS[rows]
        assert found.numel() <= 100
        return found


@pytest.mark.usefixtures("small_blocks")
def test_rows_that_do_not_fit_are_never_read_at_once() -> None:
    torch.testing.assert_close(row_mean(OnDisk()), ROWS.mean(0), rtol=1e-14, atol=0)
    assert largest_absolute(OnDisk()) == float(ROWS.abs().max())
    labels = torch.arange(1000) % 7
    expected = torch.stack([ROWS[labels == label].mean(0) for label in range(7)])
    torch.testing.assert_close(prototypes(OnDisk(), labels, 7), expected, rtol=1e-13, atol=0)


def test_a_row_longer_than_a_block_is_a_block() -> None:
    assert list(row_blocks(torch.empty(2, 2**21))) == [slice(0, 1), slice(1, 2)]
