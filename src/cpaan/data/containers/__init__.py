"""Features and labels in NumPy arrays, torch tensors, sparse matrices, data frames or lists: the way in and out."""

from cpaan.data.containers.appending import append_features, append_labels
from cpaan.data.containers.features import FeatureArray, as_features, require_finite, restore_features
from cpaan.data.containers.kinds import container_of, describe_rows, tensor_to_numpy
from cpaan.data.containers.labels import as_labels, label_array, restore_labels

__all__ = [
    "FeatureArray",
    "append_features",
    "append_labels",
    "as_features",
    "as_labels",
    "container_of",
    "describe_rows",
    "label_array",
    "require_finite",
    "restore_features",
    "restore_labels",
    "tensor_to_numpy",
]
