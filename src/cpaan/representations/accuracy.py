"""How well a backbone tells base classes apart."""

import numpy as np
import torch
from torch import Tensor, nn

from cpaan.data.class_names import IndexArray
from cpaan.functional.prototypes import prototypes
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import encoded
from cpaan.representations.losses import prototypical_logits
from cpaan.representations.order import Part
from cpaan.representations.pixels import Pixels
from cpaan.representations.recipe import BackboneRecipe

TOP = (1, 5)
_BATCH = 256
_FOR_PROTOTYPES = 50  # training images of each class that a prototype is the mean of


@torch.no_grad()
def base_accuracy(
    network: nn.Module,
    head: nn.Module | None,
    train: Pixels,
    test: Pixels,
    recipe: BackboneRecipe,
    seed: int,
) -> dict[str, float]:
    """Give the top-1 and top-5 accuracy on test images in percent.

    By the classifier that was trained, or where there is none by the nearest prototype, the mean of up to 50 training
    images of a class.
    """
    network.eval()
    if head is None:
        rows = _some_of_each(train.labels, seed)
        features, labels = _encode(network, train, rows, recipe)
        centers = prototypes(features, labels, int(train.labels.max()) + 1)
    features, labels = _encode(network, test, np.arange(len(test.labels)), recipe)
    scores = prototypical_logits(features, centers, 1.0) if head is None else head(features)
    ranks = scores.argsort(dim=1, descending=True) == labels.unsqueeze(1)
    return {f"top{k}": 100 * float(ranks[:, :k].any(1).float().mean()) for k in TOP}


def _some_of_each(labels: IndexArray, seed: int) -> IndexArray:
    rng = np.random.default_rng(seed)
    members = (np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1))
    return np.concatenate([rng.permutation(rows)[:_FOR_PROTOTYPES] for rows in members])


def _encode(network: nn.Module, pixels: Pixels, rows: IndexArray, recipe: BackboneRecipe) -> tuple[Tensor, Tensor]:
    parts = [Part(rows[start : start + _BATCH], 0, 0) for start in range(0, len(rows), _BATCH)]
    features, labels = [], []
    for part, images in pixels.take(parts):
        features.append(encoded(network, center_view(images, recipe.size)))
        labels.append(torch.from_numpy(pixels.labels[part.rows]))
    found = torch.cat(features)
    return found, torch.cat(labels).to(found.device)
