"""What augmenters and meta-learned classifiers share: seeds, and folders that they are saved to."""

from collections.abc import Hashable, Mapping
from numbers import Integral
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from cpaan.data.folders import decode_name, encode_name, read_model, write_model
from cpaan.data.untrusted import reading
from cpaan.errors import InputError
from cpaan.parts import Part, kind_of, make_part

EstimatorT = TypeVar("EstimatorT", bound="SavedEstimator")
_NOT_SAVED = ("tell", "callbacks", "device")


class SavedEstimator(BaseEstimator):
    """Estimator whose random draws follow from `random_state`, and which can be saved once fitted.

    The fitted state is saved as tensors and JSON, with the names of the base classes; nothing is ever unpickled. A
    subclass implements `_base_classes`, `_tensors`, `_restore` and, for state other than tensors, `_details`.
    """

    random_state: Any
    device: str
    tell: Any = None

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the fitted state to a folder, made if missing, as `model.safetensors` and `config.json`.

        Functions among the parameters are left out; `load` gives them their defaults.
        """
        check_is_fitted(self)
        config = {
            "parameters": self.saved_parameters(),
            "classes": [encode_name(name) for name in self._base_classes()],
            **self._details(),
        }
        write_model(folder, type(self).__name__, self._tensors(), config)

    def saved_parameters(self) -> dict[str, Any]:
        """Give the parameters that `save` writes, in types that JSON can hold."""
        given = self.get_params(deep=False)  # type: ignore[no-untyped-call]
        kept = {name: value for name, value in given.items() if name not in _NOT_SAVED and not callable(value)}
        parameters = {name: as_json(value) for name, value in kept.items()}
        if not isinstance(self.random_state, Integral):
            parameters["random_state"] = None
        return parameters

    @classmethod
    def load(cls: type[EstimatorT], folder: str | PathLike[str], *, device: str = "auto") -> EstimatorT:
        """Read what `save` wrote, onto any device ("auto", "cpu", "cuda" or "mps"), whatever it was trained on."""
        tensors, config = read_model(folder, cls.__name__)
        with reading(folder, "holds a damaged model, or one of another version of cpaan"):
            given = {name: value for name, value in config["parameters"].items() if name not in _NOT_SAVED}
            estimator = cls(**{name: from_json(value) for name, value in given.items()})
            if hasattr(estimator, "device"):
                estimator.device = device
            estimator._restore(tensors, config)
            return estimator

    def _base_classes(self) -> tuple[Hashable, ...]:
        raise NotImplementedError

    def _tensors(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _details(self) -> dict[str, Any]:
        return {}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        raise NotImplementedError

    def _seed(self, purpose: int) -> int:
        """Give a seed for one purpose: 0 for training, 1 for everything after."""
        try:
            source = check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state cannot be {self.random_state!r}: {error}") from error
        return int(source.randint(2**31 - 1, size=2)[purpose])


def as_json(value: Any) -> Any:
    """Give NumPy's numbers and arrays as Python's own, what is named by class as pairs, and parts by their name."""
    if isinstance(value, Part):
        given = value.get_params(deep=False)
        kept = {name: as_json(each) for name, each in given.items() if name not in _NOT_SAVED and not callable(each)}
        return {"part": kind_of(type(value)), "parameters": kept}
    if isinstance(value, Mapping):
        return {"by_class": [[encode_name(_own(name)), as_json(each)] for name, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return _own(value)


def _own(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def from_json(value: Any) -> Any:
    """Give back what `as_json` was given."""
    if not isinstance(value, dict):
        return value
    if "part" in value:
        return make_part(value["part"], {name: from_json(each) for name, each in value["parameters"].items()})
    return {decode_name(name): each for name, each in value["by_class"]}


def base_classes(config: dict[str, Any]) -> tuple[Hashable, ...]:
    """Read the names of the base classes from a saved configuration."""
    names = tuple(decode_name(name) for name in config["classes"])
    if not isinstance(config["classes"], list) or len(set(names)) < len(names):
        raise InputError("classes must be a list of distinct names")
    return names
