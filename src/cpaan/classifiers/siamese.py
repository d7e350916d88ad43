"""Siamese networks.

G. Koch, R. Zemel, R. Salakhutdinov, *Siamese neural networks for one-shot image recognition*, ICML deep learning
workshop 2015.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cpaan.classifiers.base import IntegerArray, check_choice
from cpaan.classifiers.meta import MetaRecipe, NetworkClassifier, Task, TaskSampler, keep_few, meta_train
from cpaan.classifiers.prototypical import DIRECTIONS_FROM, DirectionEmbedding
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.bank import ClassBank
from cpaan.training.progress import History, check_count

MATCHES = ("prototype", "nearest", "mean")
PAIRS_AT_ONCE = 2**20
_START = 4.0  # initial log odds of two equal examples; those of unlike ones begin at about zero


class TwinNetwork(nn.Module):
    """log odds(x, x') = bias + Σ_j α_j |f(x)_j − f(x')_j|.

    The features have D dimensions and a mean square of about one; f is a `DirectionEmbedding`.
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        # α = stretched / √D: one learning rate suits any number of features.
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
        # For α_j of one sign, Σ_j α_j |a_j − b_j| is an L1 distance of scaled vectors.
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
    """Binary cross-entropy of pairs; pairs of one class and pairs of two classes count half each."""
    losses = functional.binary_cross_entropy_with_logits(log_odds, same.to(log_odds.dtype), reduction="none")
    kinds = [losses[mask].mean() for mask in (same, ~same) if mask.any()]
    return torch.stack(kinds).mean()


@dataclass(frozen=True, kw_only=True)
class SiameseRecipe(MetaRecipe):
    """Numbers of meta-training, the width of the twin's hidden layer, and how examples and classes are matched."""

    width: int
    match: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("width", self.width, least=0)
        check_choice("match", self.match, MATCHES)


# NOTE[paper]: there an example goes to the class of the most similar one. With several shots, prototypes are better, so
# the quick recipe takes these; and lengths are left out as in `PrototypicalNetwork`.
# With few base classes the network soon memorises which pairs match: every step beyond these costs accuracy on novel
# classes.
QUICK = SiameseRecipe(
    episodes=100, ways=40, shots=(1,), queries=1, learning_rate=1e-4, halve_every=50, width=256, match="prototype"
)
# NOTE[paper]: published are batches of 64 + 64 pairs, 200 epochs of 150,000 pairs, a rate that falls by 1 % after each
# and 4,096 units; the rate itself was searched for, with momentum, and here is Adam's.
PAPER = replace(QUICK, episodes=234_000, ways=64, halve_every=81_000, width=4096, match="nearest")
RECIPES = {"quick": QUICK, "paper": PAPER}


@dataclass(kw_only=True, eq=False, repr=False)
class SiameseNetwork(NetworkClassifier):
    """Classify by a twin network's odds that an example and those of a class belong together.

    P(same given x, x') = σ(bias + Σ_j α_j |f(x)_j − f(x')_j|)

    score(c given x) = the log odds of x and the class's prototype, of x and the most similar example of the class, or
    their mean over the examples of the class; P(c given x) = softmax over c of the scores

    The twin f starts as the identity on standardised features; from 32 features on, only their direction is kept. α, f
    and the bias are trained by binary cross-entropy on pairs of base examples, where pairs of one class and pairs of
    two count half each.

    Parameters
    ----------
    recipe : {"quick", "paper"}
        Source of the numbers below: under a minute on two cores, or the published ones as far as they are known.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    match : {"prototype", "nearest", "mean"}, optional
        What an example is compared with: the mean of f over the class ("quick"), its most similar example ("paper",
        the published rule for one shot) or all its examples, averaged. Among many similar examples the nearest is near
        for any query, which favours base classes; the prototype is best with several shots and cheapest; the mean is
        fairest to one-shot classes among well-known ones.
    support_per_class : int
        Maximum number of examples of a class to compare with, drawn at random, if single ones are compared.
    width, episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `SiameseRecipe`. A step compares `shots` examples of each of `ways`
        classes with `queries` others of each.

    Attributes
    ----------
    network_ : torch.nn.Module
        The twin network.
    history_, base_classes_, classes_
        See `cpaan.classifiers.meta.NetworkClassifier`.

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

    match: str | None = None
    support_per_class: int = 20
    width: int | None = None
    network_: TwinNetwork = field(init=False)
    memory_: Tensor = field(init=False)
    memory_labels_: Tensor = field(init=False)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return TwinNetwork(dimension, self._recipe(RECIPES).width, directions=dimension >= DIRECTIONS_FROM)

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        recipe = self._recipe(RECIPES)

        def loss_of(task: Task) -> Tensor:
            log_odds = network(task.support.flatten(0, 1), task.query.flatten(0, 1))
            support_labels = task.query_labels[:: task.query.shape[1]].repeat_interleave(task.support.shape[1])
            return balanced_pair_loss(log_odds, support_labels.unsqueeze(1) == task.query_labels)

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

    def _rows_at_once(self) -> int:
        return max(1, PAIRS_AT_ONCE // len(self.memory_))

    def _score_block(self, block: Tensor) -> Tensor:
        n_classes = len(self.classes_)
        log_odds = self.network_.compare(self.network_.embed(block), self.memory_)
        if self._recipe(RECIPES).match == "nearest":
            lowest = log_odds.new_full((len(block), n_classes), -torch.inf)
            return lowest.scatter_reduce(1, self.memory_labels_.expand(len(block), -1), log_odds, "amax")
        sums = log_odds.new_zeros(len(block), n_classes).index_add(1, self.memory_labels_, log_odds)
        return sums / class_counts(self.memory_labels_, n_classes)
