"""Parts of an augmenter: objects with parameters that scikit-learn can read, copy and search over."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from cpaan.data.untrusted import require_arrays
from cpaan.errors import InputError

PartT = TypeVar("PartT", bound="Part")


class Part:
    """A class centre, a source of deviations or a recipe.

    Parameters are the keyword arguments of the constructor, stored unchanged. What `fit` learns are tensors whose
    names end with an underscore; a subclass lists them in `learned`, and they are saved with the augmenter.
    """

    # Shape and type of each learned tensor, such as {"mean_": "D float64"}: C base classes, D features.
    learned: ClassVar[Mapping[str, str]] = {}
    seeded: ClassVar[bool] = True  # whether `fit` draws random numbers
    kinds: ClassVar[dict[str, "type[Part]"]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Part.kinds[kind_of(cls)] = cls

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; `deep` adds those of nested parts, such as ``recipe__cycle_weight``."""
        shallow = {name: getattr(self, name) for name in _parameter_names(type(self))}
        return with_nested(self, shallow) if deep else shallow

    def set_params(self: PartT, **changes: Any) -> PartT:
        """Change parameters in place, nested ones too."""
        for name, value in nested_changes(self, changes).items():
            setattr(self, name, value)
        return self

    def but(self: PartT, **changes: Any) -> PartT:
        """Return an unfitted copy with other parameters."""
        return type(self)(**{**self.get_params(deep=False), **nested_changes(self, changes)})

    def resolve(self, name: str) -> Any:
        """Return the part that a parameter stands for, where it was given by name."""
        return getattr(self, name)

    def check(self) -> None:
        """Raise an `InputError` for parameters or learned values out of range."""

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned tensor by name."""
        return {name: getattr(self, name) for name in self.learned}

    def details(self) -> dict[str, Any]:
        """Return what else was learned, as JSON can hold it."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], details: Mapping[str, Any], **sizes: int) -> None:
        """Take what `tensors` and `details` returned; `sizes` are the numbers of classes C and of features D."""
        require_arrays(tensors, self.learned, **sizes)
        for name in self.learned:
            setattr(self, name, tensors[name])
        self.check()

    def __eq__(self, other: object) -> bool:
        """Tell whether another part is of the same kind with the same parameters, whatever it has learned."""
        return type(self) is type(other) and self.get_params(deep=False) == other.get_params(deep=False)

    __hash__ = object.__hash__  # sets and caches keep parts apart

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        given = self.get_params(deep=False)
        changed = {name: value for name, value in given.items() if value != defaults[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def kind_of(cls: type[Part]) -> str:
    """Name a class in a saved model: ours by its name alone, others with their module."""
    return cls.__name__ if cls.__module__.startswith("cpaan.") else f"{cls.__module__}.{cls.__qualname__}"


def make_part(kind: str, parameters: Mapping[str, Any]) -> Part:
    """Build the part that a saved model names."""
    if kind not in Part.kinds:
        raise InputError(f"unknown part {kind!r}; import the module that defines it before loading the model")
    return Part.kinds[kind](**parameters)


def _parameter_names(cls: type) -> list[str]:
    return list(inspect.signature(cls).parameters)


def with_nested(owner: Any, shallow: Mapping[str, Any]) -> dict[str, Any]:
    """Add the parameters of nested parts, also of those given by name."""
    found = dict(shallow)
    for name in shallow:
        part = owner.resolve(name)
        if hasattr(part, "get_params") and not isinstance(part, type):
            found |= {f"{name}__{inner}": value for inner, value in part.get_params().items()}
    return found


def nested_changes(owner: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Turn changes such as ``recipe__cycle_weight=2`` into a changed copy of the nested part, ``recipe=…``."""
    known = owner.get_params(deep=False)
    found = {name: value for name, value in changes.items() if "__" not in name}
    unknown = sorted({name.partition("__")[0] for name in changes} - set(known))
    if unknown:
        raise InputError(f"{type(owner).__name__} has no {', '.join(unknown)}; it has {', '.join(known)}")
    inner: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if "__" in name:
            outer, _, rest = name.partition("__")
            inner.setdefault(outer, {})[rest] = value
    for outer, nested in inner.items():
        part = found.get(outer, owner.resolve(outer))
        if not isinstance(part, Part):
            raise InputError(f"{outer} of {type(owner).__name__} has no parameters, such as {next(iter(nested))}")
        found[outer] = part.but(**nested)
    return found
