"""Features and labels from `datasets.Dataset`, and from torch's `Dataset` and `DataLoader`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import FeatureArray, as_features, as_labels, label_array
from cpaan.data.feature_set import raise_unknown
from cpaan.data.parquet import feature_matrix, label_values
from cpaan.errors import InputError

_PAIR = 2


def features_from(
    dataset: Any, features: str = "features", label: str = "label"
) -> tuple[FeatureArray, npt.NDArray[Any]]:
    """Read X and y from a dataset of Hugging Face or torch into memory.

    Parameters
    ----------
    dataset : datasets.Dataset, torch.utils.data.Dataset or torch.utils.data.DataLoader
        Its items, or those in the batches of a loader, are mappings with the two names below, or pairs of features and
        label.
    features : str, default="features"
        Name of the features of an example: a vector.
    label : str, default="label"
        Name of the class. If a `datasets.Dataset` knows the names of its classes, they are used.

    Returns
    -------
    X : ndarray of shape (n, D)
    y : ndarray of shape (n,)

    Examples
    --------
    >>> import torch
    >>> pairs = torch.utils.data.TensorDataset(torch.eye(3), torch.tensor([7, 7, 9]))
    >>> X, y = features_from(pairs)
    >>> X.shape, y.tolist()
    ((3, 3), [7, 7, 9])
    """
    library = sys.modules.get("datasets")
    if library is not None and isinstance(dataset, library.DatasetDict | library.IterableDatasetDict):
        raise InputError(f"the dataset has the parts {', '.join(dataset)}; give one of them, as dataset[name]")
    if library is not None and isinstance(dataset, library.Dataset):
        return _from_table(dataset, features, label)
    matrix, labels = _from_items(dataset, features, label)
    names = _class_names(dataset, label) if library is not None else None
    return matrix, label_array(labels if names is None else [names[index] for index in labels])


def _from_table(dataset: Any, features: str, label: str) -> tuple[FeatureArray, npt.NDArray[Any]]:
    for name in (features, label):
        if name not in dataset.column_names:
            raise_unknown([name], dataset.column_names, noun="column")
    # As it is stored: other formats would round double precision.
    table = dataset.select_columns([features, label]).with_format("arrow")[:]
    matrix = as_features(feature_matrix(table, features), features, keep_half=True)
    labels, names = label_values(table.column(label), label), _class_names(dataset, label)
    return matrix, label_array(labels if names is None else [names[index] for index in labels])


def _class_names(dataset: Any, label: str) -> list[str] | None:
    kinds = getattr(dataset, "features", None)
    kind = kinds.get(label) if isinstance(kinds, Mapping) else None
    return getattr(kind, "names", None)


def _from_items(dataset: Any, features: str, label: str) -> tuple[FeatureArray, list[Any]]:
    torch = sys.modules.get("torch")
    batched = torch is not None and isinstance(dataset, torch.utils.data.DataLoader)
    blocks, labels = [], []
    for number, item in enumerate(_items(dataset)):
        values, names = _parted(item, number, features, label)
        shape = tuple(np.shape(values))
        if len(shape) != 1 + batched:
            what = "batch" if batched else "example"
            raise InputError(f"{what} {number} has features of shape {shape}; features must be one vector per example")
        blocks.append(as_features(values if batched else np.asarray(values)[None], features, keep_half=True))
        labels += as_labels(names if batched else [names], len(blocks[-1]), label)
    if not blocks:
        raise InputError("the dataset is empty; give at least one example")
    if len({block.shape[1] for block in blocks}) > 1:
        raise InputError("examples have different numbers of features; give as many for each")
    return np.concatenate(blocks), labels


def _items(dataset: Any) -> Iterator[Any]:
    # Datasets of torch need not raise an IndexError: their length says where to stop.
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[index] for index in range(len(dataset)))
    if isinstance(dataset, Iterable):
        return iter(dataset)
    raise InputError(f"a {type(dataset).__name__} is not a dataset; give one of datasets or torch, or a DataLoader")


def _parted(item: Any, number: int, features: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        for name in (features, label):
            if name not in item:
                raise_unknown([name], list(item), noun="column")
        return item[features], item[label]
    if isinstance(item, tuple | list) and len(item) == _PAIR:
        return item[0], item[1]
    raise InputError(
        f"item {number} of the dataset is a {type(item).__name__}; items must be pairs of features and label, or "
        f"mappings with {features!r} and {label!r}"
    )
