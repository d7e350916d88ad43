"""The learner that MAML trains: an embedding and a head for any number of classes, adapted by gradient descent."""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from cpaan.functional.prototypes import class_counts, prototypes
from cpaan.nn.prototypical import DirectionEmbedding

HEADS = ("common", "prototype")
_SHARPNESS = 10.0  # of the scores of a head that begins at prototypes: ± this for vectors in the same direction
_LONGEST = 10.0  # times the usual length: an example further out must not make the steps of all others explode


class Adapted(NamedTuple):
    """What gradient descent has changed: the embedding's parameters, and the head's weights (N, D) and biases (N,)."""

    body: dict[str, Tensor]
    weights: Tensor
    biases: Tensor


class AdaptiveLearner(nn.Module):
    """score(c given x) = w_c · f_θ(x) + b_c, after steps of gradient descent on a support's cross-entropy L.

    θ ← θ − ρ_θ ∂L/∂θ,  (w, b) ← (w, b) − ρ N / D · ∂L/∂(w, b),  L = (1/N) Σ_c mean over the examples of c

    In L each of the N classes counts the same, and its own row of the head has a share of 1/N in it, which the
    factor N takes back: the rates, which are learned too, then mean the same for 5 and for 500 classes.

    Parameters
    ----------
    dimension : D
    width, directions : of f, see `DirectionEmbedding`
    head : "common", every row begins at the same learned vector, or "prototype", w_c = 2 t l_c and b_c = −t ‖l_c‖²
        with l_c the class mean of f(x) and t learned, so that the first scores are negative squared distances
    head_rate, body_rate : ρ and ρ_θ at the start
    first_order : whether the meta-gradient leaves out how the inner gradients change

    >>> learner = AdaptiveLearner(2, 4, directions=False, head="common", head_rate=1.0, body_rate=0.1)
    >>> support, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> learner.scores(learner.adapt(support, labels, 2, steps=3), support).argmax(1)
    tensor([0, 1])
    """

    def __init__(
        self,
        dimension: int,
        width: int,
        *,
        directions: bool,
        head: str,
        head_rate: float,
        body_rate: float,
        first_order: bool = False,
    ) -> None:
        super().__init__()
        self.dimension, self.head, self.first_order = dimension, head, first_order
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        self.common = nn.Parameter(torch.zeros(dimension + 1))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(_SHARPNESS / 2)))
        self.log_head_rate = nn.Parameter(torch.tensor(math.log(head_rate)))
        self.log_body_rate = nn.Parameter(torch.tensor(math.log(body_rate)))

    def adapt(self, support: Tensor, labels: Tensor, n_classes: int, *, steps: int) -> Adapted:
        """Take steps of gradient descent on a support, (n, D) and (n,), that has examples of every class."""
        support = self._bounded(support)
        shares = (1 / (n_classes * class_counts(labels, n_classes).to(support.dtype)))[labels]

        def loss(adapted: Adapted) -> Tensor:
            losses = cross_entropy(self._scores(adapted, support), labels, reduction="none")
            return (shares * losses).sum()

        adapted = self._start(support, labels, n_classes)
        for _ in range(steps):
            adapted = self._step(adapted, grad(loss)(adapted), n_classes)
        return adapted

    def scores(self, adapted: Adapted, features: Tensor) -> Tensor:
        """Score each class, (n, D) to (n, N)."""
        return self._scores(adapted, self._bounded(features))

    def _scores(self, adapted: Adapted, features: Tensor) -> Tensor:
        # The call puts other parameters into the module while it lasts, and threads beside must not find them there.
        own = deepcopy(self.embedding, {id(parameter): parameter for parameter in self.embedding.parameters()})
        embedded: Tensor = functional_call(own, adapted.body, (features,))
        return embedded @ adapted.weights.T + adapted.biases

    def _start(self, support: Tensor, labels: Tensor, n_classes: int) -> Adapted:
        body: dict[str, Tensor] = dict(self.embedding.named_parameters())
        if self.head == "common":
            vector, bias = self.common[:-1] / math.sqrt(self.dimension), self.common[-1]
            return Adapted(body, vector.expand(n_classes, -1), bias.expand(n_classes))
        means = prototypes(self.embedding(support), labels, n_classes)
        sharpness = self.log_sharpness.exp() / self.dimension
        return Adapted(body, 2 * sharpness * means, -sharpness * means.square().sum(1))

    def _step(self, adapted: Adapted, slope: Adapted, n_classes: int) -> Adapted:
        if self.first_order:
            body_slope = {name: value.detach() for name, value in slope.body.items()}
            slope = Adapted(body_slope, slope.weights.detach(), slope.biases.detach())
        body_rate = self.log_body_rate.exp()
        head_rate = self.log_head_rate.exp() * n_classes / self.dimension
        return Adapted(
            {name: value - body_rate * slope.body[name] for name, value in adapted.body.items()},
            adapted.weights - head_rate * slope.weights,
            adapted.biases - head_rate * slope.biases,
        )

    def _bounded(self, features: Tensor) -> Tensor:
        longest = _LONGEST * math.sqrt(self.dimension)
        lengths: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        return features * (longest / lengths.clamp_min(longest))
