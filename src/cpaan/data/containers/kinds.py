"""Which library an object belongs to.

Torch, pandas, polars and SciPy are looked up among the modules that are already imported: an object of theirs cannot
exist before that, and so nothing heavy is imported for users who work with NumPy alone.
"""

import sys
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.errors import InputError

Container: TypeAlias = Literal["torch", "pandas", "polars", "scipy", "other"]

ROWS_NAMED = 3


def container_of(value: object) -> Container:
    """Tell which library an object with features or labels belongs to.

    Parameters
    ----------
    value : object
        Anything that a user may hand over.

    Returns
    -------
    {"torch", "pandas", "polars", "scipy", "other"}
        "scipy" stands for its sparse matrices and arrays, "other" for NumPy arrays, lists and all that NumPy can read.

    Examples
    --------
    >>> import torch
    >>> container_of(torch.zeros(2, 3)), container_of([[1.0, 2.0]])
    ('torch', 'other')
    """
    torch, pandas, polars, sparse = (sys.modules.get(name) for name in ("torch", "pandas", "polars", "scipy.sparse"))
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index)):
        return "pandas"
    if polars is not None and isinstance(value, (polars.DataFrame, polars.Series)):
        return "polars"
    if sparse is not None and sparse.issparse(value):
        return "scipy"
    return "other"


def tensor_to_numpy(tensor: Any, name: str = "X") -> npt.NDArray[Any]:
    """Bring a torch tensor to NumPy, from any device.

    Parameters
    ----------
    tensor : torch.Tensor
        A dense tensor; bfloat16, which NumPy lacks, becomes float32.
    name : str, default="X"
        What messages call it.

    Returns
    -------
    ndarray
        It shares memory with a tensor on the CPU.

    Examples
    --------
    >>> import torch
    >>> tensor_to_numpy(torch.ones(2, dtype=torch.bfloat16))
    array([1., 1.], dtype=float32)
    """
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor, which is not supported; pass {name}.to_dense()")
    dense = tensor.detach().cpu()
    array: npt.NDArray[Any] = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    return array


def describe_rows(rows: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
    """Name the first few rows and count the rest, for a message.

    Parameters
    ----------
    rows : sequence of int
        Row numbers, from 0.

    Returns
    -------
    str
        Such as "rows 3, 17, 20 and 4 more".

    Examples
    --------
    >>> describe_rows([3])
    'row 3'
    >>> describe_rows([3, 17, 20, 21, 30])
    'rows 3, 17, 20 and 2 more'
    """
    named = ", ".join(str(int(row)) for row in rows[:ROWS_NAMED])
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {named}{more}"
