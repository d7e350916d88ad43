"""What classifiers share that are trained on tasks of base classes: a support is encoded, queries are scored."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cpaan.classifiers.base import FloatArray, IntegerArray
from cpaan.classifiers.network import ROWS_AT_ONCE, NetworkClassifier, at_rest
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.functional.scaling import Scaling
from cpaan.nn.episodic import EpisodicNetwork
from cpaan.sampling.bank import ClassBank
from cpaan.training.checks import check_count, is_number
from cpaan.training.episodic import EpisodicTraining, Supporter, plain_support
from cpaan.training.history import History
from cpaan.training.meta import MetaRecipe
from cpaan.training.trainer import Progress

MOST_HELD_OUT = 0.5  # of the base classes

# NOTE[paper]: how the published code of the low-shot benchmark trains its matching networks: 60,000 tasks of all base
# classes, with one to ten shots of each and a query; here with Adam, whose rate is halved.
PAPER = MetaRecipe(
    episodes=60_000,
    ways=389,
    shots=tuple(range(1, 11)),
    queries=1,
    learning_rate=1e-4,
    halve_every=20_000,
    weight_decay=1e-3,
)


class EpisodicClassifier(NetworkClassifier):
    """Meta-trained classifier whose network encodes a support and scores queries with it.

    A subclass gives `_recipes` and writes `_build`.
    """

    _recipes: ClassVar[Mapping[str, MetaRecipe]]
    network_: EpisodicNetwork
    memory_: tuple[Tensor, ...]

    def __init__(
        self,
        *,
        recipe: str = "quick",
        random_state: Any = None,
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        width: int = 256,
        held_out: float = 0.2,
        episodes: int | None = None,
        ways: int | None = None,
        shots: tuple[int, ...] | None = None,
        queries: int | None = None,
        learning_rate: float | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
    ) -> None:
        self.recipe = recipe
        self.random_state = random_state
        self.device = device
        self.tell = tell
        self.width = width
        self.held_out = held_out
        self.episodes = episodes
        self.ways = ways
        self.shots = shots
        self.queries = queries
        self.learning_rate = learning_rate
        self.halve_every = halve_every
        self.weight_decay = weight_decay

    def untrained(self, dimension: int, n_base: int, seed: int) -> EpisodicNetwork:
        """Make its network, whose weights depend on the seed alone."""
        self._check_settings()
        network = self._built(dimension, n_base, seed)
        assert isinstance(network, EpisodicNetwork)
        return network

    def training(self, network: EpisodicNetwork, module: nn.Module, supporter: Supporter) -> EpisodicTraining:
        """Say how its network is trained, alone or together with what makes its support."""
        return EpisodicTraining(network, module, supporter, self._recipe(self._recipes), self.held_out)

    def take(self, base: FeatureSet, network: EpisodicNetwork, scaling: Scaling, history: dict[str, Any]) -> None:
        """Take what was learned from base classes together with something else, as `meta_fit` would."""
        self.network_, self.scaling_, self.history_ = at_rest(network), scaling, history
        self.base_classes_, self.meta_dimension_, self.meta_fitted_ = base.classes, base.dimension, True

    def _meta_learn(self, base: FeatureSet) -> None:
        self._check_settings()
        super()._meta_learn(base)

    def _check_settings(self) -> None:
        check_count("width", self.width, least=0)
        if not is_number(self.held_out) or not 0 <= self.held_out <= MOST_HELD_OUT:
            raise InputError(f"held_out must be a share from 0 to {MOST_HELD_OUT}, not {self.held_out!r}")

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        assert isinstance(network, EpisodicNetwork)
        return self.training(network, network, plain_support).train(bank, generator, self.tell)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        embedded, labels = self._embedded(features), torch.as_tensor(targets.astype(np.int64))
        self.memory_ = self.network_.remember(embedded, labels, len(self.classes_))

    def _score(self, X: FloatArray) -> FloatArray:
        blocks = self._standardized(X).split(ROWS_AT_ONCE)
        scores = [self.network_.score(self.memory_, block) for block in blocks]
        found: FloatArray = torch.cat(scores).numpy()
        return found
