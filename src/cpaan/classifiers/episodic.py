"""What classifiers share that are trained on tasks of base classes: a support is encoded, queries are scored.

What networks share that learn classes from a support.

Episodic training of networks that learn a class from its support, stopped before they learn base classes by heart.

J. Snell, K. Swersky and R. S. Zemel, *Prototypical networks for few-shot learning*, NeurIPS 2017, stop where the loss
on held-out classes is least. Base classes are few here, so the held-out ones only tell how long to train; then all
of them are trained on, for that long.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpaan.classifiers.base import FloatArray, IntegerArray
from cpaan.classifiers.meta import ROWS_AT_ONCE, MetaRecipe, NetworkClassifier, Task, TaskSampler, at_rest, meta_train
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank
from cpaan.training.progress import LOGGINGS, History, Progress, check_count, is_number


class EpisodicNetwork(nn.Module):
    """A network to which a support becomes a memory, with which queries are scored.

    A subclass writes `embed`, `remember` and `score`.
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples, (n, D), each on its own."""
        raise NotImplementedError

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give what is kept of an embedded support (n, D) with labels (n,)."""
        raise NotImplementedError

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query, (n, D) to (n, classes)."""
        raise NotImplementedError

    def encode(self, support: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Embed a support and give what is kept of it."""
        return self.remember(self.embed(support), labels, n_classes)


FEWEST_TO_HOLD_OUT = 10  # classes
_EVERY = 5  # logging steps between validations
_VALIDATIONS = 8  # tasks of each
_SHARPNESS = torch.tensor([0.125, 0.25, 0.5, 1.0, 2.0])


# Makes the support of a task: examples (n, D) and their labels (n,), from (N, K, D) examples and which of them count.
Supporter = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def plain_support(examples: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
    """Take the examples that count, class after class.

    >>> plain_support(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[True, False], [True, True]]))
    (tensor([[1.],
            [3.],
            [4.]]), tensor([0, 1, 1]))
    """
    labels = torch.arange(len(examples), device=examples.device).unsqueeze(1).expand(examples.shape[:2])
    return examples[counting], labels[counting]


def draw_counting(n_classes: int, shots: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw for each class how many of the most examples count: a mask of shape (classes, max(shots)).

    Well-known and hardly known classes compete in one task, as base and novel classes do later.
    """
    device = generator.device
    numbers = torch.tensor(shots, device=device)
    drawn = numbers[torch.randint(len(shots), (n_classes,), generator=generator, device=device)]
    return torch.arange(max(shots), device=device) < drawn.unsqueeze(1)


@dataclass(frozen=True)
class EpisodicTraining:
    """How a network is trained.

    Attributes
    ----------
    network : see `EpisodicNetwork`
    module : all that is trained, the network and what makes its support
    supporter : makes the support of a task
    recipe : its numbers; the shots are those of which each class of a task has one
    held_out : share of the base classes that tell when to stop; 0 trains for all episodes
    """

    network: EpisodicNetwork
    module: nn.Module
    supporter: Supporter
    recipe: MetaRecipe
    held_out: float

    def train(
        self, bank: ClassBank, generator: torch.Generator, tell: Callable[[Progress], None] | None = None
    ) -> History:
        """Train the module in place."""
        total, before = self.recipe.episodes, 0
        if self.held_out > 0 and bank.n_classes >= FEWEST_TO_HOLD_OUT:
            before = total
            start = deepcopy(self.module.state_dict())
            total = self._best_length(bank, generator, _ahead(tell, 0, 2 * before))
            self.module.load_state_dict(start)
        return self._train(bank, total, generator, _ahead(tell, before, before + total))

    def _train(
        self, bank: ClassBank, episodes: int, generator: torch.Generator, tell: Callable[[Progress], None] | None
    ) -> History:
        recipe = replace(self.recipe, episodes=episodes)
        sampler = TaskSampler(bank, recipe.ways, (max(recipe.shots),), recipe.queries)

        def loss_of(task: Task) -> dict[str, Tensor]:
            counting = draw_counting(len(task.classes), recipe.shots, generator)
            return {"loss": self.loss(task, counting)}

        return meta_train(loss_of, self.module.parameters(), sampler, recipe, generator, tell)

    def loss(self, task: Task, counting: Tensor) -> Tensor:
        """Give the cross-entropy of a task's queries."""
        support, labels = self.supporter(task.support, counting)
        memory = self.network.encode(support, labels, len(task.classes))
        return cross_entropy(self.network.score(memory, task.query.flatten(0, 1)), task.query_labels)

    def _best_length(self, bank: ClassBank, generator: torch.Generator, tell: Callable[[Progress], None] | None) -> int:
        """Train on some of the classes and give the number of episodes at which the others were told apart best."""
        n_held = max(2, round(self.held_out * bank.n_classes))
        shuffled = torch.randperm(bank.n_classes, generator=generator, device=generator.device)
        held, kept = shuffled[:n_held], shuffled[n_held:]
        validation = [self._validation_task(bank, held, kept, generator) for _ in range(_VALIDATIONS)]
        every = max(1, self.recipe.episodes // LOGGINGS) * _EVERY
        losses = {1: self._validate(validation, n_held)}

        def look(progress: Progress) -> None:
            if progress.episode % every == 0 or progress.episode == progress.episodes:
                losses[progress.episode] = self._validate(validation, n_held)
            if tell is not None:
                tell(progress)

        self._train(_of_classes(bank, kept), self.recipe.episodes, generator, look)
        return min(losses, key=lambda episode: losses[episode])

    def _validation_task(
        self, bank: ClassBank, held: Tensor, kept: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw held-out classes with few examples among others with many, as novel among base classes."""
        most, queries = max(self.recipe.shots), max(self.recipe.queries, 5)
        others = kept[torch.randperm(len(kept), generator=generator, device=kept.device)[: self.recipe.ways]]
        examples = bank.draw_distinct(torch.cat([held, others]), most + queries, generator)
        counting = draw_counting(len(examples), self.recipe.shots, generator)
        counting[len(held) :] = True
        return examples[:, :most], counting, examples[: len(held), most:].flatten(0, 1)

    @torch.no_grad()
    def _validate(self, tasks: list[tuple[Tensor, Tensor, Tensor]], n_held: int) -> float:
        """Average the loss over held-out queries, among the held-out classes and among all of them.

        Each with its best sharpness: how sharp scores are is learned first and has nothing to do with their order.
        """
        scores = []
        for examples, counting, query in tasks:
            support, labels = self.supporter(examples, counting)
            scores.append(self.network.score(self.network.encode(support, labels, len(examples)), query))
        stacked = torch.cat(scores)
        truth = torch.arange(n_held, device=stacked.device).repeat_interleave(len(scores[0]) // n_held)
        truth = truth.repeat(len(scores))
        return sum(
            min(float(cross_entropy(space * sharpness, truth)) for sharpness in _SHARPNESS.tolist())
            for space in (stacked[:, :n_held], stacked)
        )


def _ahead(tell: Callable[[Progress], None] | None, before: int, episodes: int) -> Callable[[Progress], None] | None:
    """Tell progress as that of a longer run, of which some episodes were before."""
    if tell is None:
        return None
    return lambda progress: tell(Progress(before + progress.episode, episodes, progress.losses))


def _of_classes(bank: ClassBank, classes: Tensor) -> ClassBank:
    """Keep some classes of a bank."""
    features = torch.cat([bank.of_class(int(label)) for label in classes])
    labels = torch.arange(len(classes), device=classes.device).repeat_interleave(bank.counts[classes])
    return ClassBank.from_examples(features, labels, len(classes))


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
