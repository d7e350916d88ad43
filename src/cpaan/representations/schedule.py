"""The learning rate in the course of training."""

import math

from cpaan.representations.recipe import BackboneRecipe

_STAGES = 3
_DROP = 0.1


def learning_rate_at(progress: float, recipe: BackboneRecipe) -> float:
    """Give the learning rate at a point from 0, the first step, to 1, the end.

    >>> from cpaan.representations.recipe import PAPER
    >>> [round(learning_rate_at(progress, PAPER), 6) for progress in (0.0, 0.3, 0.34, 0.99)]
    [0.1, 0.1, 0.01, 0.001]
    """
    if progress < recipe.warmup:
        return recipe.learning_rate * progress / recipe.warmup
    if recipe.schedule == "step":
        return float(recipe.learning_rate * _DROP ** int(progress * _STAGES))
    rest = (progress - recipe.warmup) / (1 - recipe.warmup)
    return recipe.learning_rate * (1 + math.cos(math.pi * rest)) / 2
