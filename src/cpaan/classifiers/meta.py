"""Meta-learned classifiers: `meta_fit` on base classes, then `fit` on the examples at hand.

Meta-training draws tasks from base classes, each with N classes, K support examples of each to learn from and Q queries
to classify, and takes one gradient step for each task.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from cpaan.classifiers.base import FloatArray, IntegerArray, ScoreClassifier, check_not_negative
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
    learning_rate_at,
    read_counts,
)
from cpaan.training.weights import initial_weights, load_weights

MetaClassifierT = TypeVar("MetaClassifierT", bound="MetaClassifier")
RecipeT = TypeVar("RecipeT", bound="MetaRecipe")
NetworkT = TypeVar("NetworkT", bound=nn.Module)
Tell: TypeAlias = Callable[[Progress], None] | None

ROWS_AT_ONCE = 1024


class MetaClassifier(ScoreClassifier, SavedEstimator):
    """Classifier that learns from base classes how to learn a class from a few examples.

    `meta_fit` learns from base classes, once; `fit` then takes the examples at hand, of novel classes alone or of novel
    and base classes, and can be called repeatedly. Without `meta_fit`, every call to `fit` meta-trains on its examples.

    `save` keeps what was learned from base classes and none of the examples at hand: a loaded classifier needs `fit`
    before it predicts. If `meta_fit` was never called, `save` keeps what the last `fit` meta-learned, and `fit` of the
    loaded classifier does not meta-train again.

    A subclass implements `_meta_learn`, `_adapt`, `_score`, `_tensors` and `_restore`.

    Attributes
    ----------
    base_classes_ : tuple
        Names of the classes used for meta-training.
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

    def _adapt(self, features: NDArray[Any], targets: IntegerArray) -> None:
        """Take the examples at hand; `targets` are indices into `classes_`."""
        raise NotImplementedError

    def meta_fit(self: MetaClassifierT, X_base: Any, y_base: Any) -> MetaClassifierT:
        """Learn from base classes how to learn a class from a few examples.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
            Examples of base classes.
        y_base : sequence of n labels
            Their classes, numbers or strings as in `fit`, where the same name means the same class. Other hashable
            names, such as tuples, are allowed, but no class in `fit` can match them.
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
        """
        features, targets, _ = self._read_training_data(X, y, None)
        if not getattr(self, "meta_fitted_", False):
            self._learn(FeatureSet(features, self.classes_[targets]))
        if self.n_features_in_ != self.meta_dimension_:
            raise InputError(
                f"features have {self.n_features_in_} dimensions, but those of meta_fit had {self.meta_dimension_}; "
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

        The examples given to `fit` are not kept; without `meta_fit`, what was meta-learned from them is.
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


@dataclass(frozen=True)
class Task:
    """One N-way K-shot task."""

    support: Tensor  # (N, K, D)
    query: Tensor  # (N, Q, D), other examples of the same classes if these have enough
    classes: Tensor  # (N,), indices of the classes in the bank

    @property
    def query_labels(self) -> Tensor:
        """The class of each query within the task, for `query.flatten(0, 1)`."""
        n_classes, n_queries = self.query.shape[:2]
        return torch.arange(n_classes, device=self.query.device).repeat_interleave(n_queries)


@dataclass(frozen=True)
class TaskSampler:
    """Draws tasks from base classes."""

    bank: ClassBank
    ways: int  # N, or all classes if there are fewer
    shots: tuple[int, ...]  # from which each task draws its K
    queries: int  # Q

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task."""
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
    """Every number of meta-training."""

    episodes: int  # tasks, each one gradient step
    ways: int  # N of a task
    shots: tuple[int, ...]  # the numbers K to draw from
    queries: int  # Q of a task
    learning_rate: float  # of Adam
    halve_every: int  # episodes after which the learning rate is halved
    weight_decay: float = 0.0  # of Adam, decoupled

    def __post_init__(self) -> None:
        for name in ("episodes", "ways", "queries", "halve_every"):
            check_count(name, getattr(self, name))
        object.__setattr__(self, "shots", read_counts("shots", self.shots))  # as the dataclass is frozen
        check_positive("learning_rate", self.learning_rate)
        check_not_negative("weight_decay", self.weight_decay)


def meta_train(
    loss_of: Callable[[Task], Tensor],
    parameters: Iterable[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Tell = None,
) -> History:
    """Minimise the expected loss of tasks by Adam; `generator` decides every random draw."""
    trained = list(parameters)
    rows = recipe.ways * (max(recipe.shots) + recipe.queries)
    with threads_for(of_layers(rows, trained)):
        return _take_steps(loss_of, trained, sampler, recipe, generator, tell)


def _take_steps(
    loss_of: Callable[[Task], Tensor],
    parameters: list[Tensor],
    sampler: TaskSampler,
    recipe: MetaRecipe,
    generator: torch.Generator,
    tell: Tell,
) -> History:
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    history = History()
    every = max(1, recipe.episodes // LOGGINGS)
    for episode in range(recipe.episodes):
        rate = learning_rate_at(episode, recipe.learning_rate, recipe.halve_every)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(sampler.draw(generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.add({"loss": loss.detach()})
        if (episode + 1) % every == 0 or episode + 1 == recipe.episodes:
            losses = history.log(episode + 1)
            if tell is not None:
                tell(Progress(episode + 1, recipe.episodes, losses))
    return history


def tell_as_part(tell: Tell, before: int, episodes: int) -> Tell:
    """Report the progress of one stage as that of a longer run, `before` episodes into it."""
    if tell is None:
        return None
    return lambda progress: tell(Progress(before + progress.episode, episodes, progress.losses))


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkClassifier(MetaClassifier):
    """Meta-learned classifier that is one network on standardised features.

    The network is trained in single precision on any device, and kept and used in double precision on the CPU: `fit`
    and `predict` take little time, and results then depend neither on the device nor on how rows are grouped.

    The constructor parameters that all of them share are declared here once. A subclass adds its own, as a dataclass,
    and implements `_build`, `_train`, `_adapt` and `_score_block`.

    Parameters
    ----------
    recipe : str
        Source of the numbers below.
    random_state : int, RandomState or None
        Seed of every random draw.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        What was learned.
    scaling_ : Scaling
        The change of units that maps features to the input of the network.
    history_ : dict
        The episodes of the logging steps and the mean loss at each.
    base_classes_ : tuple
        Names of the classes used for meta-training.
    classes_ : ndarray of shape (n_classes,)
        The labels given to `fit`, sorted.
    """

    recipe: str = "quick"
    random_state: Any = None
    device: str = "auto"
    tell: Tell = None
    episodes: int | None = None
    ways: int | None = None
    shots: tuple[int, ...] | None = None
    queries: int | None = None
    learning_rate: float | None = None
    halve_every: int | None = None
    weight_decay: float | None = None
    network_: nn.Module = field(init=False)
    scaling_: Scaling = field(init=False)
    history_: dict[str, Any] = field(init=False)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        """Make the untrained network, with weights from torch's global generator, seeded around the call."""
        raise NotImplementedError

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        """Train the network, in place, on standardised examples."""
        raise NotImplementedError

    def _score_block(self, block: Tensor) -> Tensor:
        """Score every class for a block of standardised examples."""
        raise NotImplementedError

    def _score(self, X: FloatArray) -> FloatArray:
        blocks = self._standardized(X).split(self._rows_at_once())
        found: FloatArray = torch.cat([self._score_block(block) for block in blocks]).numpy()
        return found

    def _rows_at_once(self) -> int:
        return ROWS_AT_ONCE

    def _meta_learn(self, base: FeatureSet) -> None:
        seed, device = self._seed(0), choose_device(self.device)
        features, labels = base.to_torch()
        scaling = fit_standardization(features.double())
        bank = ClassBank.from_examples(scaling.apply(features.double()).float(), labels, base.n_classes)
        network = self._built(base.dimension, base.n_classes, seed).to(device)
        history = self._train(network, bank.to(device), torch.Generator(device).manual_seed(seed))
        # Last, so that an error on the way changes nothing.
        self.network_, self.scaling_ = at_rest(network), scaling
        self.history_ = {"episode": history.episodes, **history.losses}

    def _built(self, dimension: int, n_base: int, seed: int) -> nn.Module:
        with initial_weights(seed):
            return self._build(dimension, n_base)

    def _standardized(self, features: NDArray[Any]) -> Tensor:
        """Convert examples to the network's units, in double precision."""
        return self.scaling_.apply(torch.tensor(features, dtype=torch.float64))

    def _embedded(self, features: NDArray[Any]) -> Tensor:
        """Embed examples one block at a time: the hidden layers of a wide network take the most memory."""
        starts = range(0, len(features), ROWS_AT_ONCE)
        blocks = (self._standardized(features[start : start + ROWS_AT_ONCE]) for start in starts)
        return torch.cat([self.network_.embed(block) for block in blocks])  # type: ignore[operator]

    def _recipe(self, recipes: Mapping[str, RecipeT]) -> RecipeT:
        """Give the named recipe with the numbers that the constructor overrides."""
        if self.recipe not in recipes:
            raise InputError(f"unknown recipe {self.recipe!r}; choose one of {', '.join(recipes)}")
        chosen = recipes[self.recipe]
        given = {each.name: getattr(self, each.name, None) for each in fields(chosen)}
        return replace(chosen, **{name: value for name, value in given.items() if value is not None})

    def _details(self) -> dict[str, Any]:
        return {**super()._details(), "history": self.history_}

    def _tensors(self) -> dict[str, Tensor]:
        # The weights were trained in single precision: nothing is lost.
        learned = {f"network.{name}": value.float() for name, value in self.network_.state_dict().items()}
        factor = torch.tensor(self.scaling_.factor, dtype=torch.float64)
        return {**learned, "origin": self.scaling_.origin, "factor": factor}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        head = "network."
        weights = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
        build = partial(self._built, self.meta_dimension_, len(self.base_classes_), seed=0)
        self.network_ = at_rest(load_weights(build, weights))
        require_arrays(tensors, {"origin": "D float64", "factor": "float64"}, D=self.meta_dimension_)
        self.scaling_ = Scaling(tensors["origin"], positive_number(float(tensors["factor"]), "factor"))
        self.history_ = config["history"]


def at_rest(network: NetworkT) -> NetworkT:
    """Convert a trained network to how it is kept and used: in double precision on the CPU."""
    return network.cpu().double().eval().requires_grad_(False)


def keep_few(targets: NDArray[np.intp], most: int, seed: int) -> NDArray[np.intp]:
    """Draw at most so many examples of each class; give their rows, in order."""
    order = np.random.default_rng(seed).permutation(len(targets))
    grouped = order[np.argsort(targets[order], kind="stable")]
    counts = np.bincount(targets)
    rank = np.arange(len(targets)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(grouped[rank < most])
