"""What must be the same for a training to go on from a checkpoint."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpaan.data.feature_set import FeatureSet
from cpaan.gan.recipe import Recipe

_DIGITS = 16
_BLOCK_NUMBERS = 2**24


def training_plan(
    base: FeatureSet,
    novel: FeatureSet | None,
    *,
    variant: str,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    held_out: float | str,
    start: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Give all that the bits of a training depend on, by name.

    Parameters
    ----------
    base, novel : the examples, whose fingerprints count
    variant, recipe, seed, held_out : every number
    device : what it is trained on: random draws are others on another kind
    start : tensors of a model that is trained further

    Examples
    --------
    >>> from cpaan.gan.recipe import make_recipe
    >>> trees = FeatureSet([[0.1], [0.2]], ["oak", "elm"])
    >>> settings = dict(variant="c-gan", recipe=make_recipe("quick"), device=torch.device("cpu"), held_out=0.0)
    >>> first, second = (training_plan(trees, None, seed=seed, **settings) for seed in (0, 1))
    >>> [name for name in first if first[name] != second[name]]
    ['seed']
    """
    return {
        "variant": variant,
        "seed": seed,
        "device": device.type,
        "held_out": held_out,
        "base examples": fingerprint(base),
        "novel examples": None if novel is None else fingerprint(novel),
        "model to train further": None if start is None else _of_tensors(start),
        **asdict(recipe),
    }


def fingerprint(examples: FeatureSet) -> str:
    """Hash features, labels and classes, in blocks: they may lie in a file that is larger than memory."""
    digest = hashlib.sha256(f"{examples.features.dtype} {examples.features.shape} {examples.classes!r}".encode())
    digest.update(np.ascontiguousarray(examples.labels).data)
    rows = max(1, _BLOCK_NUMBERS // examples.dimension)
    for start in range(0, len(examples), rows):
        digest.update(np.ascontiguousarray(examples.features[start : start + rows]).data)
    return digest.hexdigest()[:_DIGITS]


def _of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]
