"""Matching networks with full-context embeddings.

O. Vinyals, C. Blundell, T. Lillicrap, K. Kavukcuoglu and D. Wierstra, *Matching networks for one shot learning*,
NeurIPS 2016.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy.typing as npt
from torch import nn

from cpaan.classifiers.base import IntegerArray
from cpaan.classifiers.episodic import PAPER, EpisodicClassifier
from cpaan.classifiers.network import keep_few
from cpaan.nn.matching import MatchingScores
from cpaan.training.checks import check_count
from cpaan.training.meta import MetaRecipe
from cpaan.training.trainer import Progress


class MatchingNetwork(EpisodicClassifier):
    """Match examples with the examples at hand, where both embeddings know all of these.

    P(k given x) = Σ_{i: y_i = k} a(x, x_i),  a(x, x_i) = softmax over i of exp(s) cos(f(x), g(x_i)) − log n_{y_i}

    g(x_i) = e(x_i) + U (→h_i + ←h_i), with U a matrix that begins at zero and h_i the states of an LSTM that reads the
    support in both directions, and f is an LSTM that looks at the support by attention at each of five steps. The
    scores are log P(k given x). All classes count the same: the examples of a class with n_k of them weigh 1 / n_k, as
    if small classes were repeated.

    An LSTM cannot read tens of thousands of examples, so that of each class at most `support_per_class` are kept,
    drawn at random. It also depends on their order: classes are in random order in training, and in that of the
    sorted labels in `fit`.

    Parameters
    ----------
    context : bool
        Whether f and g know the support, or else are the embedding e alone, which makes it a soft nearest neighbour.
    context_width : int
        Of the LSTMs' states.
    support_per_class : int
        The most examples of a class to keep.
    recipe : {"quick", "paper"}
        Where the numbers below come from: about a minute on two cores, or as long as the benchmark's own code trains.
    random_state : int, RandomState or None
        Decides every random draw.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    width : int
        Of the hidden layer of e, a residual network on standardised features.
    held_out : float
        Share of the base classes that tells for how long to train; see `PrototypicalNetwork`.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe, by name; see `cpaan.training.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        Embeddings and contexts.
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
    >>> classifier = MatchingNetwork(episodes=5, random_state=0).meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(
            episodes=150,
            ways=20,
            shots=(1, 2, 5),
            queries=4,
            learning_rate=1e-3,
            halve_every=60,
        ),
        "paper": PAPER,
    }

    def __init__(
        self,
        *,
        context: bool = True,
        context_width: int = 128,
        support_per_class: int = 20,
        recipe: str = "quick",
        random_state: Any = None,
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        width: int = 256,
        held_out: float = 0.2,
        episodes: int | None = None,
        ways: int | None = None,
        shots: tuple[int, ...] | None = None,
        queries: int | None = None,
        learning_rate: float | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(
            recipe=recipe,
            random_state=random_state,
            device=device,
            tell=tell,
            width=width,
            held_out=held_out,
            episodes=episodes,
            ways=ways,
            shots=shots,
            queries=queries,
            learning_rate=learning_rate,
            halve_every=halve_every,
            weight_decay=weight_decay,
        )
        self.context = context
        self.context_width = context_width
        self.support_per_class = support_per_class

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count("context_width", self.context_width)
        check_count("support_per_class", self.support_per_class)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return MatchingScores(dimension, self.width, context_width=int(self.context_width) if self.context else 0)

    def _adapt(self, features: npt.NDArray[Any], targets: IntegerArray) -> None:
        self._check_settings()
        rows = keep_few(targets, self.support_per_class, self._seed(1))
        super()._adapt(features[rows], targets[rows])
