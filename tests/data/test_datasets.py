"""Datasets of Hugging Face and of torch, as an estimator takes them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from cpaan import CPAAN
from cpaan.data.datasets import features_from
from cpaan.errors import InputError
from cpaan.methods import set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
NUMBERS = np.arange(40) % 8
NAMES = [f"class {number}" for number in NUMBERS]


@pytest.fixture
def datasets() -> Any:
    return pytest.importorskip("datasets", reason="needs the package datasets")


class Pairs(Dataset[Any]):
    """A dataset that has a length and does not stop by itself."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return {"embedding": X[index % len(X)], "class": NAMES[index % len(X)]}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(torch.tensor(X), NAMES, strict=True))


def test_a_dataset_of_hugging_face(datasets: Any) -> None:
    whole = datasets.Dataset.from_dict({"features": X.tolist(), "label": NAMES, "other": NAMES})
    features, labels = features_from(whole)
    assert features.dtype == np.float64
    assert np.array_equal(features, X)
    assert labels.tolist() == NAMES
    some = whole.select([7, 3]).rename_columns({"features": "embedding", "label": "class"}).with_format("torch")
    features, labels = features_from(some, "embedding", "class")
    assert np.array_equal(features, X[[7, 3]])
    assert labels.tolist() == [NAMES[7], NAMES[3]]


def test_class_labels_become_names(datasets: Any) -> None:
    kinds = datasets.Features(
        {
            "features": datasets.Sequence(datasets.Value("float32"), length=3),
            "label": datasets.ClassLabel(names=["oak", "elm"]),
        }
    )
    whole = datasets.Dataset.from_dict({"features": X[:2].tolist(), "label": [1, 0]}, features=kinds)
    features, labels = features_from(whole)
    assert features.dtype == np.float32
    assert labels.tolist() == ["elm", "oak"]
    assert features_from(whole.to_iterable_dataset())[1].tolist() == ["elm", "oak"]


def test_what_hugging_face_has_besides_is_refused(datasets: Any) -> None:
    whole = datasets.Dataset.from_dict({"features": X.tolist(), "label": NAMES})
    with pytest.raises(InputError, match=r"has the parts train, test; give one of them"):
        features_from(datasets.DatasetDict({"train": whole, "test": whole}))
    with pytest.raises(InputError, match="unknown column 'target'"):
        features_from(whole, label="target")
    ragged = datasets.Dataset.from_dict({"features": [[1.0], [1.0, 2.0]], "label": [0, 1]})
    with pytest.raises(InputError, match="lists of 1 to 2 numbers"):
        features_from(ragged)


@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_loaders_and_datasets_of_torch(batch_size: int) -> None:
    tensors = TensorDataset(torch.tensor(X), torch.tensor(NUMBERS))
    for source in (tensors, DataLoader(tensors, batch_size=batch_size)):
        features, labels = features_from(source)
        assert np.array_equal(features, X)
        assert labels.tolist() == NUMBERS.tolist()
    for other in (Pairs(), DataLoader(Pairs(), batch_size=batch_size)):
        features, labels = features_from(other, "embedding", "class")
        assert np.array_equal(features, X)
        assert labels.tolist() == NAMES
    features, labels = features_from(Stream())
    assert np.array_equal(features, X)
    assert labels.tolist() == NAMES


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (TensorDataset(torch.zeros(2, 3)), "item 0 of the dataset is a tuple"),
        (TensorDataset(torch.zeros(2, 3, 4), torch.zeros(2)), r"example 0 has features of shape \(3, 4\)"),
        (DataLoader(TensorDataset(torch.zeros(2), torch.zeros(2))), r"batch 0 has features of shape \(1,\)"),
        (Pairs(), "unknown column 'features'"),
        ([], "the dataset is empty"),
        ([([1.0], "a"), ([1.0, 2.0], "b")], "different numbers of features"),
        ([([float("nan")], "a")], "NaN or infinite"),
        (3, "a int is not a dataset"),
    ],
)
def test_items_that_are_no_examples(dataset: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        features_from(dataset)


def test_an_augmenter_takes_it() -> None:
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(NUMBERS)), batch_size=16)
    settings: dict[str, Any] = {"novel_per_episode": 4, "width": 8, "center": "shots", "recipe": "quick"}
    ours = cpaan(episodes=3, random_state=0, device="cpu", **settings)
    made, _ = ours.fit(*features_from(loader)).augment(X[:2] + 9, ["new", "new"], per_class=5)
    same, _ = ours.fit(X, NUMBERS).augment(X[:2] + 9, ["new", "new"], per_class=5)
    assert np.array_equal(made, same)
