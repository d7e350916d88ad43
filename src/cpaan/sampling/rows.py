"""Examples that stay where they are stored, brought into the model's units when they are drawn."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cpaan.data.containers import FeatureArray
from cpaan.data.memory_map import RowReader
from cpaan.functional.rows import row_blocks
from cpaan.functional.scaling import Scaling


class StoredRows:
    """Features in memory or in a mapped file, given in double precision on the CPU.

    Parameters
    ----------
    features : ndarray of shape (n, D)
        Not copied.

    Examples
    --------
    >>> StoredRows(np.eye(2, dtype=np.float16))[torch.tensor([1])]
    tensor([[0., 1.]], dtype=torch.float64)
    """

    device = torch.device("cpu")

    def __init__(self, features: FeatureArray) -> None:
        self._reader = RowReader(features)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of examples, and of features."""
        n, dimension = self._reader.array.shape
        return n, dimension

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        index = rows if isinstance(rows, slice) else rows.cpu().numpy()
        return torch.from_numpy(self._reader.read(index).astype(np.float64, order="C"))


@dataclass(frozen=True)
class ScaledRows:
    """Stored examples in the model's units, in single precision.

    Attributes
    ----------
    stored : the examples in the user's units
    scaling : from these to the model's
    device : where examples are given
    order : which stored example is the first, the second, …; as they are stored by default

    Examples
    --------
    >>> rows = ScaledRows(StoredRows(np.array([[1.0], [2.0]])), Scaling(torch.ones(1), 10.0), torch.device("cpu"))
    >>> rows[:], rows.in_order(torch.tensor([1, 0]))[:1]
    (tensor([[ 0.],
            [10.]]), tensor([[10.]]))
    """

    stored: StoredRows
    scaling: Scaling
    device: torch.device
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of examples, and of features."""
        return self.stored.shape

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        if self.order is not None:
            rows = self.order[rows if isinstance(rows, slice) else rows.cpu()]
        # In double precision up to here: features may lie far from the origin or be very large or small.
        return self.scaling.apply(self.stored[rows]).float().to(self.device)

    def in_order(self, order: Tensor) -> "ScaledRows":
        """Give the same examples in another order, none of which is read."""
        return replace(self, order=order.cpu())

    def to(self, device: torch.device) -> "ScaledRows":
        """Give examples on another device from now on."""
        return replace(self, device=device)

    def load(self) -> Tensor:
        """Read all examples into one tensor."""
        loaded = torch.empty(self.shape, device=self.device)
        for block in row_blocks(self):
            loaded[block] = self[block]
        return loaded
