"""What is kept of base classes, so that a classifier can be trained again without the base data."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpaan.classifiers.nearest_prototype import weighted_class_means

FloatArray: TypeAlias = npt.NDArray[np.floating]
IndexArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassMemory:
    """Means of classes, and some of their examples in half precision.

    Attributes
    ----------
    classes : (C,) labels, sorted
    counts : (C,) how many examples each class had
    means : (C, D) in double precision
    deviations : (m, D) of the examples that are kept from the mean of their class, in half precision and in units of
        `scales`; class after class
    kept : (C,) how many of them each class has: the same for all or all that there were, or none of any class
    scales : (C,) largest entry of the deviations of each class

    Examples
    --------
    >>> features, targets = np.array([[0.0], [1.0], [5.0], [8.0]]), np.array([0, 0, 0, 1])
    >>> memory = ClassMemory.of(features, targets, np.array(["low", "high"]), keep=0)
    >>> memory.training_set()
    (array([[2.],
           [8.]]), array(['low', 'high'], dtype='<U4'), array([3., 1.]))
    """

    classes: npt.NDArray[Any]
    counts: IndexArray
    means: npt.NDArray[np.float64]
    deviations: npt.NDArray[np.float16]
    kept: IndexArray
    scales: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, features: FloatArray, targets: npt.NDArray[Any], classes: npt.NDArray[Any], keep: int | None
    ) -> "ClassMemory":
        """Take the means of classes, and up to `keep` examples of each or, for None, all.

        Examples are taken evenly spread over the order in which they were given, so that nothing is drawn at random.
        """
        counts = np.bincount(targets, minlength=len(classes)).astype(np.int64)
        means = weighted_class_means(features, targets, np.ones(len(features)), len(classes))
        kept = counts if keep is None else np.minimum(counts, keep)
        deviations = np.empty((int(kept.sum()), features.shape[1]), dtype=np.float16)
        scales = np.ones(len(classes))
        of_class = np.split(np.argsort(targets, kind="stable"), counts.cumsum()[:-1])
        parts = np.split(deviations, kept.cumsum()[:-1])
        for index, (rows, part) in enumerate(zip(of_class, parts, strict=True)):
            if len(part):
                chosen = rows[np.linspace(0, len(rows) - 1, len(part)).round().astype(np.int64)]
                # Deviations in their own unit, because half precision has eleven bits and a narrow range.
                differences = features[chosen] - means[index]
                scales[index] = np.abs(differences).max() or 1.0
                part[:] = differences / scales[index]
        return cls(classes, counts, means, deviations, kept, scales)

    def training_set(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Give examples, labels and weights to train a classifier with.

        The examples of a class are moved together so that their mean is that of all the examples that it had, and
        weigh together as much as these did. Where none were kept, the mean stands for them.
        """
        if not len(self.deviations):
            return self.means, self.classes, self.counts.astype(np.float64)
        owners = np.repeat(np.arange(len(self.classes)), self.kept)
        deviations = self.deviations.astype(np.float64)
        starts = np.concatenate([[0], self.kept.cumsum()[:-1]])
        offsets = np.add.reduceat(deviations, starts, axis=0) / self.kept[:, np.newaxis]
        deviations -= offsets[owners]
        deviations *= self.scales[owners, np.newaxis]
        deviations += self.means[owners]
        return deviations, self.classes[owners], (self.counts / self.kept)[owners]
