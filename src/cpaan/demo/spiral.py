"""The spiral part of the demonstration: every variant on the paper's toy, trained directly."""

from collections.abc import Callable
from typing import Any

import torch

from cpaan.augmenters.named import CPAAN
from cpaan.data.feature_set import FeatureSet
from cpaan.data.low_shot import LowShotSplit
from cpaan.data.toys import make_spiral
from cpaan.gan.objective import VARIANTS
from cpaan.math.prototypes import prototypes
from cpaan.methods import set_numbers
from cpaan.training.bank import draw_categories
from cpaan.training.progress import Bars, Progress

Tell = Callable[[Progress], None]

# Two dimensions need small networks; all else is as in the recipe.
SPIRAL: dict[str, Any] = {
    "episodes": 800,
    "learning_rate": 5e-4,
    "momentum": 0.5,
    "novel_per_episode": 2,
    "shots_per_episode": 4,
    "batch_size": 136,
    "cycle_weight": 5.0,
    "covariance_weight": 0.5,
    "covariance_pairs": "all",
    "noise_dimension": 8,
    "width": 128,
    "standardize": False,
}
POINTS = 300


def fit_spiral(split: LowShotSplit, variant: str, seed: int, tell: Tell | None = None, **changes: Any) -> CPAAN:
    """Train one variant directly on the arms of a spiral."""
    base, shots = split.base, split.shots
    augmenter = CPAAN(variant=variant, recipe="quick", random_state=seed, device="cpu", tell=tell)
    set_numbers(augmenter, SPIRAL | changes)
    return augmenter.fit_direct(base.features, base.names, shots.features, shots.names)


def spiral_points(variant: str, seed: int, bars: Bars) -> tuple[FeatureSet, FeatureSet]:
    """Train a variant; give points that it makes of the novel arms, and the same translated back to the base arms."""
    split = make_spiral(random_state=seed)
    augmenter = fit_spiral(split, variant, seed, bars(f"spiral, {variant}"))
    features, labels = augmenter.augment(split.shots.features, split.shots.names, per_class=POINTS)
    made = FeatureSet(features, labels)
    if VARIANTS[variant].cycle:
        return made, translate_back(augmenter, split, made, seed)
    # c-GAN has no way back of its own: another one is trained with the roles of the arms exchanged.
    opposite = LowShotSplit(base=split.shots, shots=split.base, unseen=split.base)
    way_back = fit_spiral(opposite, variant, seed, bars(f"spiral, {variant} back"))
    return made, translate_back(way_back, split, made, seed)


@torch.no_grad()
def translate_back(augmenter: CPAAN, split: LowShotSplit, made: FeatureSet, seed: int) -> FeatureSet:
    """Translate synthetic novel points to base arms drawn at random.

    By G_b where the model has one; otherwise the model itself was trained from novel to base arms.
    """
    model = augmenter.model_
    scaling = augmenter.units_
    generator = torch.Generator().manual_seed(seed)
    base_prototypes = prototypes(*_scaled(augmenter, split.base), split.base.n_classes)
    novel_prototypes = prototypes(*_scaled(augmenter, split.shots), split.shots.n_classes)
    points, labels = _scaled(augmenter, made)
    arms = draw_categories(torch.ones(split.base.n_classes), len(points), generator)
    source, target = novel_prototypes[labels], base_prototypes[arms]
    if model.networks.base_generator is not None and model.networks.noise is not None:
        noise = model.networks.noise(model.networks.noise.draw((len(points),), generator))
        returned = model.networks.base_generator(points, source, target, noise)
    else:
        returned = model.networks.novel_generator(points, source, target)
    return FeatureSet(scaling.undo(returned.double()).numpy(), arms.numpy(), split.base.classes)


def _scaled(augmenter: CPAAN, points: FeatureSet) -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = points.to_torch()
    return augmenter.units_.apply(features.double()).float(), labels
