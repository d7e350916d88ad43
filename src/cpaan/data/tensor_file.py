"""Feature files in safetensors: `features` (n × D), `labels` (n), and `is_test` (n, bool) if rows are held out.

The metadata holds class names as a JSON list under `classes`, and labels are indices into it; without that list, labels
are the class names themselves. Features of a quarter of a gigabyte and more stay in the file and are read as they are
needed; the file must then stay unchanged.
"""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpaan.data.containers import tensor_to_numpy
from cpaan.data.feature_set import FeatureSet
from cpaan.data.feature_table import FeatureTable, class_array, make_table
from cpaan.data.folders import replacing
from cpaan.data.untrusted import parse_json, reading, require_file
from cpaan.errors import InputError

_MATRIX = 2
_TYPES = {
    "features": ("F16", "BF16", "F32", "F64"),
    "labels": ("I8", "I16", "I32", "I64", "U8", "U16", "U32"),
    "is_test": ("BOOL", "U8", "I8", "I32", "I64"),
}
_MAPPED = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_SMALLEST_MAPPED = 2**28
_WRONG = "is not a safetensors file, is damaged or cannot be read"


def read_tensor_file(path: Path) -> FeatureTable:
    """Read a file; check shapes and types before reading values."""
    require_file(path, ".safetensors")
    # The library compares every place and size in the header with the length of the file.
    with reading(path, _WRONG), import_module("safetensors").safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        _require_form(file, names)
        classes = _classes(file.metadata() or {})
        features, labels = _read_features(file, path), file.get_tensor("labels")
        is_test = file.get_tensor("is_test") if "is_test" in names else None
    return make_table(path, features, labels, classes, is_test)


def write_tensor_file(path: Path, feature_set: FeatureSet, is_test: npt.NDArray[np.bool_] | None = None) -> None:
    """Write a file, whole or not at all; see `cpaan.data.write_features`."""
    tensors: dict[str, npt.NDArray[Any]] = {
        "features": np.ascontiguousarray(feature_set.features),
        "labels": np.ascontiguousarray(feature_set.labels),
    }
    if is_test is not None:
        tensors["is_test"] = np.ascontiguousarray(is_test)
    metadata = {"format": "cpaan features", "classes": json.dumps(class_array(feature_set).tolist())}
    library = import_module("safetensors.numpy")
    with replacing(path) as temporary:
        try:
            library.save_file(tensors, temporary, metadata)
        except import_module("safetensors").SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from error


def _require_form(file: Any, names: set[str]) -> None:
    for name in ("features", "labels"):
        if name not in names:
            found = ", ".join(sorted(names)) or "none"
            raise InputError(f"there is no tensor called {name}; found: {found}")
    rows = tuple(file.get_slice("features").get_shape())
    if len(rows) != _MATRIX:
        raise InputError(f"features has shape {rows}; it must be n × D")
    for name, types in _TYPES.items():
        if name in names:
            shape, found = tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()
            if found not in types:
                raise InputError(f"{name} is {found}; it must be one of {', '.join(types)}")
            if name != "features" and shape != rows[:1]:
                raise InputError(f"{name} has shape {shape} for {rows[0]} rows of features")


def _read_features(file: Any, path: Path) -> npt.NDArray[Any]:
    part = file.get_slice("features")
    shape, kind = tuple(part.get_shape()), part.get_dtype()
    if kind in _MAPPED:
        dtype = np.dtype(_MAPPED[kind])
        if math.prod(shape) * dtype.itemsize >= _SMALLEST_MAPPED:
            return np.memmap(path, dtype=dtype, mode="r", offset=_begin(path, "features"), shape=shape)
        values: npt.NDArray[Any] = file.get_tensor("features")
        return values
    # NumPy has no bfloat16; torch reads it, and it becomes float32.
    import_module("torch")
    with import_module("safetensors").safe_open(path, framework="pt") as tensors:
        return tensor_to_numpy(tensors.get_tensor("features"), "features")


def _begin(path: Path, name: str) -> int:
    """Find where a tensor begins, in a file whose header the library has checked."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return 8 + length + int(json.loads(file.read(length))[name]["data_offsets"][0])


def _classes(metadata: dict[str, str]) -> list[Any] | None:
    if "classes" not in metadata:
        return None
    classes = parse_json(metadata["classes"], "classes in its metadata")
    if not isinstance(classes, list) or not all(isinstance(name, str | int | float) for name in classes):
        raise InputError("classes in its metadata must be a list of names")
    return classes
