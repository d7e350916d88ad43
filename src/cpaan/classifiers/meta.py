"""What all meta-trained classifiers share: `meta_fit` on base classes, then `fit` on the examples at hand.

Tasks for meta-training: N classes, K support examples of each to learn from, and queries to be classified.

Meta-training: one gradient step for each task drawn from base classes.

What meta-trained classifiers share that are one network on standardised features.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_arrays
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator, base_classes
from cpaan.math.scaling import Scaling, fit_standardization
from cpaan.threads import of_covariance, of_layers, threads_for
from cpaan.training.bank import ClassBank
from cpaan.training.device import choose_device
from cpaan.training.progress import (
    LOGGINGS,
    History,
    Progress,
    check_count,
    check_positive,
    is_number,
    learning_rate_at,
    read_counts,
)
from cpaan.training.weights import initial_weights, load_weights

MetaClassifierT = TypeVar("MetaClassifierT", bound="MetaClassifier")


class MetaClassifier(ScoreClassifier, SavedEstimator):
    """Classifier that learns from base classes how to learn a class from a few examples.

    `meta_fit` learns from base classes, once; `fit` then takes the examples at hand, of novel classes alone or of
    novel and base classes, and can be called again and again. Where `meta_fit` was not called, `fit` meta-trains
    on what it is given, each time.

    `save` keeps what was learned from base classes and nothing of the examples at hand: what `load` gives wants `fit`
    before it predicts. One that was never given to `meta_fit` is saved with what `fit` meta-trained it on, and once
    loaded keeps that: its `fit` does not meta-train anew.

    A subclass writes `_meta_learn`, `_adapt`, `_score`, `_tensors` and `_restore`.

    Attributes
    ----------
    base_classes_ : tuple
        Names of the classes that it was meta-trained on.
    classes_ : ndarray of shape (n_classes,)
        The labels given to `fit`, sorted.
    n_features_in_ : int
        Number of features.
    """

    base_classes_: tuple[Hashable, ...]
    meta_dimension_: int
    meta_fitted_: bool

    def _meta_learn(self, base: FeatureSet) -> None:
        """Learn from base classes."""
        raise NotImplementedError

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        """Take the examples at hand; `targets` are indices into `classes_`."""
        raise NotImplementedError

    def meta_fit(self: MetaClassifierT, X_base: Any, y_base: Any) -> MetaClassifierT:
        """Learn from base classes how to learn a class from a few examples.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
            Examples of base classes.
        y_base : sequence of n labels
            Their classes, numbers or strings, as `fit` takes them. Classes of the same name in `fit` are the same
            classes. Other hashable names, such as tuples, are fine here, but no class in `fit` can then be one of them.

        Returns
        -------
        MetaClassifier
            Itself.
        """
        self._learn(FeatureSet(X_base, y_base))
        self.meta_fitted_ = True
        return self

    def fit(self: MetaClassifierT, X: Any, y: Any) -> MetaClassifierT:
        """Take the examples at hand.

        Parameters
        ----------
        X : array-like of shape (n, D)
            Examples.
        y : array-like of shape (n,)
            Their labels.

        Returns
        -------
        MetaClassifier
            Itself.
        """
        features, targets, _ = self._read_training_data(X, y, None)
        if not getattr(self, "meta_fitted_", False):
            self._learn(FeatureSet(features, self.classes_[targets]))
        if self.n_features_in_ != self.meta_dimension_:
            raise InputError(
                f"features have {self.n_features_in_} dimensions, and those of meta_fit had {self.meta_dimension_}; "
                "both must come from the same representation"
            )
        with threads_for(of_covariance(*features.shape)):
            self._adapt(features, targets)
        return self

    def _learn(self, base: FeatureSet) -> None:
        with threads_for(of_covariance(len(base), base.dimension)):
            self._meta_learn(base)
        self.base_classes_, self.meta_dimension_ = base.classes, base.dimension

    def save(self, folder: Any) -> None:
        """Write what was learned from base classes to a folder, as `model.safetensors` and `config.json`.

        The examples given to `fit` are not kept, though where `meta_fit` was not called what was learned from them is.
        """
        check_is_fitted(self, "base_classes_")
        super().save(folder)

    def _base_classes(self) -> tuple[Hashable, ...]:
        return self.base_classes_

    def _details(self) -> dict[str, Any]:
        return {"dimension": self.meta_dimension_}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self.base_classes_ = base_classes(config)
        self.meta_dimension_ = as_whole_number(config["dimension"], "dimension", 1)
        self.meta_fitted_ = True

    def _score(self, X: FloatArray) -> FloatArray:
        raise NotImplementedError


@dataclass(frozen=True)
class Task:
    """One N-way K-shot task.

    Attributes
    ----------
    support : Tensor of shape (N, K, D)
    query : Tensor of shape (N, Q, D), other examples of the same classes where these have enough
    classes : integer Tensor of shape (N,), which classes of the bank they are
    """

    support: Tensor
    query: Tensor
    classes: Tensor

    @property
    def query_labels(self) -> Tensor:
        """The class of each query within the task, for `query.flatten(0, 1)`."""
        n_classes, n_queries = self.query.shape[:2]
        return torch.arange(n_classes, device=self.query.device).repeat_interleave(n_queries)


@dataclass(frozen=True)
class TaskSampler:
    """Draws tasks from base classes.

    Parameters
    ----------
    bank : the examples
    ways : N, at most as many as there are classes
    shots : numbers K of which each task has one, drawn at random
    queries : Q
    """

    bank: ClassBank
    ways: int
    shots: tuple[int, ...]
    queries: int

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task.

        >>> examples = torch.arange(12.0).reshape(12, 1)
        >>> bank = ClassBank.from_examples(examples, torch.arange(3).repeat_interleave(4), 3)
        >>> task = TaskSampler(bank, ways=2, shots=(1,), queries=3).draw(torch.Generator().manual_seed(0))
        >>> task.support.shape, task.query.shape, task.query_labels
        (torch.Size([2, 1, 1]), torch.Size([2, 3, 1]), tensor([0, 0, 0, 1, 1, 1]))
        """
        device = self.bank.device
        ways = min(self.ways, self.bank.n_classes)
        classes = torch.randperm(self.bank.n_classes, generator=generator, device=device)[:ways]
        shots = self.shots[0]
        if len(self.shots) > 1:
            shots = self.shots[int(torch.randint(len(self.shots), (1,), generator=generator, device=device))]
        examples = self.bank.draw_distinct(classes, shots + self.queries, generator)
        # A class with fewer examples repeats them, so a query may be a support example too.
        return Task(examples[:, :shots], examples[:, shots:], classes)


@dataclass(frozen=True)
class MetaRecipe:
    """Every number of meta-training.

    Attributes
    ----------
    episodes : tasks, each one gradient step
    ways, shots, queries : N, the numbers K to draw from, and Q of a task
    learning_rate, halve_every : Adam's rate, and the episodes after which it is halved
    weight_decay : of Adam, decoupled
    """

    episodes: int
    ways: int
    shots: tuple[int, ...]
    queries: int
    learning_rate: float
    halve_every: int
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("episodes", "ways", "queries", "halve_every"):
            check_count(name, getattr(self, name))
        object.__setattr__(self, "shots", read_counts("shots", self.shots))  # as the dataclass is frozen
        check_positive("learning_rate", self.learning_rate)
        if not is_number(self.weight_decay) or not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay must be a number of at least 0, not {self.weight_decay!r}")


def meta_train(
    loss_of: Callable[[Task], dict[str, Tensor]],
    parameters: Iterable[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None = None,
) -> History:
    """Minimise the expected loss of tasks by Adam.

    Parameters
    ----------
    loss_of : gives the terms of a task's loss by name, of which the one called ``"loss"`` is minimised
    parameters : what is trained
    sampler : draws the tasks
    recipe : how long, and how fast
    generator : decides every random draw
    tell : called at every logging step
    """
    trained = list(parameters)
    rows = recipe.ways * (max(recipe.shots) + recipe.queries)
    with threads_for(of_layers(rows, trained)):
        return _take_steps(loss_of, trained, sampler, recipe, generator, tell)


def _take_steps(
    loss_of: Callable[[Task], dict[str, Tensor]],
    parameters: list[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None,
) -> History:
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    history = History()
    every = max(1, recipe.episodes // LOGGINGS)
    for episode in range(recipe.episodes):
        rate = learning_rate_at(episode, recipe.learning_rate, recipe.halve_every)
        for group in optimizer.param_groups:
            group["lr"] = rate
        terms = loss_of(sampler.draw(generator))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        history.add({name: term.detach() for name, term in terms.items()})
        if (episode + 1) % every == 0 or episode + 1 == recipe.episodes:
            losses = history.log(episode + 1)
            if tell is not None:
                tell(Progress(episode + 1, recipe.episodes, losses))
    return history


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
