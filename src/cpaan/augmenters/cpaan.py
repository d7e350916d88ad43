"""Covariance-Preserving Adversarial Augmentation Networks.

H. Gao, Z. Shou, A. Zareian, H. Zhang, S.-F. Chang, *Low-shot Learning via Covariance-Preserving Adversarial
Augmentation Networks*, NeurIPS 2018.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from cpaan.augmenters.base import BaseAugmenter, check_novel
from cpaan.augmenters.fitting import FEWEST_TO_META_TRAIN, fit_further, fit_model
from cpaan.augmenters.model import Model
from cpaan.augmenters.storage import model_details, model_tensors, restore_gain, restore_model
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.gan.loop import Callback
from cpaan.gan.recipe import Recipe, make_recipe
from cpaan.threads import of_covariance, threads_for
from cpaan.training.device import choose_device
from cpaan.training.progress import Progress


class CPAAN(BaseAugmenter):
    """Make examples for classes with a handful of them by translating examples of well-populated ones.

    ``fit`` meta-trains on base classes alone: in every episode some of them play novel classes of which a few shots
    are known. ``augment`` then makes examples for classes that were never seen, without further training.

    Parameters
    ----------
    variant : {"ccov-gan", "cdeli-gan", "ccyc-gan", "c-gan"}
        The paper's final network, and the ones that lead to it.
    recipe : {"default", "quick", "paper"}
        Where the numbers below come from: some two minutes or one on two cores, or the paper's every number.
    random_state : int, RandomState or None
        Decides every random draw. The same integer on the same machine gives the same bits.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes, or twice or four times that, if it gains on base classes held out as if novel.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size: as in imbalanced-learn, or ``"base_mean"``; see
        `cpaan.augmenters.base.BaseAugmenter`.
    reservoir : int
        Base examples of each class that the model keeps, in half precision, to translate later. With 0 it keeps
        Gaussian summaries only and translates draws from those, for data that must not leave.
    device : {"auto", "cpu", "cuda", "mps"}
        ``"auto"`` takes a GPU that torch can use, or else the CPU.
    tell : callable, optional
        Called with a `Progress` about a hundred times during training, as with all estimators that are trained.
    callbacks : sequence of callables
        Called as often with a `TrainingEvent`, by which they may also look at the networks, score them, and end
        training; see `cpaan.gan.callbacks` for early stopping, checkpoints, printed progress and TensorBoard. A
        training that is to survive a crash has ``Checkpoints(folder, resume=True)``: the same call goes on with it.
    held_out : float or "auto"
        Share of the base classes that networks are not trained on, so that callbacks can score them on these as if
        novel. They still lend examples to novel classes afterwards. ``"auto"``, where the recipe has patience, no
        callback is an `EarlyStopping`, and at least twenty base classes have ten examples: a quarter of these and fifty
        at most, by which `fit` itself decides when to stop and which networks to keep. Otherwise none, as in
        `partial_fit`. Not used by `fit_direct`.
    episodes, learning_rate, … : optional
        Any number of the recipe, by name; see `cpaan.gan.recipe.Recipe`.

    Attributes
    ----------
    generator_ : torch.nn.Module, G_n(y_n; x_b, y_b)
    model_ : Model, all that was learned and kept
    expected_gain_ : dict or None
        What the nearest prototype gains from examples about estimated centres, in points of accuracy, on base classes
        held out as if novel: ``"shots"``, a tuple of numbers of shots, and for each of them the mean and the half-width
        of its 95 % interval on held-out classes (``"lsl"``) and on all (``"glsl"``). None where ``anchor="shots"`` or
        there was nothing to hold out. Features that were trained on the base classes promise more than novel classes
        then give; see `cpaan.augmenters.advice`.
    history_ : dict, the episodes of the logging steps and the mean of every loss term at each
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class; novel ones are made ``model_.size`` times as large
    n_features_in_ : int

    Notes
    -----
    Base examples of more than 2²⁸ numbers (a gigabyte in single precision) are not copied: they are read from where
    they lie, in blocks or a few rows at a time. With a memory map, ``np.load("bank.npy", mmap_mode="r")``, they never
    are in memory all at once. The rows of a class should then lie together: rows in any order work, and take longer to
    read. On a GPU they are held as long as they take no more than 40 % of its free memory. Covariances of limited rank
    are exact up to about a minute's work and all but exact for larger banks.

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

    model_: Model
    history_: dict[str, Any]
    expected_gain_: dict[str, Any] | None

    def __init__(
        self,
        *,
        variant: str = "ccov-gan",
        recipe: str = "default",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
        reservoir: int = 100,
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        callbacks: Sequence[Callback] = (),
        held_out: float | str = "auto",
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
        adversarial_weight: float | None = None,
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
        anchor: str | None = None,
        completion: bool | None = None,
        center_noise: float | None = None,
        search_rounds: int | None = None,
        patience: int | None = None,
        spread: float | None = None,
    ) -> None:
        self.variant = variant
        self.recipe = recipe
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy
        self.reservoir = reservoir
        self.device = device
        self.tell = tell
        self.callbacks = callbacks
        self.held_out = held_out
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
        self.adversarial_weight = adversarial_weight
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
        self.anchor = anchor
        self.completion = completion
        self.center_noise = center_noise
        self.search_rounds = search_rounds
        self.patience = patience
        self.spread = spread

    def fit_direct(self, X_base: Any, y_base: Any, X_novel: Any, y_novel: Any) -> "CPAAN":
        """Train on given base and novel classes, where there are too few base classes to meta-train.

        The networks then know these novel classes alone; `augment` is to be called with the same ones.
        """
        base, novel = FeatureSet(X_base, y_base), FeatureSet(X_novel, y_novel)
        check_novel(novel, base.classes, base.dimension)
        with threads_for(of_covariance(len(base), base.dimension)):
            self._train(base, novel)
        return self._remember(base)

    def partial_fit(self, X_base: Any, y_base: Any, *, episodes: int = 300) -> "CPAAN":
        """Go on training with further base classes, or with further examples of those that are known.

        What is kept of the first fit: the networks, from which training goes on; the units of the features; every
        number of the recipe; and of each base class the mean, the covariance and the reservoir of examples. Episodes
        draw from that reservoir, or with ``reservoir=0`` from Gaussians, so that the base data of the first fit need
        not be there any more. Means and covariances of a class that gets further examples are those of all of them.
        The temperature of the neighbourhood and the estimate of centres are found anew, on all classes. Adam starts
        anew, at the rate that the first fit ended with. Without a previous fit it is `fit`.

        Parameters
        ----------
        X_base : array, tensor or data frame of shape (n, D)
            Further examples of base classes.
        y_base : sequence of n labels
            Their classes, known or new.
        episodes : int, default=300
            Further training steps; a first fit has as many as its recipe says.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(80, 5)), np.repeat(np.arange(8), 10)
        >>> augmenter = CPAAN(episodes=5, random_state=0, device="cpu").fit(X[:50], y[:50])
        >>> augmenter.partial_fit(X[50:], y[50:], episodes=5).classes_
        (0, 1, 2, 3, 4, 5, 6, 7)
        """
        if not hasattr(self, "model_"):
            return self.fit(X_base, y_base)
        if hasattr(self, "feature_names_in_"):
            validate_data(self, X_base, reset=False, skip_check_array=True)
        if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 1:
            raise InputError(f"episodes must be a whole number of at least 1, not {episodes!r}")
        base = FeatureSet(X_base, y_base)
        if base.dimension != self.n_features_in_:
            raise InputError(
                f"X has {base.dimension} features, but CPAAN is expecting {self.n_features_in_} features as input: "
                "further base classes must come from the same representation"
            )
        before = self.history_["episode"][-1]
        with threads_for(of_covariance(len(base), base.dimension)):
            self.model_, history, gains = fit_further(
                self.model_,
                base,
                episodes=episodes,
                reservoir=self._reservoir(),
                seed=(self._seed(0) + before) % 2**31,
                callbacks=self._all_callbacks(),
                held_out=self.held_out,
            )
        logged = {"episode": [before + episode for episode in history.episodes], **history.losses}
        self.history_ = {name: [*self.history_[name], *values] for name, values in logged.items()}
        self.expected_gain_ = gains.expected() if gains.shots else None
        self.classes_, self.average_size_ = self.model_.base.classes, self.model_.base.average_size
        return self

    @property
    def generator_(self) -> torch.nn.Module:
        """The trained G_n, an ordinary module."""
        return self.model_.networks.novel_generator

    def _learn(self, base: FeatureSet) -> None:
        self._train(base, None)

    def _learn_for(self, base: FeatureSet, novel: FeatureSet) -> FeatureSet:
        if base.n_classes >= FEWEST_TO_META_TRAIN:
            self._train(base, None)
            return base
        warnings.warn(
            f"{base.n_classes} {'class is' if base.n_classes == 1 else 'classes are'} large enough to be base classes, "
            "too few to meta-train: training directly on base and novel classes",
            stacklevel=4,
        )
        # A class is not translated to itself where there is another one.
        apart = [name for name in base.classes if name not in set(novel.classes)]
        base = base.select(apart or base.classes)
        self._train(base, novel)
        return base

    def _train(self, base: FeatureSet, novel: FeatureSet | None) -> None:
        changes = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        self.model_, history, gains = fit_model(
            base,
            novel,
            variant=self.variant,
            recipe=make_recipe(self.recipe, **changes),
            reservoir=self._reservoir(),
            seed=self._seed(0),
            device=choose_device(self.device),
            callbacks=self._all_callbacks(),
            held_out=self.held_out,
        )
        self.history_ = {"episode": history.episodes, **history.losses}
        self.expected_gain_ = gains.expected() if gains.shots else None

    def _reservoir(self) -> int:
        if not isinstance(self.reservoir, int) or self.reservoir < 0:
            raise InputError(f"reservoir must be a whole number of at least 0, not {self.reservoir!r}")
        return self.reservoir

    def _all_callbacks(self) -> list[Callback]:
        if callable(self.callbacks) or not all(map(callable, self.callbacks)):
            raise InputError(f"callbacks must be a list of what can be called with an event, not {self.callbacks!r}")
        # Whatever shows the progress comes last, to tell of it when all is done.
        return [*self.callbacks, *(() if self.tell is None else (self.tell,))]

    def _filled_size(self) -> int:
        return self.model_.size * self.average_size_

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        generator = torch.Generator(self.model_.base.prototypes.device).manual_seed(self._seed(1))
        base_classes = set(self.classes_)
        known = np.array([name in base_classes for name in novel.classes])
        if not known.any():
            return self._make_with(self.model_, novel, wanted, generator)
        # A base class that is filled up knows where its centre is: there is nothing to estimate, nor to make up for.
        made = np.empty((int(wanted.sum()), novel.dimension))
        for model, chosen in ((self.model_, ~known), (replace(self.model_, center=None), known)):
            if chosen.any():
                numbers = np.where(chosen, wanted, 0)
                made[chosen.repeat(wanted)] = self._make_with(model, novel, numbers, generator)
        return made

    def _make_with(
        self, model: Model, novel: FeatureSet, wanted: NDArray[np.int64], generator: torch.Generator
    ) -> NDArray[np.floating]:
        scaling = model.base.scaling
        features, labels = novel.to_torch()
        parts = model.make_from_shots(scaling.apply(features.double()), labels, torch.as_tensor(wanted), generator)
        # Rounded a part at a time, by torch, in which what is too large becomes infinite without a warning.
        made = torch.empty((int(wanted.sum()), novel.dimension), dtype=features.dtype)
        start = 0
        for part in parts:
            made[start : start + len(part)] = scaling.undo(part)
            start += len(part)
        found: NDArray[np.floating] = made.numpy()
        return found

    def _details(self) -> dict[str, Any]:
        return {
            **super()._details(),
            **model_details(self.model_),
            "history": self.history_,
            "expected_gain": self.expected_gain_,
        }

    def _tensors(self) -> dict[str, Tensor]:
        return model_tensors(self.model_)

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        self.model_ = restore_model(tensors, config).to(choose_device(self.device))
        self.history_ = config["history"]
        self.expected_gain_ = restore_gain(config.get("expected_gain"))
