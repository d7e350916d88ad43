"""Episodic training of networks that learn classes from a support, stopped before they memorise base classes.

J. Snell, K. Swersky and R. S. Zemel, *Prototypical networks for few-shot learning*, NeurIPS 2017, stop where the loss
on held-out classes is least. Base classes are few here, so the held-out ones only decide how long to train; then all
of them are trained on, for that long.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpaan.classifiers.base import IntegerArray
from cpaan.classifiers.meta import (
    MetaRecipe,
    NetworkClassifier,
    Task,
    TaskSampler,
    Tell,
    at_rest,
    meta_train,
    tell_as_part,
)
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank
from cpaan.training.progress import LOGGINGS, History, Progress, check_count, is_number


class EpisodicNetwork(nn.Module):
    """Network that turns a support into a memory and scores queries with it."""

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples (n, D) independently of each other."""
        raise NotImplementedError

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give the memory of an embedded support (n, D) with labels (n,)."""
        raise NotImplementedError

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query, (n, D) to (n, classes)."""
        raise NotImplementedError

    def encode(self, support: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Embed a support and give its memory."""
        return self.remember(self.embed(support), labels, n_classes)


FEWEST_TO_HOLD_OUT = 10  # classes
MOST_HELD_OUT = 0.5  # of the base classes
_EVERY = 5  # logging steps between validations
_VALIDATIONS = 8  # tasks in each
_SHARPNESS = torch.tensor([0.125, 0.25, 0.5, 1.0, 2.0])

# Makes the support of a task: examples (n, D) and their labels (n,), from (N, K, D) examples and which of them count.
Supporter = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def plain_support(examples: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
    """Take the examples that count, class after class."""
    labels = torch.arange(len(examples), device=examples.device).unsqueeze(1).expand(examples.shape[:2])
    return examples[counting], labels[counting]


def draw_counting(n_classes: int, shots: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw how many examples of each class count: a mask of shape (classes, max(shots)).

    Classes with many and with few examples compete in one task, as base and novel classes do later.
    """
    device = generator.device
    numbers = torch.tensor(shots, device=device)
    drawn = numbers[torch.randint(len(shots), (n_classes,), generator=generator, device=device)]
    return torch.arange(max(shots), device=device) < drawn.unsqueeze(1)


@dataclass(frozen=True)
class EpisodicTraining:
    """Trains a network, alone or together with what makes its support."""

    network: EpisodicNetwork
    module: nn.Module  # all that is trained
    supporter: Supporter
    recipe: MetaRecipe  # each class of a task has one of its numbers of shots
    held_out: float  # share of the base classes that decide when to stop; 0 trains for all episodes

    def train(self, bank: ClassBank, generator: torch.Generator, tell: Tell = None) -> History:
        """Train the module in place."""
        total, before = self.recipe.episodes, 0
        if self.held_out > 0 and bank.n_classes >= FEWEST_TO_HOLD_OUT:
            before = total
            start = deepcopy(self.module.state_dict())
            total = self._best_length(bank, generator, tell_as_part(tell, 0, 2 * before))
            self.module.load_state_dict(start)
        return self._train(bank, total, generator, tell_as_part(tell, before, before + total))

    def _train(self, bank: ClassBank, episodes: int, generator: torch.Generator, tell: Tell) -> History:
        recipe = replace(self.recipe, episodes=episodes)
        sampler = TaskSampler(bank, recipe.ways, (max(recipe.shots),), recipe.queries)

        def loss_of(task: Task) -> Tensor:
            return self.loss(task, draw_counting(len(task.classes), recipe.shots, generator))

        return meta_train(loss_of, self.module.parameters(), sampler, recipe, generator, tell)

    def loss(self, task: Task, counting: Tensor) -> Tensor:
        """Give the cross-entropy of a task's queries."""
        support, labels = self.supporter(task.support, counting)
        memory = self.network.encode(support, labels, len(task.classes))
        return cross_entropy(self.network.score(memory, task.query.flatten(0, 1)), task.query_labels)

    def _best_length(self, bank: ClassBank, generator: torch.Generator, tell: Tell) -> int:
        """Train on some of the classes and give the number of episodes after which the others separate best."""
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

        Each with its best sharpness, which is learned first and does not affect the order of the scores.
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


def _of_classes(bank: ClassBank, classes: Tensor) -> ClassBank:
    """Keep some classes of a bank."""
    features = torch.cat([bank.of_class(int(label)) for label in classes])
    labels = torch.arange(len(classes), device=classes.device).repeat_interleave(bank.counts[classes])
    return ClassBank.from_examples(features, labels, len(classes))


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


@dataclass(kw_only=True, eq=False, repr=False)
class EpisodicClassifier(NetworkClassifier):
    """Meta-learned classifier whose network encodes a support and scores queries with it.

    A subclass defines `_recipes` and `_build`.
    """

    width: int = 256
    held_out: float = 0.2
    network_: EpisodicNetwork = field(init=False)
    memory_: tuple[Tensor, ...] = field(init=False)
    _recipes: ClassVar[Mapping[str, MetaRecipe]]

    def untrained(self, dimension: int, n_base: int, seed: int) -> EpisodicNetwork:
        """Make the network; its weights depend on the seed alone."""
        self._check_settings()
        network = self._built(dimension, n_base, seed)
        assert isinstance(network, EpisodicNetwork)
        return network

    def training(self, network: EpisodicNetwork, module: nn.Module, supporter: Supporter) -> EpisodicTraining:
        """Make the trainer of its network, alone or together with what makes its support."""
        return EpisodicTraining(network, module, supporter, self._recipe(self._recipes), self.held_out)

    def take(self, base: FeatureSet, network: EpisodicNetwork, scaling: Scaling, history: dict[str, Any]) -> None:
        """Store a network trained on base classes together with something else, as `meta_fit` would."""
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

    def _score_block(self, block: Tensor) -> Tensor:
        return self.network_.score(self.memory_, block)
