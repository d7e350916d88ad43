"""Matching networks on frozen features: cosine attention, with embeddings that know the whole support."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.functional.prototypes import class_counts, prototypes
from cpaan.nn.episodic import EpisodicNetwork
from cpaan.nn.residual import ResidualEmbedding

STEPS = 5  # of the attention LSTM
_START = 10.0  # sharpness of attention: the scale of cosines before the softmax


class SupportContext(nn.Module):
    """g(x_i, S) = x_i + U (→h_i + ←h_i), with the states of an LSTM that reads the support in both directions.

    NOTE[paper]: U is ours, and begins at zero: a minute of training does not bring a random LSTM to leave good features
    alone. It also lets the LSTM be narrower than the features, which in the paper it is not.

    Parameters
    ----------
    dimension : D
    width : of the LSTM's states

    >>> SupportContext(3, 2)(torch.ones(4, 3)).tolist() == torch.ones(4, 3).tolist()
    True
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, width, bidirectional=True)
        self.output = _zero_linear(width, dimension)

    def forward(self, support: Tensor) -> Tensor:
        """Embed a support (n, D), in the order that it has."""
        states: Tensor = self.lstm(support)[0]
        forward, backward = states.chunk(2, dim=-1)
        added: Tensor = self.output(forward + backward)
        return support + added


class QueryContext(nn.Module):
    """f(x, S) = h_5: an LSTM that looks at the support again at each of five steps.

    h_0 = x,  r_k = Σ_i a(h_k, g_i) g_i,  ĥ_{k+1}, c_{k+1} = LSTM([x, r_k], ĥ_k, c_k),  h_{k+1} = x + U ĥ_{k+1}

    NOTE[paper]: a is the softmax of scaled cosines, not of dot products, which at most scales of features are one-hot;
    U as in `SupportContext`. The LSTM goes on from ĥ_k, with r_k in its input; there from [h_k, r_k], with the skip
    term x in h_k.

    Parameters
    ----------
    dimension : D
    width : of the LSTM's states

    >>> QueryContext(3, 2)(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4)).tolist() == torch.ones(2, 3).tolist()
    True
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
    """A residual embedding, and two contexts after it.

    Parameters
    ----------
    dimension, width : see `ResidualEmbedding`, which comes before f and g
    context_width : of the states of f and g; with 0 these are the embedding alone and know nothing of the support
    """

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

    Parameters
    ----------
    dimension, width, context_width : see `ContextualNetwork`
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples, before they know of any others."""
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

    NOTE[paper]: only the direction of features is kept, whatever their number; there it is features as they are.

    Parameters
    ----------
    dimension, width, context_width : see `ContextualNetwork`
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples, with their length left out, so that no example outweighs the others of its class."""
        embedded: Tensor = self.embedding(normalize(features, dim=-1) * math.sqrt(features.shape[-1]))
        return embedded

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give g of the prototypes, (classes, D), as the only part of what is kept of an embedded support."""
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
    """Cosine of every row of `left` with every row of `right`; zero where a row is zero.

    >>> cosines(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    tensor([[1., 0.]])
    """
    return normalize(left, dim=-1) @ normalize(right, dim=-1).mT
