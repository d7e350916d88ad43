"""One novel class with its nearest base classes in the plane: what the concept figures are drawn from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from cpaan.errors import InputError
from cpaan.evaluation.sample import RealSample, Sample

Points = NDArray[np.float64]
DEVIATIONS = 2.0  # of an ellipse: what it encloses of a Gaussian in the plane is 86 %


@dataclass(frozen=True, eq=False)
class ClassView:
    """Projections of a novel class and of base classes on a plane.

    Attributes
    ----------
    name : of the novel class
    base_names : of the base classes nearest to it
    real, shots : points of the novel class
    base : points of each of these base classes
    others : points of base classes that are nearest to other novel classes
    made : points that each method made
    """

    name: str
    base_names: tuple[str, ...]
    real: Points
    shots: Points
    base: tuple[Points, ...]
    others: tuple[Points, ...]
    made: dict[str, Points]


def class_view(sample: Sample, name: str | None = None) -> ClassView:
    """Look at one novel class and where its nearest base classes lie: on the plane in which they differ most.

    Parameters
    ----------
    sample : of a run
    name : of a class of the sample; by default the one whose shots are most typical of it
    """
    index = _index(sample.real, name)
    own, related, _ = _parts(sample.real, index)
    shown = np.concatenate([own, *related])
    origin = shown.mean(0)
    return _projected(sample, index, _plane(shown - origin), origin, centred=False)


def variation_view(sample: Sample, name: str | None = None) -> ClassView:
    """Look at how one novel class and base classes vary: on the plane in which all of them do so most.

    The origin is the centre of the novel class; base classes are moved there.

    Parameters
    ----------
    sample : of a run
    name : of a class of the sample; by default the one whose shots are most typical of it
    """
    index = _index(sample.real, name)
    own, related, others = _parts(sample.real, index)
    deviations = [(part - part.mean(0)) / len(part) ** 0.5 for part in (own, *related, *others)]
    return _projected(sample, index, _plane(np.concatenate(deviations)), own.mean(0), centred=True)


def _parts(real: RealSample, index: int) -> tuple[Points, list[Points], list[Points]]:
    """Give the features of a novel class, of the base classes nearest to it, and of the other base classes."""
    near = real.nearest[index]
    far = [base for base in range(len(real.base_classes)) if base not in near]
    related, others = (
        [real.base[real.base_labels == base].astype(np.float64) for base in part] for part in (near, far)
    )
    return real.real[real.real_labels == index].astype(np.float64), related, others


def _plane(deviations: Points) -> Points:
    _, _, directions = np.linalg.svd(deviations, full_matrices=False)
    plane: Points = directions[:2].T
    return plane


def _projected(sample: Sample, index: int, plane: Points, origin: Points, *, centred: bool) -> ClassView:
    real = sample.real
    own, related, others = _parts(real, index)

    def flat(features: NDArray[np.floating]) -> Points:
        places: Points = (features - origin) @ plane
        return places

    def moved(features: Points) -> Points:
        places = flat(features)
        return places - places.mean(0) if centred else places

    return ClassView(
        name=real.classes[index],
        base_names=tuple(real.base_classes[base] for base in real.nearest[index]),
        real=flat(own),
        shots=flat(real.shots[real.shot_labels == index]),
        base=tuple(map(moved, related)),
        others=tuple(map(moved, others)),
        made={method: flat(part.made[part.made_labels == index]) for method, part in sample.made.items()},
    )


def draw_points(ax: Axes, points: Points, **style: Any) -> None:
    """Draw points in the style of `Axes.scatter`."""
    ax.scatter(points[:, 0], points[:, 1], **style)


def draw_ellipse(ax: Axes, points: Points, *, at: Points | None = None, **style: Any) -> None:
    """Draw the covariance of points as an ellipse about their mean, or about another place."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    width, height = 2 * DEVIATIONS * np.sqrt(np.maximum(values, 0))
    x, y = points.mean(0) if at is None else at
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    ax.add_patch(Ellipse((float(x), float(y)), float(width), float(height), angle=angle, **style))


def _strangeness(real: RealSample, index: int) -> float:
    """Measure how far the mean of the shots of a class is from that of its examples, by how much these differ."""
    own = real.real[real.real_labels == index].astype(np.float64)
    away = real.shots[real.shot_labels == index].mean(0) - own.mean(0)
    return float(np.linalg.norm(away) / (np.linalg.norm(own.std(0)) + 1e-12))


def _index(real: RealSample, name: str | None) -> int:
    if name is None:
        return int(np.argmin([_strangeness(real, index) for index in range(len(real.classes))]))
    if name not in real.classes:
        raise InputError(f"the sample has no class {name!r}; it has {', '.join(real.classes)}")
    return real.classes.index(name)
