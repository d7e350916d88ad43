"""Prototypical networks.

J. Snell, K. Swersky and R. S. Zemel, *Prototypical networks for few-shot learning*, NeurIPS 2017. Here they
run on given features, with an embedding that starts as the identity.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.classifiers.episodic import PAPER, EpisodicClassifier, EpisodicNetwork
from cpaan.classifiers.meta import MetaRecipe
from cpaan.errors import InputError
from cpaan.math.prototypes import prototypes, squared_distances


class ResidualEmbedding(nn.Module):
    """f(x) = x + V relu(U x + u) + v, with V and v zero at the start.

    Features of a trained network are already good: a small network that adds to them does little harm in a few steps
    of training. A width of 0 leaves features as they are.
    """

    def __init__(self, dimension: int, width: int) -> None:
        super().__init__()
        self.branch: nn.Sequential | None = None
        if width:
            last = nn.Linear(width, dimension)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.branch = nn.Sequential(nn.Linear(dimension, width), nn.ReLU(), last)

    def forward(self, features: Tensor) -> Tensor:
        """Embed (…, D)."""
        if self.branch is None:
            return features
        added: Tensor = self.branch(features)
        return features + added


class DirectionEmbedding(nn.Module):
    """f(x) = r(x̂), with r a residual network and x̂ = √D · x / ‖x‖ or, without `directions`, x̂ = x.

    For features with hundreds of coordinates the direction says what an example is, and the length little: without
    the length, one example is a much better prototype. With a few coordinates the length is most of what there is.
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.dimension, self.directions = dimension, directions
        self.residual = ResidualEmbedding(dimension, width)

    def forward(self, features: Tensor) -> Tensor:
        """Embed (…, D)."""
        if self.directions:
            features = normalize(features, dim=-1) * math.sqrt(self.dimension)
        embedded: Tensor = self.residual(features)
        return embedded


class PrototypicalScores(EpisodicNetwork):
    """score(k given x) = −exp(s) ‖f(x) − c_k‖², with c_k the mean of f over the support of class k.

    Squared distances grow with the dimension; the learned scale exp(s), which starts at 1/√D, keeps their softmax from
    saturating.
    """

    def __init__(self, dimension: int, width: int, *, directions: bool) -> None:
        super().__init__()
        self.embedding = DirectionEmbedding(dimension, width, directions=directions)
        self.log_scale = nn.Parameter(torch.tensor(-0.5 * math.log(dimension)))

    def embed(self, features: Tensor) -> Tensor:
        """Give f(x) for features of shape (…, D)."""
        embedded: Tensor = self.embedding(features)
        return embedded

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give the prototypes, (classes, D), as the memory of an embedded support."""
        return (prototypes(embedded, labels, n_classes),)

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query: (n, D) to (n, classes)."""
        (means,) = memory
        return -squared_distances(self.embed(query), means) * self.log_scale.exp()


# NOTE[paper]: there f is a convolutional network, the scores are −‖f(x) − c_k‖², and all classes of a task have as many
# shots as in testing. Here f starts as the identity on given features, whose length is left out from so many features
# on, the scale exp(s) is learned, and shots are mixed.
DIRECTIONS_FROM = 32


@dataclass(kw_only=True, eq=False, repr=False)
class PrototypicalNetwork(EpisodicClassifier):
    """Classify by the squared distance to class means in a learned embedding of the features.

    c_k = Σ_{i: y_i = k} f(x_i) / n_k

    score(k given x) = −exp(s) ‖f(x) − c_k‖²,  P(k given x) = softmax over k of the scores

    The embedding f is a residual network that starts as the identity on standardised features; from 32 features on,
    only their direction is kept. Training draws tasks from base classes in which each class has its own number of
    shots, and stops where held-out classes separate best: with features of a network that was itself trained on the
    base classes this can be at once, because nothing is left to learn from them.

    Parameters
    ----------
    directions : {"auto", True, False}
        Whether to leave out the length of features; ``"auto"`` from 32 features on. With False and a `width` of 0 the
        scores are scaled squared Euclidean distances.
    recipe : {"quick", "paper"}
        Source of the numbers below: under a minute on two cores, or as long as the benchmark's own code trains.
    random_state, device, tell
        Seed, place and progress of training; see `cpaan.classifiers.meta.NetworkClassifier`.
    width : int
        Width of the hidden layer of f; with 0 only the scale s is learned.
    held_out : float
        Share of the base classes, at most a half, that decides how long to train; all are then trained on for that
        long. With 0, or fewer than ten base classes, training takes all episodes.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe to override; see `cpaan.classifiers.meta.MetaRecipe`.

    Attributes
    ----------
    network_ : torch.nn.Module
        With f as its `embedding`.
    history_, base_classes_, classes_
        See `cpaan.classifiers.meta.NetworkClassifier`.

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

    directions: bool | str = "auto"
    _recipes: ClassVar[Mapping[str, MetaRecipe]] = {
        "quick": MetaRecipe(
            episodes=200, ways=60, shots=(1, 2, 5, 10, 20), queries=3, learning_rate=1e-3, halve_every=80
        ),
        "paper": PAPER,
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.directions, bool) and self.directions != "auto":
            raise InputError(f"directions must be True, False or 'auto', not {self.directions!r}")

    def _build(self, dimension: int, n_base: int) -> nn.Module:
        directions = dimension >= DIRECTIONS_FROM if self.directions == "auto" else bool(self.directions)
        return PrototypicalScores(dimension, self.width, directions=directions)
