"""An estimate of the class centre plus a source of deviations."""

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.augmenters.base import BaseAugmenter
from cpaan.augmenters.size_search import LARGEST, choose_size
from cpaan.centers import CENTERS, Calibrated, Center, ShotMean
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_arrays
from cpaan.deviations import DEVIATIONS, Deviations, Translated
from cpaan.deviations.base import shares_mean, synthesize
from cpaan.errors import InputError
from cpaan.estimator import as_json, from_json
from cpaan.math.scaling import Scaling
from cpaan.parts import nested_changes, with_nested
from cpaan.training.bank import ClassBank, lay_out
from cpaan.training.weights import part_of

AUTO = "auto"
AnchoredT = TypeVar("AnchoredT", bound="Anchored")


class Anchored(BaseAugmenter):
    """Make examples of a class about an estimate of its centre, with deviations from a source of them.

    x = P + δ,   P the centre, estimated from the shots,   δ a deviation

    `CPAAN`, `PooledGaussian`, `DeviationTransfer` and `EmpiricalBayes` are cells of this grid with names of their own.

    Parameters
    ----------
    center : Center or {"shots", "posterior", "calibrated"}
        The mean of the shots; its posterior mean, `PosteriorMean`; or that with lengths calibrated on base classes,
        `Calibrated`.
    deviations : Deviations or {"none", "gaussian", "transfer", "c-gan", "ccyc-gan", "cdeli-gan", "ccov-gan"}
        None: all examples lie at the centre; `Gaussian`, with the covariance that base classes share; `Transfer`, those
        of base examples from their class means; or `Translated`, base examples translated by adversarial networks.
    joint_mean : bool or "auto"
        Whether to move the examples of a class so that real and synthetic ones together have their mean at the centre.
        ``"auto"`` does for estimated centres; not for shot means, nor for Gaussian draws about posterior means.
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes, or with a calibrated centre twice or four times that, if it gains on held-out base classes.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size; see `cpaan.augmenters.base.BaseAugmenter`.

    Attributes
    ----------
    center_, deviations_ : the fitted parts
    units_ : Scaling, from the user's units to those of the parts
    size_ : int, size that novel classes are filled up to, in average sizes of base classes
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(8, 1, 5)) * 5 + rng.normal(size=(8, 30, 5)), np.repeat(np.arange(8), 30)
    >>> augmenter = Anchored(center="calibrated", deviations="transfer", random_state=0).fit(X.reshape(-1, 5), y)
    >>> X_new, y_new = augmenter.augment(rng.normal(size=(2, 5)), ["new", "new"])
    >>> X_new.shape, set(y_new.tolist())
    ((28, 5), {'new'})
    >>> Anchored(center=Calibrated(rounds=3)).get_params()["center__rounds"]
    3
    """

    center_: Center
    deviations_: Deviations
    units_: Scaling
    size_: int
    joint_mean: bool | str = AUTO

    def __init__(
        self,
        *,
        center: str | Center = "calibrated",
        deviations: str | Deviations = "gaussian",
        joint_mean: bool | str = AUTO,
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
    ) -> None:
        self.center = center
        self.deviations = deviations
        self.joint_mean = joint_mean
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy

    def _make_center(self) -> Center:
        """Return the centre that the parameters ask for, unfitted."""
        return find_center(self.center)

    def _make_deviations(self) -> Deviations:
        """Return the deviations that the parameters ask for, unfitted."""
        return find_deviations(self.deviations)

    def resolve(self, name: str) -> Any:
        """Return the part that a parameter stands for, where it was given by name."""
        if name == "center":
            return self._make_center()
        return self._make_deviations() if name == "deviations" else getattr(self, name)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; `deep` adds those of the parts, such as ``center__rounds``."""
        shallow: dict[str, Any] = super().get_params(deep=False)  # type: ignore[no-untyped-call]
        return with_nested(self, shallow) if deep else shallow

    def set_params(self: AnchoredT, **params: Any) -> AnchoredT:
        """Set parameters, and those of the parts by names such as ``center__rounds``."""
        for name, value in nested_changes(self, params).items():
            setattr(self, name, value)
        return self

    def _learn(self, base: FeatureSet) -> None:
        self._fit_parts(base)

    def _fit_parts(self, base: FeatureSet, novel: FeatureSet | None = None) -> None:
        """Fit the centre, then the deviations; with `novel`, networks directly on base and novel classes."""
        # Networks that are trained on few base classes know their novel classes by the mean of their shots.
        center, deviations = self._make_center() if novel is None else ShotMean(), self._make_deviations()
        center.check()
        deviations.check()
        seed = self._seed(0) if center.seeded or deviations.seeded else 0
        own = deviations.units(base)
        units = center.units(base) if own is None else own
        bank = lay_out(base, units, deviations.device_)
        center.fit(bank, seed=seed)
        if novel is None:
            deviations.fit(bank, center, seed=seed)
        else:
            assert isinstance(deviations, Translated)
            deviations.fit(bank, center, seed=seed, novel=lay_out(novel, units, deviations.device_))
        self.center_, self.deviations_ = center, deviations
        self.units_ = Scaling(torch.zeros(base.dimension, dtype=torch.double), 1.0) if units is None else units
        self.size_ = self._chosen_size(bank, seed)

    def _chosen_size(self, bank: ClassBank, seed: int) -> int:
        if not isinstance(self.center_, Calibrated):
            return 1
        return choose_size(bank, self.center_, factor=self.units_.factor, seed=seed)

    def _filled_size(self) -> int:
        return self.size_ * self.average_size_

    def _shares_mean(self) -> bool:
        return shares_mean(self.center_, self.deviations_) if self.joint_mean == AUTO else bool(self.joint_mean)

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        generator = torch.Generator(self.deviations_.device_).manual_seed(self._seed(1))
        joint, base_classes = self._shares_mean(), set(self.classes_)
        # A base class that is filled up knows where its centre is.
        known = np.array([name in base_classes for name in novel.classes])
        if not known.any() or not (joint or isinstance(self.deviations_, Translated)):
            return self._make_about(self.center_, novel, wanted, generator, joint_mean=joint)
        made = np.empty((int(wanted.sum()), novel.dimension))
        for center, chosen, moved in ((self.center_, ~known, joint), (ShotMean(), known, False)):
            if chosen.any():
                numbers = np.where(chosen, wanted, 0)
                made[chosen.repeat(wanted)] = self._make_about(center, novel, numbers, generator, joint_mean=moved)
        return made

    def _make_about(
        self,
        center: Center,
        novel: FeatureSet,
        wanted: NDArray[np.int64],
        generator: torch.Generator,
        *,
        joint_mean: bool,
    ) -> NDArray[np.floating]:
        features, labels = novel.to_torch()
        units, dtype = self.units_, torch.promote_types(features.dtype, torch.float32)
        shots, number = units.apply(features.double()), torch.as_tensor(wanted)
        parts = synthesize(
            center, self.deviations_, shots, labels, number, generator, joint_mean=joint_mean, dtype=dtype
        )
        # Rounded a part at a time, by torch, in which what is too large becomes infinite without a warning.
        made, start = torch.empty((int(wanted.sum()), novel.dimension), dtype=dtype), 0
        for part in parts:
            made[start : start + len(part)] = units.undo(part.double())
            start += len(part)
        found: NDArray[np.floating] = made.numpy()
        return found

    def _details(self) -> dict[str, Any]:
        return {
            **super()._details(),
            "center": {**as_json(self.center_), "learned": self.center_.details()},
            "scale": self.units_.factor,
            "size": self.size_,
            **self.deviations_.details(),
        }

    def _tensors(self) -> dict[str, Tensor]:
        of_center = {f"center.{name}": value for name, value in self.center_.tensors().items()}
        return {"units.origin": self.units_.origin, **of_center, **self.deviations_.tensors()}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        sizes = {"C": len(self.classes_), "D": self.n_features_in_}
        require_arrays(tensors, {"units.origin": "D float64"}, **sizes)
        self.units_ = Scaling(tensors["units.origin"], positive_number(config["scale"], "scale"))
        center = from_json({name: config["center"][name] for name in ("part", "parameters")})
        if not isinstance(center, Center):
            raise InputError("its center is another kind of part")
        center.restore(part_of(tensors, "center."), config["center"]["learned"], **sizes)
        deviations = self._make_deviations()
        deviations.restore(tensors, config, **sizes)
        self.size_ = as_whole_number(config["size"], "size", 1)
        if self.size_ > LARGEST:
            raise InputError(f"size is {self.size_}, larger than novel classes are ever made")
        self.center_, self.deviations_ = center, deviations


def find_center(center: str | Center) -> Center:
    """Return a centre given by name, or an unfitted copy."""
    if isinstance(center, Center):
        return center.but()
    if center not in CENTERS:
        raise InputError(f"unknown center {center!r}; choose one of {', '.join(CENTERS)}, or give a Center")
    return CENTERS[center]()


def find_deviations(deviations: str | Deviations) -> Deviations:
    """Return deviations given by name, or an unfitted copy."""
    if isinstance(deviations, Deviations):
        return deviations.but()
    if deviations not in DEVIATIONS:
        known = ", ".join(DEVIATIONS)
        raise InputError(f"unknown deviations {deviations!r}; choose one of {known}, or give Deviations")
    return DEVIATIONS[deviations]()
