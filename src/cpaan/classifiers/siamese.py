"""Siamese networks.

G. Koch, R. Zemel, R. Salakhutdinov, *Siamese neural networks for one-shot image recognition*, ICML deep learning
workshop 2015.

The twin network that tells whether two examples are of one class.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cpaan.classifiers.base import FloatArray, IntegerArray
from cpaan.classifiers.meta import MetaRecipe, NetworkClassifier, Task, TaskSampler, keep_few, meta_train
from cpaan.classifiers.prototypical import DIRECTIONS_FROM, DirectionEmbedding
from cpaan.errors import InputError
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.bank import ClassBank
from cpaan.training.progress import History, Progress, check_count

# Odds at the start, of two examples at no distance and at the mean distance of unlike ones: e⁴ and about one.
_START = 4.0


class TwinNetwork(nn.Module):
    """log odds(x, x') = bias + Σ_j α_j |f(x)_j − f(x')_j|.

    Parameters
    ----------
    dimension : D, of features with a mean square of about one
    width, directions : of f, see `DirectionEmbedding`

    >>> network = TwinNetwork(2, 4, directions=False)
    >>> same = torch.tensor([[1.0, 2.0]])
    >>> bool(network(same, same) == network.bias)
    True
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        # α = stretched / √D, so that one rate of learning suits any number of features.
        self.stretched = nn.Parameter(torch.full((dimension,), -_START / math.sqrt(dimension)))
        self.bias = nn.Parameter(torch.tensor(_START))

    @property
    def importance(self) -> Tensor:
        """α, of shape (D,)."""
        return self.stretched / math.sqrt(len(self.stretched))

    def embed(self, features: Tensor) -> Tensor:
        """Give f(x) for features of shape (…, D)."""
        embedded: Tensor = self.embedding(features)
        return embedded

    def compare(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the log odds of every pair of embedded examples, (n, D) and (m, D) to (n, m)."""
        # Σ_j α_j |a_j − b_j| is an L1 distance of scaled vectors once the α_j of either sign are apart.
        log_odds = self.bias.expand(len(left), len(right))
        for sign in (1, -1):
            scale = (sign * self.importance).clamp_min(0)
            if bool((scale > 0).any()):  # most often all α are negative
                log_odds = log_odds + sign * torch.cdist(left * scale, right * scale, p=1)
        return log_odds

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the log odds of every pair of examples."""
        return self.compare(self.embed(left), self.embed(right))


def balanced_pair_loss(log_odds: Tensor, same: Tensor) -> Tensor:
    """Binary cross-entropy of pairs, where those of one class and those of two count half each.

    >>> odds = torch.zeros(3, 3)
    >>> round(float(balanced_pair_loss(odds, torch.eye(3, dtype=torch.bool))), 4)  # log 2
    0.6931
    """
    losses = functional.binary_cross_entropy_with_logits(log_odds, same.to(log_odds.dtype), reduction="none")
    kinds = [losses[mask].mean() for mask in (same, ~same) if mask.any()]
    return torch.stack(kinds).mean()


MATCHES = ("prototype", "nearest", "mean")
PAIRS_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class SiameseRecipe(MetaRecipe):
    """Numbers of meta-training, with the width of the twin's hidden layer and how examples and classes are matched."""

    width: int
    match: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("width", self.width, least=0)
        if self.match not in MATCHES:
            raise InputError(f"match must be one of {', '.join(MATCHES)}, not {self.match!r}")


# NOTE[paper]: there an example goes to the class of the most similar one. With several shots, prototypes are better, so
# the quick recipe takes these; and lengths are left out as in `PrototypicalNetwork`.
# Whether two examples are of one class is soon learned by heart where base classes are few: every step beyond these
# costs accuracy on novel classes.
QUICK = SiameseRecipe(
    episodes=100, ways=40, shots=(1,), queries=1, learning_rate=1e-4, halve_every=50, width=256, match="prototype"
)
# NOTE[paper]: published are batches of 64 + 64 pairs, 200 epochs of 150,000 pairs, a rate that falls by 1 % after each
# and 4,096 units; the rate itself was searched for, with momentum, and here is Adam's.
PAPER = SiameseRecipe(
    episodes=234_000,
    ways=64,
    shots=(1,),
    queries=1,
    learning_rate=1e-4,
    halve_every=81_000,
    width=4096,
    match="nearest",
)
RECIPES = {"quick": QUICK, "paper": PAPER}


class SiameseNetwork(NetworkClassifier):
    """Classify by the odds that an example and those of a class are of one class, as a twin network tells them.

    P(same given x, x') = σ(bias + Σ_j α_j |f(x)_j − f(x')_j|)

    score(c given x) = the log odds of x and the class's prototype, of x and the most similar example of the class, or
    their mean over the examples of the class; P(c given x) = softmax over c of the scores

    The twin f begins as the identity on standardised features, of which from 32 on only the direction is kept; α, f and
    the bias are trained by binary cross-entropy on pairs of base examples, where pairs of one class and pairs of two
    count half each.

    Parameters
    ----------
    recipe : {"quick", "paper"}
        Where the numbers below come from: under a minute on two cores, or the published ones as far as they are known.
    random_state : int, RandomState or None
        Decides every random draw.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    match : {"prototype", "nearest", "mean"}, optional
        What of a class an example is compared with: the mean of f over its examples ("quick"), the most similar one
        ("paper", the published rule for one shot) or all of them, averaged. Among many similar examples the nearest is
        near for any query, which favours base classes; the prototype is right with several shots and cheapest; the mean
        is fairest to one-shot classes among well-known ones.
    support_per_class : int
        Most examples of a class to compare with, drawn at random, where single ones are compared.
    width, episodes, ways, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe, by name; see `SiameseRecipe`. A step compares one example of each of `ways` classes with
        `queries` others of each.

    Attributes
    ----------
    network_ : torch.nn.Module
        The twin network.
    history_ : dict
        The episodes of the logging steps and the mean loss at each.
    base_classes_ : tuple
        Names of the classes that it was meta-trained on.
    classes_ : ndarray of shape (n_classes,)
        The labels given to `fit`, sorted.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = 4 * rng.normal(size=(12, 1, 5))
    >>> X_base = (centers[:10] + rng.normal(size=(10, 20, 5))).reshape(-1, 5)
    >>> classifier = SiameseNetwork(episodes=5, random_state=0).meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    network_: TwinNetwork
    memory_: Tensor
    memory_labels_: Tensor

    def __init__(
        self,
        *,
        recipe: str = "quick",
        random_state: Any = None,
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        match: str | None = None,
        support_per_class: int = 20,
        width: int | None = None,
        episodes: int | None = None,
        ways: int | None = None,
        queries: int | None = None,
        learning_rate: float | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
    ) -> None:
        self.recipe = recipe
        self.random_state = random_state
        self.device = device
        self.tell = tell
        self.match = match
        self.support_per_class = support_per_class
        self.width = width
        self.episodes = episodes
        self.ways = ways
        self.queries = queries
        self.learning_rate = learning_rate
        self.halve_every = halve_every
        self.weight_decay = weight_decay

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return TwinNetwork(dimension, self._recipe(RECIPES).width, directions=dimension >= DIRECTIONS_FROM)

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        recipe = self._recipe(RECIPES)

        def loss_of(task: Task) -> dict[str, Tensor]:
            log_odds = network(task.support.flatten(0, 1), task.query.flatten(0, 1))
            support_labels = task.query_labels[:: task.query.shape[1]].repeat_interleave(task.support.shape[1])
            return {"loss": balanced_pair_loss(log_odds, support_labels.unsqueeze(1) == task.query_labels)}

        sampler = TaskSampler(bank, recipe.ways, recipe.shots, recipe.queries)
        return meta_train(loss_of, network.parameters(), sampler, recipe, generator, self.tell)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        check_count("support_per_class", self.support_per_class)
        n_classes = len(self.classes_)
        if self._recipe(RECIPES).match == "prototype":
            labels = torch.as_tensor(targets.astype(np.int64))
            self.memory_ = prototypes(self._embedded(features), labels, n_classes)
            self.memory_labels_ = torch.arange(n_classes)
            return
        kept = keep_few(targets, self.support_per_class, self._seed(1))
        self.memory_ = self._embedded(features[kept])
        self.memory_labels_ = torch.as_tensor(targets[kept].astype(np.int64))

    def _score(self, X: FloatArray) -> FloatArray:
        found: FloatArray = torch.cat(list(self._score_blocks(X))).numpy()
        return found

    def _score_blocks(self, X: FloatArray) -> Iterator[Tensor]:
        n_classes = len(self.classes_)
        nearest = self._recipe(RECIPES).match == "nearest"
        for block in self._standardized(X).split(max(1, PAIRS_AT_ONCE // len(self.memory_))):
            log_odds = self.network_.compare(self.network_.embed(block), self.memory_)
            empty = log_odds.new_full((len(block), n_classes), -torch.inf if nearest else 0.0)
            if nearest:
                yield empty.scatter_reduce(1, self.memory_labels_.expand(len(block), -1), log_odds, "amax")
            else:
                counts = class_counts(self.memory_labels_, n_classes)
                yield empty.index_add(1, self.memory_labels_, log_odds) / counts
