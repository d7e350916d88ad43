"""Covariance-Preserving Adversarial Augmentation Networks.

H. Gao, Z. Shou, A. Zareian, H. Zhang, S.-F. Chang, *Low-shot Learning via Covariance-Preserving Adversarial
Augmentation Networks*, NeurIPS 2018.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cpaan.augmenters.fitting import FEWEST_TO_META_TRAIN, choose_device, fit_model
from cpaan.augmenters.model import Model
from cpaan.augmenters.storage import load_model, save_model
from cpaan.data.class_names import show_names
from cpaan.data.containers import as_features, restore_features, restore_labels
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.functional.prototypes import prototypes
from cpaan.training.recipe import Recipe, make_recipe
from cpaan.training.trainer import Progress


class CPAAN(BaseEstimator):
    """Make examples for classes with a handful of them by translating examples of well-populated ones.

    ``fit`` meta-trains on base classes alone: in every episode some of them play novel classes of which a few shots
    are known. ``augment`` then makes examples for classes that were never seen, without further training.

    Parameters
    ----------
    variant : {"ccov-gan", "cdeli-gan", "ccyc-gan", "c-gan"}
        The paper's final network, and the ones that lead to it.
    recipe : {"quick", "paper"}
        Where the numbers below come from: a minute or so on two cores, or the paper's every number.
    random_state : int, RandomState or None
        Decides every random draw. The same integer on the same machine gives the same bits.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes.
    reservoir : int
        Base examples of each class that the model keeps, in half precision, to translate later. With 0 it keeps
        Gaussian summaries only and translates draws from those, for data that must not leave.
    device : {"auto", "cpu", "cuda", "mps"}
        ``"auto"`` takes a GPU that torch can use, or else the CPU.
    tell : callable, optional
        Called with a `Progress` about a hundred times during training.
    episodes, learning_rate, … : optional
        Any number of the recipe, by name; see `cpaan.training.recipe.Recipe`.

    Attributes
    ----------
    generator_ : torch.nn.Module, G_n(y_n; x_b, y_b)
    model_ : Model, all that was learned and kept
    history_ : dict, the episodes of the logging steps and the mean of every loss term at each
    classes_ : tuple, names of the base classes
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.normal(size=(8, 1, 5)) * 5
    >>> X_base = (centers + rng.normal(size=(8, 30, 5))).reshape(-1, 5)
    >>> y_base = np.repeat([f"base {i}" for i in range(8)], 30)
    >>> augmenter = CPAAN(episodes=5, random_state=0).fit(X_base, y_base)
    >>> X_new, y_new = augmenter.augment(rng.normal(size=(2, 5)), ["new", "new"])
    >>> X_new.shape, set(y_new.tolist())
    ((28, 5), {'new'})
    """

    def __init__(
        self,
        *,
        variant: str = "ccov-gan",
        recipe: str = "quick",
        random_state: Any = None,
        per_class: int | None = None,
        reservoir: int = 100,
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        episodes: int | None = None,
        learning_rate: float | None = None,
        halve_every: int | None = None,
        momentum: float | None = None,
        novel_per_episode: int | None = None,
        shots_per_episode: int | None = None,
        batch_size: int | None = None,
        pairing: str | None = None,
        base_draw: str | None = None,
        loss_weights: str | None = None,
        neighborhood: str | None = None,
        neighbors: int | None = None,
        temperature: float | str | None = None,
        perplexity: float | None = None,
        cycle_weight: float | None = None,
        covariance_weight: float | None = None,
        ky_fan_rank: int | None = None,
        covariance_pairs: int | str | None = None,
        covariance_rank: int | str | None = None,
        generator: str | None = None,
        width: int | None = None,
        negative_slope: float | None = None,
        noise_dimension: int | None = None,
        noise_components: int | None = None,
        within_distance: float | None = None,
        center: bool | None = None,
        standardize: bool | None = None,
    ) -> None:
        self.variant = variant
        self.recipe = recipe
        self.random_state = random_state
        self.per_class = per_class
        self.reservoir = reservoir
        self.device = device
        self.tell = tell
        self.episodes = episodes
        self.learning_rate = learning_rate
        self.halve_every = halve_every
        self.momentum = momentum
        self.novel_per_episode = novel_per_episode
        self.shots_per_episode = shots_per_episode
        self.batch_size = batch_size
        self.pairing = pairing
        self.base_draw = base_draw
        self.loss_weights = loss_weights
        self.neighborhood = neighborhood
        self.neighbors = neighbors
        self.temperature = temperature
        self.perplexity = perplexity
        self.cycle_weight = cycle_weight
        self.covariance_weight = covariance_weight
        self.ky_fan_rank = ky_fan_rank
        self.covariance_pairs = covariance_pairs
        self.covariance_rank = covariance_rank
        self.generator = generator
        self.width = width
        self.negative_slope = negative_slope
        self.noise_dimension = noise_dimension
        self.noise_components = noise_components
        self.within_distance = within_distance
        self.center = center
        self.standardize = standardize

    def fit(self, X_base: Any, y_base: Any) -> "CPAAN":
        """Meta-train on base classes alone.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
        y_base : n labels of any hashable type, of at least four classes
        """
        return self._train(FeatureSet(X_base, y_base), None)

    def fit_direct(self, X_base: Any, y_base: Any, X_novel: Any, y_novel: Any) -> "CPAAN":
        """Train on given base and novel classes, where there are too few base classes to meta-train.

        The networks then know these novel classes alone; `augment` is to be called with the same ones.
        """
        base, novel = FeatureSet(X_base, y_base), FeatureSet(X_novel, y_novel)
        _check_novel(novel, base.classes, base.dimension)
        return self._train(base, novel)

    def augment(self, X_novel: Any, y_novel: Any, *, per_class: int | None = None) -> tuple[Any, Any]:
        """Make synthetic examples of novel classes.

        Parameters
        ----------
        X_novel : array, tensor or data frame of shape (n, D), the few real examples
        y_novel : n labels of any hashable type, none of them a base class
        per_class : int, optional
            Synthetic examples for each class; by default the constructor's `per_class`.

        Returns
        -------
        X_synthetic, y_synthetic
            Synthetic examples only, class after class, of the types that went in.
        """
        check_is_fitted(self)
        novel = FeatureSet(X_novel, y_novel)
        _check_novel(novel, self.classes_, self.n_features_in_)
        made, labels = self._make(novel, self.per_class if per_class is None else per_class)
        names = [novel.classes[label] for label in labels]
        return restore_features(made, X_novel), restore_labels(names, y_novel)

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Fill up the small classes of one long-tailed set.

        A class is small if it has less than a quarter of the examples that the class of a random example has
        on average. The others are the base classes; with fewer than four of them training is direct.

        Returns
        -------
        X_resampled, y_resampled
            What was given, followed by the synthetic examples, of the types that went in.
        """
        everything = FeatureSet(X, y)
        small = small_classes(everything.counts)
        if not small.any():
            return X, y
        base = everything.select([c for c, s in zip(everything.classes, small, strict=True) if not s])
        novel = everything.select([c for c, s in zip(everything.classes, small, strict=True) if s])
        direct = base.n_classes < FEWEST_TO_META_TRAIN
        if direct:
            warnings.warn(
                f"{base.n_classes} of {everything.n_classes} classes are large enough to be base classes, too few "
                "to meta-train: training directly on base and novel classes",
                stacklevel=2,
            )
        self._train(base, novel if direct else None)
        made, labels = self._make(novel, self.per_class)
        stacked = np.concatenate([as_features(X), made])
        names = [*everything.names, *(novel.classes[label] for label in labels)]
        return restore_features(stacked, X), restore_labels(names, y)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the fitted model to a folder, as `model.safetensors` and `config.json`."""
        check_is_fitted(self)
        given = self.get_params(deep=False)  # type: ignore[no-untyped-call]
        parameters = {k: v for k, v in given.items() if k not in ("tell", "device")}
        if not isinstance(self.random_state, (int, type(None))):
            parameters["random_state"] = None
        save_model(folder, self.model_, {"parameters": parameters, "history": self.history_})

    @classmethod
    def load(cls, folder: str | PathLike[str], *, device: str = "auto") -> "CPAAN":
        """Read a model that `save` wrote, onto any device, whatever it was trained on."""
        model, config = load_model(folder)
        augmenter = cls(**config["parameters"], device=device)
        return augmenter._remember(model.to(choose_device(device)), config["history"])

    @property
    def generator_(self) -> torch.nn.Module:
        """The trained G_n, an ordinary module."""
        return self.model_.networks.novel_generator

    def _train(self, base: FeatureSet, novel: FeatureSet | None) -> "CPAAN":
        if not isinstance(self.reservoir, int) or self.reservoir < 0:
            raise InputError(f"reservoir must be a whole number of at least 0, not {self.reservoir!r}")
        changes = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        model, history = fit_model(
            base,
            novel,
            variant=self.variant,
            recipe=make_recipe(self.recipe, **changes),
            reservoir=self.reservoir,
            seed=self._seed(0),
            device=choose_device(self.device),
            tell=self.tell,
        )
        return self._remember(model, {"episode": history.episodes, **history.losses})

    def _remember(self, model: Model, history: dict[str, Any]) -> "CPAAN":
        self.model_, self.history_ = model, history
        self.classes_, self.n_features_in_ = model.base.classes, model.base.prototypes.shape[1]
        return self

    def _make(self, novel: FeatureSet, per_class: int | None) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
        """Make examples in the user's units, with indices into the novel classes."""
        base = self.model_.base
        if per_class is None:
            wanted = np.maximum(base.average_size - novel.counts, 0)
        elif isinstance(per_class, (int, np.integer)) and per_class >= 1:
            wanted = np.full(novel.n_classes, per_class)
        else:
            raise InputError(f"per_class must be a whole number of at least 1, not {per_class!r}")
        device = base.prototypes.device
        features, labels = novel.to_torch()
        centroids = prototypes(base.scaling.apply(features.double()), labels, novel.n_classes)
        generator = torch.Generator(device).manual_seed(self._seed(1))
        made = self.model_.make(centroids.float().to(device), torch.as_tensor(wanted, device=device), generator)
        return base.scaling.undo(made.cpu().double()).numpy(), np.repeat(np.arange(novel.n_classes), wanted)

    def _seed(self, purpose: int) -> int:
        """Give a seed for one purpose, 0 for training and 1 for generation."""
        try:
            source = check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state cannot be {self.random_state!r}: {error}") from error
        return int(source.randint(2**31 - 1, size=2)[purpose])


def small_classes(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which classes of a long-tailed set are to be filled up.

    A class is small below a quarter of Σ n² / Σ n, the average over *examples* of the size of their class, which many
    tiny classes do not drag down.

    >>> small_classes(np.array([100, 90, 80, 5, 1]))
    array([False, False, False,  True,  True])
    >>> small_classes(np.array([40, 60]))
    array([False, False])
    """
    threshold = float((counts**2).sum() / counts.sum() / 4)
    return np.asarray(counts < threshold)


def _check_novel(novel: FeatureSet, base_classes: Sequence[Hashable], dimension: int) -> None:
    if novel.dimension != dimension:
        raise InputError(
            f"novel features have {novel.dimension} dimensions and base features {dimension}; both must come from "
            "the same representation"
        )
    known = set(base_classes)
    common = [name for name in novel.classes if name in known]
    if common:
        raise InputError(
            f"both base and novel: {show_names(common)}; give novel classes names of their own or leave them out"
        )
