"""Deviation transfer: what base examples differ from their class mean in, added to the mean of the shots.

The simplest translation between classes. E. Schwartz and others, "Delta-encoder: an effective sample synthesis method
for few-shot object recognition", NeurIPS 2018, learn an encoding of such differences; here they are added as they are.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.augmenters.base import BaseAugmenter
from cpaan.data.arguments import as_whole_number
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_counts
from cpaan.errors import InputError
from cpaan.math.linear_gaussian import add_centers, class_parts, to_unit
from cpaan.math.neighborhood import calibrated_temperature, make_neighborhood
from cpaan.math.prototypes import prototypes
from cpaan.training.bank import ClassBank, draw_categories

NEIGHBORHOODS = ("uniform", "soft")


class DeviationTransfer(BaseAugmenter):
    """Move base examples to where the novel class is.

    x = l_n + (x_b − l_b),   b ~ α(·, n),   x_b a random example of base class b

    Parameters
    ----------
    reservoir : int
        Most base examples of each class that are kept, in half precision, to be moved later.
    neighborhood : {"uniform", "soft"}
        How base classes are drawn: all alike, or similar ones more often, α = softmax of −‖l_b − l_n‖² / T.
    perplexity : float
        Effective number of base classes that a novel class draws from with ``"soft"``; it decides T.
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size: as in imbalanced-learn, or ``"base_mean"``; see
        `cpaan.augmenters.base.BaseAugmenter`.

    Attributes
    ----------
    deviations_ : ndarray of shape (kept, D), x_b − l_b over `size_`, class by class
    kept_ : ndarray of shape (C,), how many each class has
    size_ : the largest absolute deviation
    base_means_ : ndarray of shape (C, D), l_b
    temperature_ : T
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> augmenter = DeviationTransfer(random_state=0).fit([[0.0], [2.0], [10.0], [14.0]], ["a", "a", "b", "b"])
    >>> X_new, y_new = augmenter.augment([[100.0]], ["c"], per_class=50)
    >>> np.unique(X_new)
    array([ 98.,  99., 101., 102.])
    """

    _learned: ClassVar[Mapping[str, str]] = {
        "deviations_": "RD float16",
        "kept_": "C int",
        "size_": "float64",
        "base_means_": "CD float64",
        "temperature_": "float64",
    }

    deviations_: NDArray[np.float16]
    kept_: NDArray[np.int64]
    size_: NDArray[np.float64]
    base_means_: NDArray[np.float64]
    temperature_: NDArray[np.float64]

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

    def _learn(self, base: FeatureSet) -> None:
        self._check_parameters()
        generator = torch.Generator().manual_seed(self._seed(0))
        kept, means = [], []
        for part in class_parts(*base.to_torch(), base.n_classes):
            examples = part.double()
            order = torch.randperm(len(examples), generator=generator)[: self.reservoir]
            means.append(examples.mean(0))
            kept.append(examples[order] - means[-1])
        deviations, size = to_unit(torch.cat(kept), torch.half)
        self.deviations_, self.size_ = deviations.numpy(), np.array(size)
        self.kept_ = np.array([len(examples) for examples in kept])
        self.base_means_ = torch.stack(means).numpy()
        self.temperature_ = np.array(calibrated_temperature(torch.stack(means), float(self.perplexity)))

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        features, labels = novel.to_torch()
        dtype = torch.promote_types(features.dtype, torch.float32)
        number = torch.as_tensor(wanted)
        generator = torch.Generator().manual_seed(self._seed(1))
        centroids = prototypes(features.double(), labels, novel.n_classes)
        lenders = self._draw_lenders(centroids, number, generator)
        moved = self._bank().draw(lenders, generator).to(dtype).mul_(float(self.size_))
        made: NDArray[np.floating] = add_centers(moved, centroids, number).numpy()
        return made

    def _draw_lenders(self, centroids: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the base class of each example."""
        alike = make_neighborhood(self.neighborhood, temperature=float(self.temperature_), neighbors=1)
        similarity = alike.similarity(centroids, torch.as_tensor(self.base_means_))
        most = int(number.max())
        return draw_categories(similarity, most, generator)[torch.arange(most) < number.unsqueeze(1)]

    def _bank(self) -> ClassBank:
        kept = torch.as_tensor(self.kept_)
        labels = torch.arange(len(kept)).repeat_interleave(kept)
        return ClassBank.from_examples(torch.as_tensor(self.deviations_), labels, len(kept))

    def _check_learned(self) -> None:
        self._check_parameters()
        require_counts(self.kept_, len(self.deviations_), "kept_")
        positive_number(float(self.size_), "size_")
        positive_number(float(self.temperature_), "temperature_")

    def _check_parameters(self) -> None:
        as_whole_number(self.reservoir, "reservoir", minimum=1)
        if self.neighborhood not in NEIGHBORHOODS:
            raise InputError(f"unknown neighborhood {self.neighborhood!r}; choose one of {', '.join(NEIGHBORHOODS)}")
        if not isinstance(self.perplexity, (int, float)) or not self.perplexity > 1:
            raise InputError(f"perplexity must be a number above 1, not {self.perplexity!r}")
