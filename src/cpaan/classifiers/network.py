"""What meta-trained classifiers share that are one network on standardised features."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpaan.classifiers.meta import MetaClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.data.limits import positive_number, require_arrays
from cpaan.errors import InputError
from cpaan.functional.scaling import Scaling
from cpaan.functional.standardization import fit_standardization
from cpaan.nn.initial_weights import initial_weights
from cpaan.nn.weights import load_weights
from cpaan.sampling.bank import ClassBank
from cpaan.training.device import choose_device
from cpaan.training.history import History
from cpaan.training.meta import MetaRecipe
from cpaan.training.trainer import Progress

RecipeT = TypeVar("RecipeT", bound=MetaRecipe)
NetworkT = TypeVar("NetworkT", bound=nn.Module)
ROWS_AT_ONCE = 1024


class NetworkClassifier(MetaClassifier):
    """Meta-trained classifier that is one network on standardised features.

    The network is trained in single precision on any device, and kept and used in double precision on the CPU: what
    it is given later is little, and answers then do not depend on the device or on how rows are grouped.

    A subclass writes `_build`, `_train`, `_adapt` and `_score`.

    Attributes
    ----------
    network_ : torch.nn.Module
        What was learned.
    scaling_ : Scaling
        The change of units that brings features to what the network takes.
    history_ : dict
        The episodes of the logging steps and the mean of every loss term at each.
    """

    recipe: str
    device: str
    tell: Callable[[Progress], None] | None
    network_: nn.Module
    scaling_: Scaling
    history_: dict[str, Any]

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        """Make the untrained network, with weights from torch's global generator, which is seeded around the call."""
        raise NotImplementedError

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        """Train the network, in place, on standardised examples."""
        raise NotImplementedError

    def _meta_learn(self, base: FeatureSet) -> None:
        seed, device = self._seed(0), choose_device(self.device)
        features, labels = base.to_torch()
        scaling = fit_standardization(features.double())
        bank = ClassBank.from_examples(scaling.apply(features.double()).float(), labels, base.n_classes)
        network = self._built(base.dimension, base.n_classes, seed).to(device)
        history = self._train(network, bank.to(device), torch.Generator(device).manual_seed(seed))
        # Last, so that settings that are refused on the way leave everything as it was.
        self.network_, self.scaling_ = at_rest(network), scaling
        self.history_ = {"episode": history.episodes, **history.losses}

    def _built(self, dimension: int, n_base: int, seed: int) -> nn.Module:
        with initial_weights(seed):
            return self._build(dimension, n_base)

    def _standardized(self, features: NDArray[Any]) -> Tensor:
        """Bring examples into the network's units, in double precision."""
        return self.scaling_.apply(torch.tensor(features, dtype=torch.float64))

    def _embedded(self, features: NDArray[Any]) -> Tensor:
        """Embed examples, a block at a time: what lies between the layers of a wide network takes the most memory."""
        starts = range(0, len(features), ROWS_AT_ONCE)
        blocks = (self._standardized(features[start : start + ROWS_AT_ONCE]) for start in starts)
        return torch.cat([self.network_.embed(block) for block in blocks])  # type: ignore[operator]

    def _recipe(self, recipes: Mapping[str, RecipeT]) -> RecipeT:
        """Take the recipe that is named, with the numbers that are given in place of its own."""
        if self.recipe not in recipes:
            raise InputError(f"unknown recipe {self.recipe!r}; choose one of {', '.join(recipes)}")
        chosen = recipes[self.recipe]
        given = {field.name: getattr(self, field.name, None) for field in fields(chosen)}
        return replace(chosen, **{name: value for name, value in given.items() if value is not None})

    def _details(self) -> dict[str, Any]:
        return {**super()._details(), "history": self.history_}

    def _tensors(self) -> dict[str, Tensor]:
        # The numbers came from single precision, so nothing is lost.
        learned = {f"network.{name}": value.float() for name, value in self.network_.state_dict().items()}
        factor = torch.tensor(self.scaling_.factor, dtype=torch.float64)
        return {**learned, "origin": self.scaling_.origin, "factor": factor}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        head = "network."
        weights = {name[len(head) :]: value for name, value in tensors.items() if name.startswith(head)}
        build = partial(self._built, self.meta_dimension_, len(self.base_classes_), seed=0)
        self.network_ = at_rest(load_weights(build, weights))
        require_arrays(tensors, {"origin": "D float64", "factor": "float64"}, D=self.meta_dimension_)
        self.scaling_ = Scaling(tensors["origin"], positive_number(float(tensors["factor"]), "factor"))
        self.history_ = config["history"]


def at_rest(network: NetworkT) -> NetworkT:
    """Bring a trained network to where it is kept and used."""
    return network.cpu().double().eval().requires_grad_(False)


def keep_few(targets: NDArray[np.intp], most: int, seed: int) -> NDArray[np.intp]:
    """Choose at most so many examples of each class, at random; gives their rows, in order.

    >>> keep_few(np.array([0, 0, 0, 1]), 2, seed=0)
    array([0, 2, 3])
    """
    order = np.random.default_rng(seed).permutation(len(targets))
    grouped = order[np.argsort(targets[order], kind="stable")]
    counts = np.bincount(targets)
    rank = np.arange(len(targets)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(grouped[rank < most])
