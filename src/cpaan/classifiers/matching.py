"""Matching networks and prototype matching networks, with embeddings that know the whole support.

O. Vinyals, C. Blundell, T. Lillicrap, K. Kavukcuoglu and D. Wierstra, *Matching networks for one shot learning*,
NeurIPS 2016; Y.-X. Wang, R. Girshick, M. Hebert and B. Hariharan, *Low-shot learning from imaginary data*, CVPR 2018.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.classifiers.base import IntegerArray
from cpaan.classifiers.episodic import PAPER, EpisodicClassifier, EpisodicNetwork
from cpaan.classifiers.meta import MetaRecipe, keep_few
from cpaan.classifiers.prototypical import ResidualEmbedding
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.progress import check_count

STEPS = 5  # of the attention LSTM
_START = 10.0  # sharpness of attention: the scale of cosines before the softmax


class SupportContext(nn.Module):
    """g(x_i, S) = x_i + U (→h_i + ←h_i), with the states of an LSTM that reads the support in both directions.

    NOTE[paper]: U is ours, and starts at zero: a minute of training does not teach a random LSTM to leave good features
    alone. It also lets the LSTM be narrower than the features, which in the paper it is not.
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, width, bidirectional=True)
        self.output = _zero_linear(width, dimension)

    def forward(self, support: Tensor) -> Tensor:
        """Embed a support (n, D) in its order."""
        states: Tensor = self.lstm(support)[0]
        forward, backward = states.chunk(2, dim=-1)
        added: Tensor = self.output(forward + backward)
        return support + added


class QueryContext(nn.Module):
    """f(x, S) = h_5: an LSTM that looks at the support again at each of five steps.

    h_0 = x,  r_k = Σ_i a(h_k, g_i) g_i,  ĥ_{k+1}, c_{k+1} = LSTM([x, r_k], ĥ_k, c_k),  h_{k+1} = x + U ĥ_{k+1}

    NOTE[paper]: a is the softmax of scaled cosines, not of dot products, which at most scales of features are one-hot;
    U as in `SupportContext`. The LSTM continues from ĥ_k, with r_k in its input; there from [h_k, r_k], with the skip
    term x in h_k.
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.of_query = nn.Linear(dimension, 4 * width)
        self.of_read = nn.Linear(dimension, 4 * width, bias=False)
        self.of_hidden = nn.Linear(width, 4 * width, bias=False)
        self.output = _zero_linear(width, dimension)
        self.log_scale = nn.Parameter(torch.tensor(math.log(_START)))

    def forward(self, query: Tensor, support: Tensor, log_weights: Tensor) -> Tensor:
        """Embed queries (n, D), given the embedded support (m, D) and the logarithms of its weights (m,)."""
        state = query
        hidden = memory = query.new_zeros(len(query), self.width)
        gates_of_query = self.of_query(query)  # the same at every step
        for _ in range(STEPS):
            attention = torch.softmax(cosines(state, support) * self.log_scale.exp() + log_weights, dim=-1)
            gates = gates_of_query + self.of_read(attention @ support) + self.of_hidden(hidden)
            hidden, memory = _lstm_step(gates, memory)
            state = query + self.output(hidden)
        return state


def _lstm_step(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Give the next state and memory of an LSTM, with the gates in torch's order."""
    enter, forget, value, leave = gates.chunk(4, dim=-1)
    memory = forget.sigmoid() * memory + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * memory.tanh(), memory


def _zero_linear(width: int, dimension: int) -> nn.Linear:
    layer = nn.Linear(width, dimension, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


class ContextualNetwork(EpisodicNetwork):
    """A residual embedding e, then the contexts f and g; with a `context_width` of 0 these are e alone."""

    def __init__(self, dimension: int, width: int, *, context_width: int) -> None:
        super().__init__()
        self.embedding = ResidualEmbedding(dimension, width)
        self.of_support = SupportContext(dimension, context_width) if context_width else None
        self.of_query = QueryContext(dimension, context_width) if context_width else None
        self.log_scale = nn.Parameter(torch.tensor(math.log(_START)))


class MatchingScores(ContextualNetwork):
    """log P(k given x) with P(k given x) = Σ_i a(x, x_i) [y_i = k], a = softmax_i of exp(s) cos(f(x), g(x_i)).

    NOTE[paper]: every class counts the same however many examples it has: example i weighs 1 / n_k, as if those of
    small classes were repeated. There all examples weigh the same.
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples without context."""
        embedded: Tensor = self.embedding(features)
        return embedded

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give g of an embedded support, class after class, with labels and counts of the classes."""
        order = torch.argsort(labels, stable=True)
        embedded = embedded[order]
        if self.of_support is not None:
            embedded = self.of_support(embedded)
        return embedded, labels[order], class_counts(labels, n_classes)

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Give log P of each class for each query: (n, D) to (n, classes)."""
        support, labels, counts = memory
        log_weights = -counts.to(query.dtype).log()[labels]
        embedded = self.embed(query)
        if self.of_query is not None:
            embedded = self.of_query(embedded, support, log_weights)
        scale = self.log_scale.exp()
        # Cosines are at most one, so the exponentials neither overflow nor, for a scale below 300, vanish together.
        attention = torch.softmax((cosines(embedded, support) - 1) * scale + log_weights, dim=-1)
        summed = attention.new_zeros(len(query), len(counts)).index_add(1, labels, attention)
        return summed.clamp_min(torch.finfo(summed.dtype).tiny).log()


class PrototypeMatchingScores(ContextualNetwork):
    """score(k given x) = exp(s) cos(f(x), g(c_k)), with c_k the mean of the embedded examples of class k.

    The contextual embeddings see one prototype for each class, so their length is the number of classes.

    NOTE[paper]: only the direction of features is kept, whatever their number; there, features are taken as they are.
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed the direction of examples: their length would let one outweigh the others of its class."""
        embedded: Tensor = self.embedding(normalize(features, dim=-1) * math.sqrt(features.shape[-1]))
        return embedded

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give g of the prototypes, (classes, D), as the memory of an embedded support."""
        means = prototypes(embedded, labels, n_classes)
        return (means if self.of_support is None else self.of_support(means),)

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query: (n, D) to (n, classes)."""
        (classes,) = memory
        embedded = self.embed(query)
        if self.of_query is not None:
            embedded = self.of_query(embedded, classes, torch.zeros_like(classes[:, 0]))
        return cosines(embedded, classes) * self.log_scale.exp()


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of every row of `left` with every row of `right`; zero if a row is zero."""
    return normalize(left, dim=-1) @ normalize(right, dim=-1).mT


@dataclass(kw_only=True, eq=False, repr=False)
class ContextualClassifier(EpisodicClassifier):
    """Classifier that matches by embeddings which know the whole support."""

    context: bool = True
    context_width: int = 128
    _network: ClassVar[type[ContextualNetwork]]

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count("context_width", self.context_width)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return self._network(dimension, self.width, context_width=int(self.context_width) if self.context else 0)


@dataclass(kw_only=True, eq=False, repr=False)
class MatchingNetwork(ContextualClassifier):
    """Match examples with the examples at hand, by embeddings that know all of these.

    P(k given x) = Σ_{i: y_i = k} a(x, x_i),  a(x, x_i) = softmax over i of exp(s) cos(f(x), g(x_i)) − log n_{y_i}

    g(x_i) = e(x_i) + U (→h_i + ←h_i), with U a matrix that starts at zero and h_i the states of an LSTM that reads the
    support in both directions, and f is an LSTM that attends to the support at each of five steps. The scores are
    log P(k given x). All classes count the same: each of the n_k examples of a class weighs 1 / n_k.

    An LSTM cannot read tens of thousands of examples, so `fit` keeps at most `support_per_class` of each class, drawn
    at random. It also depends on their order: classes are in random order in training, and sorted by label in `fit`.

    Parameters
    ----------
    context : bool
        Whether f and g know the support; without it they are the embedding e alone: a soft nearest neighbour.
    context_width : int
        Width of the LSTMs' states.
    support_per_class : int
        Maximum number of examples of a class to keep.
    recipe : {"quick", "paper"}
        Source of the numbers below: about a minute on two cores, or as long as the benchmark's own code trains.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    width : int
        Width of the hidden layer of e, a residual network on standardised features.
    held_out : float
        Share of the base classes that decides how long to train; see `PrototypicalNetwork`.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `cpaan.classifiers.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        Embeddings and contexts.
    history_, base_classes_, classes_
        See `cpaan.classifiers.meta.NetworkClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = 4 * rng.normal(size=(12, 1, 5))
    >>> X_base = (centers[:10] + rng.normal(size=(10, 20, 5))).reshape(-1, 5)
    >>> classifier = MatchingNetwork(episodes=5, random_state=0).meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    support_per_class: int = 20
    _network: ClassVar[type[ContextualNetwork]] = MatchingScores
    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(episodes=150, ways=20, shots=(1, 2, 5), queries=4, learning_rate=1e-3, halve_every=60),
        "paper": PAPER,
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count("support_per_class", self.support_per_class)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        self._check_settings()
        rows = keep_few(targets, self.support_per_class, self._seed(1))
        super()._adapt(features[rows], targets[rows])


@dataclass(kw_only=True, eq=False, repr=False)
class PrototypeMatchingNetwork(ContextualClassifier):
    """Match examples with class prototypes, by embeddings that know all prototypes.

    c_k = Σ_{i: y_i = k} e(x_i) / n_k,  g_k = c_k + U (→h_k + ←h_k)

    score(k given x) = exp(s) cos(f(e(x), {g_k}), g_k),  P(k given x) = softmax over k of the scores

    with U a matrix that starts at zero, h_k the states of an LSTM that reads the c_k in both directions, and f an LSTM
    that attends to the prototypes at each of five steps. A class with hundreds of examples has no more weight than one
    with a single example. An LSTM depends on the order of the classes: it is random in training, and that of the
    sorted labels in `fit`.

    Parameters
    ----------
    context : bool
        Whether f and g know all prototypes; without it they are the embedding e alone: cosine matching with class
        means.
    context_width : int
        Width of the LSTMs' states.
    recipe : {"quick", "paper"}
        Source of the numbers below: about a minute on two cores, or as long as the benchmark's own code trains.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    width : int
        Width of the hidden layer of e, a residual network on the direction of standardised features.
    held_out : float
        Share of the base classes that decides how long to train; see `PrototypicalNetwork`.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `cpaan.classifiers.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        Embeddings and contexts.
    history_, base_classes_, classes_
        See `cpaan.classifiers.meta.NetworkClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = 4 * rng.normal(size=(12, 1, 5))
    >>> X_base = (centers[:10] + rng.normal(size=(10, 20, 5))).reshape(-1, 5)
    >>> classifier = PrototypeMatchingNetwork(episodes=5, random_state=0)
    >>> classifier = classifier.meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    _network: ClassVar[type[ContextualNetwork]] = PrototypeMatchingScores
    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(
            episodes=150, ways=40, shots=(1, 2, 5, 10, 20), queries=2, learning_rate=1e-3, halve_every=60
        ),
        "paper": PAPER,
    }
