"""Cells of the grid centre × deviations that have names: the paper's method and three closed forms."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sklearn.utils.validation import validate_data

from cpaan.augmenters.anchored import Anchored, find_center
from cpaan.augmenters.base import check_novel
from cpaan.centers import Calibrated, Center, PosteriorMean, ShotMean
from cpaan.data.feature_set import FeatureSet
from cpaan.deviations import Deviations, Gaussian, Transfer, Translated
from cpaan.deviations.translated import FEWEST_TO_META_TRAIN
from cpaan.deviations.translator import Translator
from cpaan.errors import InputError
from cpaan.gan.loop import Callback
from cpaan.gan.recipe import Recipe, find_recipe
from cpaan.threads import of_covariance, threads_for
from cpaan.training.bank import ClassBank, lay_out
from cpaan.training.progress import Progress

SPREADS = ("within", "predictive")
QUICK_ROUNDS = 3  # of a calibrated centre given by name, with the quick recipe


class PooledGaussian(Anchored):
    """Draw examples about the mean of the shots, spread as base classes are on average.

    x ~ N(l_n, Σ_w),   Σ_w = Σ_i (x_i − l_{y_i})(x_i − l_{y_i})ᵀ / (n − C) over base examples

    The cell ``shots+gaussian``. The mean of a class stays where its shots happen to lie. Base classes of one example
    each say nothing about Σ_w, which is then zero, and the examples are copies of l_n.

    Parameters
    ----------
    random_state, per_class, sampling_strategy
        As in `Anchored`.

    Examples
    --------
    >>> X_base, y_base = [[0.0, 1.0], [2.0, 1.0], [5.0, 3.0], [8.0, 3.0]], ["a", "a", "b", "b"]
    >>> augmenter = PooledGaussian(random_state=0).fit(X_base, y_base)
    >>> X_new, y_new = augmenter.augment([[9.0, 7.0]], ["c"], per_class=3)
    >>> X_new[:, 1], y_new
    (array([7., 7., 7.]), array(['c', 'c', 'c'], dtype='<U1'))
    """

    def __init__(
        self, *, random_state: Any = None, per_class: int | None = None, sampling_strategy: Any = "auto"
    ) -> None:
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _make_center(self) -> Center:
        return ShotMean()

    def _make_deviations(self) -> Deviations:
        return Gaussian()


class DeviationTransfer(Anchored):
    """Move base examples to where the novel class is.

    x = l_n + (x_b − l_b),   b ~ α(·, n),   x_b a random example of base class b

    The cell ``shots+transfer``.

    Parameters
    ----------
    reservoir, neighborhood, perplexity
        As in `cpaan.deviations.Transfer`.
    random_state, per_class, sampling_strategy
        As in `Anchored`.

    Examples
    --------
    >>> import numpy as np
    >>> augmenter = DeviationTransfer(random_state=0).fit([[0.0], [2.0], [10.0], [14.0]], ["a", "a", "b", "b"])
    >>> X_new, y_new = augmenter.augment([[100.0]], ["c"], per_class=50)
    >>> np.unique(X_new)
    array([ 98.,  99., 101., 102.])
    """

    def __init__(
        self,
        *,
        reservoir: int = 100,
        neighborhood: str = "uniform",
        perplexity: float = 10.0,
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.reservoir = reservoir
        self.neighborhood = neighborhood
        self.perplexity = perplexity
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _make_center(self) -> Center:
        return ShotMean()

    def _make_deviations(self) -> Deviations:
        return Transfer(reservoir=self.reservoir, neighborhood=self.neighborhood, perplexity=self.perplexity)


class EmpiricalBayes(Anchored):
    """Draw examples about the most probable class centre, given the shots and how base classes vary.

    x ~ N(m, Σ_w), or N(m, Σ_w + V) with ``spread="predictive"``, where N(m, V) is the posterior of the centre

    The cell ``posterior+gaussian``. M synthetic examples and K shots have their common mean at (M m + K l_n) / (M + K)
    on average, so that a classifier of class means uses m where M is much larger than K; as K grows, m becomes l_n.

    Parameters
    ----------
    ridge : float
        As in `cpaan.centers.PosteriorMean`.
    spread : {"within", "predictive"}
        Spread of a class, or of an example given the shots, which includes the uncertainty V of the centre.
    random_state, per_class, sampling_strategy
        As in `Anchored`.

    Examples
    --------
    >>> X_base = [[0.0, 1.0], [0.0, -1.0], [10.0, 1.0], [10.0, -1.0]]  # classes differ in the first feature
    >>> augmenter = EmpiricalBayes(ridge=0.01, random_state=0).fit(X_base, ["a", "a", "b", "b"])
    >>> X_new, y_new = augmenter.augment([[4.0, 4.0]], ["c"], per_class=1000)
    >>> X_new.mean(axis=0).round(1)
    array([4. , 0.5])
    """

    def __init__(
        self,
        *,
        ridge: float = 1.0,
        spread: str = "within",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.ridge = ridge
        self.spread = spread
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _make_center(self) -> Center:
        if self.spread not in SPREADS:
            raise InputError(f"unknown spread {self.spread!r}; choose one of {', '.join(SPREADS)}")
        return PosteriorMean(ridge=self.ridge, predictive=self.spread == "predictive")

    def _make_deviations(self) -> Deviations:
        return Gaussian()


class CPAAN(Anchored):
    """Make examples for classes with a handful of them by translating examples of well-populated ones.

    H. Gao, Z. Shou, A. Zareian, H. Zhang, S.-F. Chang, *Low-shot Learning via Covariance-Preserving Adversarial
    Augmentation Networks*, NeurIPS 2018. ``fit`` meta-trains on base classes alone: in every episode some of them play
    novel classes of which a few shots are known. ``augment`` then makes examples for classes that were never seen,
    without further training.

    The cells ``CENTER+VARIANT``, by default ``calibrated+ccov-gan``.

    Parameters
    ----------
    variant : {"ccov-gan", "cdeli-gan", "ccyc-gan", "c-gan"}
        The paper's final network, and the ones that lead to it.
    recipe : Recipe or {"default", "quick", "paper"}
        Every number of the training: about two minutes or one on two cores, or the paper's every number. Change some
        with ``PAPER.but(cycle_weight=2)``, from `cpaan.gan.recipe`.
    center : Center or {"shots", "posterior", "calibrated"}, optional
        Where examples are made; by default the recipe's own: ``"shots"`` for the paper, otherwise ``"calibrated"``.
    residual_covariance : bool
        Restore the within-class covariance that the generator loses, about posterior and calibrated centres.
    spread : float
        Factor on the deviations of examples from their class mean.
    episodes : int, optional
        Training steps, instead of the recipe's.
    per_class, sampling_strategy, random_state
        As in `Anchored`. The same integer `random_state` on the same machine gives the same bits.
    reservoir : int
        Base examples of each class that the model keeps, in half precision, to translate later. With 0 it keeps
        Gaussian summaries only and translates draws from those, for data that must not leave.
    held_out : float or "auto"
        Share of the base classes that networks are not trained on, so that callbacks can score them on these as if
        novel. They still lend examples to novel classes afterwards. ``"auto"``, where the recipe has patience, no
        callback is an `EarlyStopping`, and at least twenty base classes have ten examples: a quarter of these and fifty
        at most, by which `fit` itself decides when to stop and which networks to keep. Otherwise none, as in
        `partial_fit`. Not used by `fit_direct`.
    device : {"auto", "cpu", "cuda", "mps"}
        ``"auto"`` takes a GPU that torch can use, or else the CPU.
    callbacks : sequence of callables
        Called about a hundred times during training with a `TrainingEvent`; see `cpaan.gan.callbacks` for early
        stopping, checkpoints, printed progress and TensorBoard. A training that is to survive a crash has
        ``Checkpoints(folder, resume=True)``: the same call continues it.
    tell : callable, optional
        Called as often with a `Progress`, as with all estimators that are trained.

    Attributes
    ----------
    generator_ : torch.nn.Module, G_n(y_n; x_b, y_b)
    model_ : Translator, the networks and the summary of the base classes
    expected_gain_ : dict or None
        Gain of the calibrated centre on held-out base classes; see `cpaan.centers.Calibrated`. None for other centres,
        or where there was nothing to hold out. Features that were trained on the base classes promise more than novel
        classes then give; see `cpaan.centers.advice`.
    history_ : dict, the episodes of the logging steps and the mean of every loss term at each
    center_, deviations_, units_, size_, classes_, average_size_, n_features_in_ : as in `Anchored`

    Notes
    -----
    ``CPAAN()`` is not the paper's method to the letter; ``CPAAN(recipe="paper")`` is. The default differs in this:

    - Examples are made about a calibrated estimate of the class centre, and moved so that real and synthetic ones
      together have their mean there; the paper makes them from the mean of the shots and leaves them where they are.
    - Examples get the covariance that the generator loses, and noise where little is known of the centre.
    - Classes may be filled up to two or four times the average size of a base class, if that gains on held-out ones.
    - Training takes 3,000 episodes of 290 examples in 256 units, at a rate of 1e-3, instead of 100,000 episodes of
      1,000 examples in 512 units at 1e-4, and stops early by the score on held-out base classes.
    - Features are centred and scaled to a within-class distance of 1 instead of 0.163, and loss weights go with that
      (λ_cyc 50 instead of 5, λ_cov 10 instead of 0.5).
    - The temperature of the neighbourhood is calibrated to a perplexity of 5; base examples are drawn by similarity,
      for each novel class its own; covariances are compared at rank 64 with the 4 most similar base classes.

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

    def __init__(
        self,
        *,
        variant: str = "ccov-gan",
        recipe: str | Recipe = "default",
        center: str | Center | None = None,
        residual_covariance: bool = True,
        spread: float = 1.0,
        episodes: int | None = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
        reservoir: int = 100,
        held_out: float | str = "auto",
        device: str = "auto",
        callbacks: Sequence[Callback] = (),
        tell: Callable[[Progress], None] | None = None,
        random_state: Any = None,
    ) -> None:
        self.variant = variant
        self.recipe = recipe
        self.center = center  # type: ignore[assignment]
        self.residual_covariance = residual_covariance
        self.spread = spread
        self.episodes = episodes
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy
        self.reservoir = reservoir
        self.held_out = held_out
        self.device = device
        self.callbacks = callbacks
        self.tell = tell
        self.random_state = random_state

    def _make_center(self) -> Center:
        name = find_recipe(self.recipe).name
        center = ("shots" if name == "paper" else "calibrated") if self.center is None else self.center
        return Calibrated(rounds=QUICK_ROUNDS) if (center, name) == ("calibrated", "quick") else find_center(center)

    def _make_deviations(self) -> Translated:
        names = ("variant", "recipe", "episodes", "residual_covariance", "spread", "reservoir", "held_out")
        training = {name: getattr(self, name) for name in (*names, "device", "callbacks", "tell")}
        return Translated(**training)

    def resolve(self, name: str) -> Any:
        """Return the part that a parameter stands for, where it was given by name."""
        return find_recipe(self.recipe) if name == "recipe" else super().resolve(name)

    @property
    def model_(self) -> Translator:
        """The networks and the summary of the base classes."""
        return self._translated.model_

    @property
    def generator_(self) -> torch.nn.Module:
        """The trained G_n, an ordinary module."""
        return self.model_.networks.novel_generator

    @property
    def history_(self) -> dict[str, Any]:
        """The episodes of the logging steps, and the mean of every loss term at each."""
        return self._translated.history_

    @property
    def expected_gain_(self) -> dict[str, Any] | None:
        """The gain of the calibrated centre on held-out base classes."""
        return self.center_.expected_gain_ if isinstance(self.center_, Calibrated) else None

    @property
    def _translated(self) -> Translated:
        assert isinstance(self.deviations_, Translated)
        return self.deviations_

    def fit_direct(self, X_base: Any, y_base: Any, X_novel: Any, y_novel: Any) -> "CPAAN":
        """Train on given base and novel classes, where there are too few base classes to meta-train.

        The networks then know these novel classes alone, by the mean of their shots; call `augment` with the same ones.
        """
        base, novel = FeatureSet(X_base, y_base), FeatureSet(X_novel, y_novel)
        check_novel(novel, base.classes, base.dimension)
        with threads_for(of_covariance(len(base), base.dimension)):
            self._fit_parts(base, novel)
        return self._remember(base)

    def partial_fit(self, X_base: Any, y_base: Any, *, episodes: int = 300) -> "CPAAN":
        """Continue training with further base classes, or with further examples of known ones.

        The networks, the units of the features, every number of the recipe, and of each base class the mean, the
        covariance and the reservoir of examples are kept. Episodes draw from that reservoir, or with ``reservoir=0``
        from Gaussians, so that the base data of the first fit are not needed. Means and covariances of a class that
        gets further examples are those of all of them. The temperature of the neighbourhood and the centre are fitted
        again, to all classes. Adam starts again, at the rate that the first fit ended with. Without a previous fit it
        is `fit`.

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
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(80, 5)), np.repeat(np.arange(8), 10)
        >>> augmenter = CPAAN(episodes=5, random_state=0, device="cpu").fit(X[:50], y[:50])
        >>> augmenter.partial_fit(X[50:], y[50:], episodes=5).classes_
        (0, 1, 2, 3, 4, 5, 6, 7)
        """
        if not hasattr(self, "deviations_"):
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
        seed = (self._seed(0) + self.history_["episode"][-1]) % 2**31
        known = set(self.classes_)
        classes = (*self.classes_, *(name for name in base.classes if name not in known))
        places = {name: place for place, name in enumerate(classes)}

        def fit_center(bank: ClassBank) -> Center:
            return self._make_center().fit(bank, seed=seed)

        with threads_for(of_covariance(len(base), base.dimension)):
            further = self._further()
            bank = lay_out(base, self.units_, further.device_)
            homes = [places[name] for name in base.classes]
            deviations, center, whole = further.fit_further(bank, homes, fit_center, episodes=episodes, seed=seed)
            self.deviations_, self.center_ = deviations, center
            self.size_ = self._chosen_size(whole, seed)
        self.classes_ = classes
        self.average_size_ = round(float(deviations.model_.base.counts.double().mean()))
        return self

    def _further(self) -> Translated:
        """Return the trained networks under the present parameters, such as other callbacks."""
        found, now = self._make_deviations(), self._translated
        found.model_, found.residual_, found.history_ = now.model_, now.residual_, now.history_
        return found

    def _learn_for(self, base: FeatureSet, novel: FeatureSet) -> FeatureSet:
        if base.n_classes >= FEWEST_TO_META_TRAIN:
            self._fit_parts(base)
            return base
        warnings.warn(
            f"{base.n_classes} {'class is' if base.n_classes == 1 else 'classes are'} large enough to be base classes, "
            "too few to meta-train: training directly on base and novel classes",
            stacklevel=4,
        )
        # A class is not translated to itself where there is another one.
        apart = [name for name in base.classes if name not in set(novel.classes)]
        base = base.select(apart or base.classes)
        self._fit_parts(base, novel)
        return base
