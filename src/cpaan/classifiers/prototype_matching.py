"""Prototype matching networks.

Y.-X. Wang, R. Girshick, M. Hebert and B. Hariharan, *Low-shot learning from imaginary data*, CVPR 2018.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import nn

from cpaan.classifiers.episodic import PAPER, EpisodicClassifier
from cpaan.nn.matching import PrototypeMatchingScores
from cpaan.training.checks import check_count
from cpaan.training.meta import MetaRecipe
from cpaan.training.trainer import Progress


class PrototypeMatchingNetwork(EpisodicClassifier):
    """Match examples with class prototypes, where both embeddings know all prototypes.

    c_k = Σ_{i: y_i = k} e(x_i) / n_k,  g_k = c_k + U (→h_k + ←h_k)

    score(k given x) = exp(s) cos(f(e(x), {g_k}), g_k),  P(k given x) = softmax over k of the scores

    with U a matrix that begins at zero, h_k the states of an LSTM that reads the c_k in both directions, and f an LSTM
    that looks at the prototypes by attention at each of five steps. Unlike in matching networks, a
    class with hundreds of examples has no more weight than one with a single example. An LSTM depends on the order
    of the classes: it is random in training, and that of the sorted labels in `fit`.

    Parameters
    ----------
    context : bool
        Whether f and g know all prototypes, or else are the embedding e alone, which makes it cosine matching with
        class means.
    context_width : int
        Of the LSTMs' states.
    recipe : {"quick", "paper"}
        Where the numbers below come from: about a minute on two cores, or as long as the benchmark's own code trains.
    random_state : int, RandomState or None
        Decides every random draw.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    width : int
        Of the hidden layer of e, a residual network on the direction of standardised features.
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
    >>> classifier = PrototypeMatchingNetwork(episodes=5, random_state=0)
    >>> classifier = classifier.meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(
            episodes=150,
            ways=40,
            shots=(1, 2, 5, 10, 20),
            queries=2,
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

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count("context_width", self.context_width)

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        return PrototypeMatchingScores(
            dimension, self.width, context_width=int(self.context_width) if self.context else 0
        )
