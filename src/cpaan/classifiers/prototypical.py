"""Prototypical networks.

J. Snell, K. Swersky and R. S. Zemel, *Prototypical networks for few-shot learning*, NeurIPS 2017.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import nn

from cpaan.classifiers.episodic import PAPER, EpisodicClassifier
from cpaan.errors import InputError
from cpaan.nn.prototypical import PrototypicalScores
from cpaan.training.meta import MetaRecipe
from cpaan.training.trainer import Progress

# NOTE[paper]: there f is a convolutional network, the scores are −‖f(x) − c_k‖² as they are, and all classes of a task
# have as many shots as in testing. Here f begins as the identity on given features, of which from so many on the length
# is left out, their scale exp(s) is learned, and shots are mixed.
DIRECTIONS_FROM = 32


class PrototypicalNetwork(EpisodicClassifier):
    """Classify by the squared distance to class means in a learned embedding of the features.

    c_k = Σ_{i: y_i = k} f(x_i) / n_k

    score(k given x) = −exp(s) ‖f(x) − c_k‖²,  P(k given x) = softmax over k of the scores

    The embedding f is a residual network that begins as the identity, on standardised features of which, from 32
    features on unless `directions` says otherwise, only the direction is kept. Training draws tasks from base classes
    in which each class has a number of shots of its own, and stops where classes that are held out are told apart best:
    on features of a network that was itself trained on the base classes that can be at once, for there is nothing left
    to learn from them.

    Parameters
    ----------
    directions : {"auto", True, False}
        Whether the length of features is left out; ``"auto"`` from 32 features on. With False and a `width` of 0 the
        scores are plain squared Euclidean distances, scaled.
    recipe : {"quick", "paper"}
        Where the numbers below come from: under a minute on two cores, or as long as the benchmark's own code trains.
    random_state : int, RandomState or None
        Decides every random draw.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    width : int
        Of the hidden layer of f; with 0 nothing but the scale s is learned.
    held_out : float
        Share of the base classes, at most a half, that tells for how long to train; all are then trained on for so
        long. With 0, or fewer than ten base classes, training takes all episodes.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe, by name; see `cpaan.training.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        With f as its `embedding`.
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
    >>> classifier = PrototypicalNetwork(episodes=5, random_state=0).meta_fit(X_base, np.repeat(np.arange(10), 20))
    >>> classifier.fit(centers[10:, 0], ["new", "newer"]).predict(centers[10:, 0])
    array(['new', 'newer'], dtype='<U5')
    """

    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(
            episodes=200,
            ways=60,
            shots=(1, 2, 5, 10, 20),
            queries=3,
            learning_rate=1e-3,
            halve_every=80,
        ),
        "paper": PAPER,
    }

    def __init__(
        self,
        *,
        directions: bool | str = "auto",
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
        self.directions = directions

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.directions, bool) and self.directions != "auto":
            raise InputError(f"directions must be True, False or 'auto', not {self.directions!r}")

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        directions = dimension >= DIRECTIONS_FROM if self.directions == "auto" else bool(self.directions)
        return PrototypicalScores(dimension, self.width, directions=directions)
