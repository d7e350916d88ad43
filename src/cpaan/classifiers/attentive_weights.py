"""Dynamic few-shot learning without forgetting: attention over base classes makes weights for novel ones.

S. Gidaris, N. Komodakis, *Dynamic few-shot visual learning without forgetting*, CVPR 2018.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cpaan.classifiers.base import IntegerArray
from cpaan.classifiers.meta import MetaRecipe, NetworkClassifier, Task, TaskSampler, meta_train, tell_as_part
from cpaan.classifiers.prototypical import ResidualEmbedding
from cpaan.math.prototypes import prototypes
from cpaan.training.bank import ClassBank
from cpaan.training.progress import History, check_count

START_SCALE, START_ATTENTION_SCALE = 10.0, 30.0


class AttentiveWeights(nn.Module):
    """score(c given x) = τ cos(z, w_c), z = f(x), with a weight w_b for each base class.

    For a novel class with examples z_1 … z_K, where z̄ and w̄ are of length one,

    w = φ_avg ⊙ (1/K) Σ_i z̄_i + φ_att ⊙ (1/K) Σ_i Σ_b a_ib w̄_b,  a_i = softmax over b of γ cos(Q z̄_i, k_b)

    f is a `ResidualEmbedding`, which starts as the identity.
    """

    def __init__(self, dimension: int, n_base: int, *, width: int) -> None:
        super().__init__()
        self.embedding = ResidualEmbedding(dimension, width)
        self.base_weights = nn.Parameter(torch.zeros(n_base, dimension))
        self.keys = nn.Parameter(torch.zeros(n_base, dimension))
        self.query = nn.Parameter(torch.eye(dimension))
        self.average_gain = nn.Parameter(torch.ones(dimension))
        self.attention_gain = nn.Parameter(torch.ones(dimension))
        self.scale = nn.Parameter(torch.tensor(START_SCALE))
        self.attention_scale = nn.Parameter(torch.tensor(START_ATTENTION_SCALE))

    def imprint(self, means: Tensor) -> None:
        """Set the initial weights and keys, (B, D): the mean of each base class's z̄."""
        # NOTE[paper]: keys start at random there; at the classes that they stand for, attention is useful at once.
        with torch.no_grad():
            self.base_weights.copy_(means)
            self.keys.copy_(means)

    def embed(self, features: Tensor) -> Tensor:
        """Give z̄ for features of shape (…, D)."""
        return normalize(self.embedding(features), dim=-1)

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Score classes with the given weights, (n, D) and (C, D) to (n, C)."""
        return self.scale * self.embed(features) @ normalize(weights, dim=-1).T

    def attend(self, examples: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Give Σ_b a_b w̄_b for each embedded example, (…, D), over the base classes that are not excluded (B,)."""
        queries = normalize(examples @ self.query.T, dim=-1)
        similarity = self.attention_scale * queries @ normalize(self.keys, dim=-1).T
        if excluded is not None:
            similarity = similarity.masked_fill(excluded, -torch.inf)
        return similarity.softmax(-1) @ normalize(self.base_weights, dim=-1)

    def generate(self, average: Tensor, attended: Tensor) -> Tensor:
        """Combine the mean of z̄_i and the mean of what they attend to, (…, D)."""
        return self.average_gain * average + self.attention_gain * attended


@dataclass(frozen=True, kw_only=True)
class AttentiveWeightsRecipe(MetaRecipe):
    """Numbers of both stages: episodes of the first, and the width of f's hidden layer (0: none)."""

    base_episodes: int
    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("base_episodes", self.base_episodes)
        check_count("width", self.width, least=0)


QUICK = AttentiveWeightsRecipe(
    base_episodes=300, episodes=300, ways=30, shots=(1, 5), queries=2, learning_rate=1e-3, halve_every=100, width=0
)
# NOTE[paper]: tasks with five novel classes of one or five shots are published, for mini-ImageNet, and 60 epochs of
# SGD there; the features, which it trains in the first stage, are given here.
PAPER = replace(QUICK, base_episodes=60_000, episodes=60_000, ways=10, queries=3, halve_every=20_000)
RECIPES = {"quick": QUICK, "paper": PAPER}


@dataclass(kw_only=True, eq=False, repr=False)
class AttentiveWeightGenerator(NetworkClassifier):
    """Classify by cosine, with trained weights for base classes and generated ones for all others.

    score(c given x) = τ cos(z, w_c),  P(c given x) = softmax over c of the scores

    w_c = φ_avg ⊙ (1/K) Σ_i z̄_i + φ_att ⊙ (1/K) Σ_i Σ_b a_ib w̄_b,  a_i = softmax over b of γ cos(Q z̄_i, k_b)

    for a novel class with examples z_1 … z_K, where z̄ and w̄ are of length one and b runs over the base classes. In the
    first stage w_b and τ are trained on base examples, from the class means. In the second, half of the classes of each
    task play novel ones: they have no part in the attention and get generated weights, and the loss is over queries of
    all classes of the task among all base classes; φ, Q, γ and k_b are learned, and τ and w_b trained on.

    Parameters
    ----------
    recipe : {"quick", "paper"}
        Source of the numbers below: under a minute on two cores, or the published ones as far as they are known.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    base_episodes, width, episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `AttentiveWeightsRecipe`. With a `width` the first stage also learns a
        transform of the features, z = f(x), which starts as the identity.

    Attributes
    ----------
    network_ : torch.nn.Module
        The base weights and the generator.
    weights_ : ndarray of shape (n_classes, D)
        w̄_c in the order of `classes_`: learned for base classes, generated for others.
    history_ : dict
        The episodes of the logging steps of the second stage and the mean loss at each.
    base_classes_ : tuple
        Names of the classes used for meta-training.
    classes_ : ndarray of shape (n_classes,)
        The labels given to `fit`, sorted.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = 4 * rng.normal(size=(12, 1, 5))
    >>> X_base = (centers[:10] + rng.normal(size=(10, 20, 5))).reshape(-1, 5)
    >>> classifier = AttentiveWeightGenerator(episodes=5, base_episodes=5, random_state=0)
    >>> classifier = classifier.meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    base_episodes: int | None = None
    width: int | None = None
    network_: AttentiveWeights = field(init=False)
    weights_: npt.NDArray[np.float64] = field(init=False)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return AttentiveWeights(dimension, n_base, width=self._recipe(RECIPES).width)

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        assert isinstance(network, AttentiveWeights)
        recipe = self._recipe(RECIPES)
        labels = torch.arange(bank.n_classes, device=bank.features.device).repeat_interleave(bank.counts)
        with torch.no_grad():
            network.imprint(normalize(prototypes(network.embed(bank.features), labels, bank.n_classes), dim=1))
        first = replace(recipe, episodes=recipe.base_episodes)
        everything = TaskSampler(bank, bank.n_classes, (1,), recipe.queries)
        total = recipe.base_episodes + recipe.episodes
        tell = tell_as_part(self.tell, 0, total)
        history = meta_train(partial(base_loss, network), network.parameters(), everything, first, generator, tell)
        if bank.n_classes == 1:  # none is left to play a novel class
            return history
        generated = [value for name, value in network.named_parameters() if not name.startswith("embedding.")]
        sampler = TaskSampler(bank, max(2, recipe.ways), recipe.shots, recipe.queries)
        tell = tell_as_part(self.tell, recipe.base_episodes, total)
        return meta_train(partial(generator_loss, network), generated, sampler, recipe, generator, tell)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        places = {name: index for index, name in enumerate(self.base_classes_)}
        known = [places.get(name, -1) for name in self.classes_.tolist()]
        novel = np.flatnonzero(np.array(known) < 0)
        weights = normalize(self.network_.base_weights[known], dim=1)  # those of novel classes are replaced
        if len(novel):
            rows = np.flatnonzero(np.isin(targets, novel))
            labels = torch.as_tensor(np.searchsorted(novel, targets[rows]))
            examples = self.network_.embed(self._standardized(features[rows]))
            average = prototypes(examples, labels, len(novel))
            attended = prototypes(self.network_.attend(examples), labels, len(novel))
            weights[torch.as_tensor(novel)] = normalize(self.network_.generate(average, attended), dim=1)
        self.weights_ = weights.numpy()

    def _score_block(self, block: Tensor) -> Tensor:
        return self.network_.scores(block, torch.as_tensor(self.weights_))


def base_loss(network: AttentiveWeights, task: Task) -> Tensor:
    """Give the cross-entropy of queries among all base classes, by their trained weights."""
    scores = network.scores(task.query.flatten(0, 1), network.base_weights)
    return cross_entropy(scores, task.classes[task.query_labels])


def generator_loss(network: AttentiveWeights, task: Task) -> Tensor:
    """Give the cross-entropy of queries among all base classes, of which half of the task's have generated weights."""
    novel = task.classes[: len(task.classes) // 2]
    excluded = torch.zeros(len(network.base_weights), dtype=torch.bool, device=novel.device)
    excluded[novel] = True
    examples = network.embed(task.support[: len(novel)])
    generated = network.generate(examples.mean(1), network.attend(examples, excluded).mean(1))
    weights = network.base_weights.index_copy(0, novel, generated)
    return cross_entropy(network.scores(task.query.flatten(0, 1), weights), task.classes[task.query_labels])
