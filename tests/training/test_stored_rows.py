"""Banks whose examples stay where they are stored draw the same bits as banks in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank, ScaledRows, StoredRows

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.repeat(np.arange(5), [1, 4, 9, 20, 6]))
FEATURES = RNG.normal(size=(40, 3)) + 100


def make_banks(tmp_path: Path, dtype: Any, labels: Any) -> tuple[ClassBank, ClassBank]:
    np.save(tmp_path / "bank.npy", FEATURES.astype(dtype))
    scaling = Scaling(torch.tensor([99.0, 100.0, 101.0], dtype=torch.double), 1 / 3)
    stored = ScaledRows(StoredRows(np.load(tmp_path / "bank.npy", mmap_mode="r")), scaling, CPU)
    plain = scaling.apply(torch.tensor(FEATURES.astype(dtype)).double()).float()
    return tuple(ClassBank.from_examples(rows, torch.tensor(labels), 5) for rows in (plain, stored))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("labels", [LABELS, np.sort(LABELS)], ids=["mixed", "sorted"])
def test_stored_and_resident_banks_are_the_same(tmp_path: Path, dtype: Any, labels: Any) -> None:
    resident, stored = make_banks(tmp_path, dtype, labels)
    assert isinstance(resident.rows, torch.Tensor)
    assert isinstance(stored.rows, ScaledRows)
    assert torch.equal(stored.features, resident.features)
    assert torch.equal(stored.prototypes, resident.prototypes)
    assert (stored.device, stored.dimension, stored.n_classes, stored.largest) == (CPU, 3, 5, 20)
    for label in range(5):
        assert torch.equal(stored.of_class(label), resident.of_class(label))
    classes = torch.tensor([[4, 0, 2], [3, 3, 1]])
    first, second = (torch.Generator().manual_seed(1) for _ in range(2))
    assert torch.equal(stored.draw(classes, first), resident.draw(classes, second))
    assert torch.equal(stored.draw_distinct(classes[0], 7, first), resident.draw_distinct(classes[0], 7, second))


def test_loading_gives_what_drawing_gives(tmp_path: Path) -> None:
    _, stored = make_banks(tmp_path, np.float32, LABELS)
    assert isinstance(stored.rows, ScaledRows)
    assert torch.equal(stored.rows.load(), stored.features)
    assert torch.equal(stored.to(CPU).features, stored.features)


def test_examples_that_are_sorted_already_are_not_copied() -> None:
    examples = torch.randn(6, 2)
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    assert ClassBank.from_examples(examples, labels, 3).features.data_ptr() == examples.data_ptr()
    assert ClassBank.from_examples(examples, labels.flip(0), 3).features.data_ptr() != examples.data_ptr()


def test_rows_stored_column_by_column_are_given_row_by_row() -> None:
    rows = StoredRows(np.asfortranarray(FEATURES))
    for index in (slice(2, 9), torch.tensor([5, 1, 7])):
        assert rows[index].is_contiguous()
        np.testing.assert_array_equal(rows[index], FEATURES[index])
