"""Model-agnostic meta-learning.

C. Finn, P. Abbeel, S. Levine, *Model-agnostic meta-learning for fast adaptation of deep networks*, ICML 2017; with
the head of H.-J. Ye, W.-L. Chao, *How to train your MAML to excel in few-shot classification*, ICLR 2022, or of
E. Triantafillou et al., *Meta-Dataset: a dataset of datasets for learning to learn from few examples*, ICLR 2020.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from cpaan.classifiers.base import IntegerArray, check_choice
from cpaan.classifiers.meta import MetaRecipe, NetworkClassifier, Task, TaskSampler, keep_few, meta_train
from cpaan.classifiers.prototypical import DIRECTIONS_FROM, DirectionEmbedding
from cpaan.math.prototypes import class_counts, prototypes
from cpaan.training.bank import ClassBank
from cpaan.training.progress import History, check_count, check_positive

HEADS = ("common", "prototype")
_SHARPNESS = 10.0  # of the scores of a head that starts at prototypes: ± this for vectors in the same direction
_LONGEST = 10.0  # times the usual length; beyond that, one example would make the steps of all others explode


class Adapted(NamedTuple):
    """What gradient descent changes: the embedding's parameters, and the head's weights (N, D) and biases (N,)."""

    body: dict[str, Tensor]
    weights: Tensor
    biases: Tensor


class AdaptiveLearner(nn.Module):
    """score(c given x) = w_c · f_θ(x) + b_c, after steps of gradient descent on a support's cross-entropy L.

    θ ← θ − ρ_θ ∂L/∂θ,  (w, b) ← (w, b) − ρ N / D · ∂L/∂(w, b),  L = (1/N) Σ_c mean over the examples of c

    In L each of the N classes counts the same, and its own row of the head has a share of 1/N in it, which the factor
    N cancels: the rates, which are learned too, then mean the same for 5 and for 500 classes.

    The rows of the head start at one learned vector ("common"), or ("prototype") at w_c = 2 t l_c and b_c = −t ‖l_c‖²
    with l_c the class mean of f(x) and t learned, so that the first scores are negative squared distances.
    `first_order` leaves the change of the inner gradients out of the meta-gradient.
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
        # The call replaces the module's parameters while it lasts, which other threads must not see.
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


@dataclass(frozen=True, kw_only=True)
class MAMLRecipe(MetaRecipe):
    """Numbers of meta-training and of the inner loop."""

    width: int  # of the embedding's hidden layer
    steps: int  # of gradient descent on a task, in meta-training
    fit_steps: int  # in `fit`
    head_rate: float  # learning rate of the steps at the start, for the head
    body_rate: float  # for the embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("width", self.width, least=0)
        for name in ("steps", "fit_steps"):
            check_count(name, getattr(self, name))
        for name in ("head_rate", "body_rate"):
            check_positive(name, getattr(self, name))


QUICK = MAMLRecipe(
    episodes=300,
    ways=20,
    shots=(1, 5),
    queries=2,
    learning_rate=1e-4,
    halve_every=100,
    width=256,
    steps=5,
    fit_steps=5,
    head_rate=3.0,
    body_rate=0.1,
)
# NOTE[paper]: 5 ways, 15 queries, 60,000 steps of Adam with rate 1e-3, and 5 inner steps with 10 in testing are those
# of mini-ImageNet, where a step takes two or four tasks at once and all inner rates are 0.01, not learned. There the
# head has a learned start for each of its rows too, which are as many as the classes of every task.
PAPER = replace(QUICK, episodes=60_000, ways=5, queries=15, learning_rate=1e-3, halve_every=60_000, fit_steps=10)
RECIPES = {"quick": QUICK, "paper": PAPER}


@dataclass(kw_only=True, eq=False, repr=False)
class MAML(NetworkClassifier):
    """Classify with a network that a few steps of gradient descent adapt to the examples at hand.

    min over θ of E over tasks of L_query(θ − ρ ∇L_support(θ)), for several such steps

    and the gradient by θ goes through the inner gradients: it is of second order. The network is a linear head on an
    embedding that starts as the identity on standardised features; from 32 features on, only their direction is kept.
    The number of classes differs from task to task and their order must not matter, so all rows of the head start
    alike: at one learned vector (UnicornMAML), or at the prototypes (Proto-MAML). The inner rates are learned with θ.
    In the inner loss every class counts the same, however many examples it has.

    Parameters
    ----------
    recipe : {"quick", "paper"}
        Source of the numbers below: under a minute on two cores, or the published ones of mini-ImageNet.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    head : {"common", "prototype"}
        Where the head's rows start. On sentence embeddings and network features both separated novel classes equally
        well, and "common" favoured base classes less: 4 points of generalised accuracy with one shot.
    first_order : bool
        Whether to leave out the second-order part of the gradient.
    support_per_class : int
        Maximum number of examples of a class that `fit` adapts to, drawn at random.
    width, steps, fit_steps, head_rate, body_rate, episodes, ways, shots, … : optional
        Numbers of the recipe to override; see `MAMLRecipe` and `cpaan.classifiers.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        What was meta-learned.
    history_, base_classes_, classes_
        See `cpaan.classifiers.meta.NetworkClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = 4 * rng.normal(size=(12, 1, 5))
    >>> X_base = (centers[:10] + rng.normal(size=(10, 20, 5))).reshape(-1, 5)
    >>> classifier = MAML(episodes=5, random_state=0).meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    head: str = "common"
    first_order: bool = False
    support_per_class: int = 30
    width: int | None = None
    steps: int | None = None
    fit_steps: int | None = None
    head_rate: float | None = None
    body_rate: float | None = None
    network_: AdaptiveLearner = field(init=False)
    adapted_: Adapted = field(init=False)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        check_choice("head", self.head, HEADS)
        recipe = self._recipe(RECIPES)
        return AdaptiveLearner(
            dimension,
            recipe.width,
            directions=dimension >= DIRECTIONS_FROM,
            head=self.head,
            head_rate=recipe.head_rate,
            body_rate=recipe.body_rate,
            first_order=self.first_order,
        )

    def _train(self, network: nn.Module, bank: ClassBank, generator: torch.Generator) -> History:
        assert isinstance(network, AdaptiveLearner)
        recipe = self._recipe(RECIPES)
        sampler = TaskSampler(bank, recipe.ways, recipe.shots, recipe.queries)
        loss_of = partial(task_loss, network, steps=recipe.steps)
        return meta_train(loss_of, network.parameters(), sampler, recipe, generator, self.tell)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        check_count("support_per_class", self.support_per_class)
        kept = keep_few(targets, self.support_per_class, self._seed(1))
        support, labels = self._standardized(features[kept]), torch.as_tensor(targets[kept].astype(np.int64))
        steps = self._recipe(RECIPES).fit_steps
        with torch.no_grad():
            self.adapted_ = self.network_.adapt(support, labels, len(self.classes_), steps=steps)

    def _score_block(self, block: Tensor) -> Tensor:
        return self.network_.scores(self.adapted_, block)


def task_loss(network: AdaptiveLearner, task: Task, steps: int) -> Tensor:
    """Give the cross-entropy of a task's queries after adaptation to its support."""
    n_classes, n_shots = task.support.shape[:2]
    labels = torch.arange(n_classes, device=task.support.device).repeat_interleave(n_shots)
    adapted = network.adapt(task.support.flatten(0, 1), labels, n_classes, steps=steps)
    return cross_entropy(network.scores(adapted, task.query.flatten(0, 1)), task.query_labels)
