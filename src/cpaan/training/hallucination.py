"""Training of the hallucinator on analogies."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, mse_loss

from cpaan.errors import InputError
from cpaan.nn.analogy import AnalogyNetwork
from cpaan.threads import of_layers, threads_for
from cpaan.training.history import History
from cpaan.training.trainer import LOGGINGS, Progress

LONGEST_GRADIENT = 5.0  # more than is seen in some hundred dimensions; in a few, steps could otherwise diverge


@dataclass(frozen=True)
class HallucinationRecipe:
    """Every number of Feature Hallucination.

    Attributes
    ----------
    centroids : of each base class, found by k-means
    cluster_iterations : of k-means
    iterations : training steps
    learning_rate, reduce_every : SGD's rate, and the iterations after which it is divided by ten
    momentum, weight_decay : of SGD
    batch_size : analogies in a step
    error_weight : of the mean squared error, beside the cross-entropy
    width : of the hidden layers
    """

    centroids: int
    cluster_iterations: int
    iterations: int
    learning_rate: float
    reduce_every: int
    momentum: float
    weight_decay: float
    batch_size: int
    error_weight: float
    width: int

    def __post_init__(self) -> None:
        for name in ("centroids", "cluster_iterations", "iterations", "reduce_every", "batch_size", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"learning_rate must be a positive number, not {self.learning_rate!r}")
        for name in ("weight_decay", "error_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a number of at least 0, not {getattr(self, name)!r}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, not {self.momentum!r}")


PAPER = HallucinationRecipe(
    centroids=100,
    cluster_iterations=20,
    iterations=120_000,
    learning_rate=0.1,
    reduce_every=40_000,
    momentum=0.9,
    weight_decay=1e-4,
    batch_size=128,
    error_weight=10.0,
    width=512,
)
# Found on CLINC150's first setup: as good there as four times the steps at the published rate. Adam comes closer to the
# training analogies in as many steps, and its examples are worth less.
QUICK = replace(PAPER, centroids=20, iterations=1_500, learning_rate=0.3, reduce_every=600)
RECIPES = {"paper": PAPER, "quick": QUICK}


def make_hallucination_recipe(name: str, **changes: Any) -> HallucinationRecipe:
    """Take a recipe by name and change numbers by name; a change to None changes nothing.

    >>> make_hallucination_recipe("paper", iterations=10).iterations
    10
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; choose one of {', '.join(RECIPES)}")
    unknown = set(changes) - {field.name for field in fields(HallucinationRecipe)}
    if unknown:
        raise InputError(f"a recipe of Feature Hallucination has no {', '.join(sorted(unknown))}")
    return replace(RECIPES[name], **{key: value for key, value in changes.items() if value is not None})


@dataclass(frozen=True)
class AnalogyData:
    """What the hallucinator learns from.

    Attributes
    ----------
    centroids : Tensor of shape (n, D), of all classes
    classes : integer Tensor of shape (n,), the class of each
    quadruplets : integer Tensor of shape (m, 4), A : B :: C : D as indices of centroids
    weight, bias : of the linear classifier of the classes, of shapes (classes, D) and (classes,)
    """

    centroids: Tensor
    classes: Tensor
    quadruplets: Tensor
    weight: Tensor
    bias: Tensor


def analogy_losses(
    network: AnalogyNetwork, data: AnalogyData, quadruplets: Tensor, error_weight: float
) -> dict[str, Tensor]:
    """Give the loss of analogies, and its terms.

    L = − log P(class of B given B̂) + error_weight · mean over coordinates of (B̂ − B)², with B̂ = G([A, C, D])
    """
    A, B, C, D = data.centroids[quadruplets.T]
    made = network(A, C, D)
    classification = cross_entropy(linear(made, data.weight, data.bias), data.classes[quadruplets[:, 1]])
    error = mse_loss(made, B)
    return {"loss": classification + error_weight * error, "classification": classification, "error": error}


def train_hallucinator(
    network: AnalogyNetwork,
    data: AnalogyData,
    recipe: HallucinationRecipe,
    generator: torch.Generator,
    tell: Callable[[Progress], None] | None = None,
) -> History:
    """Train on analogies drawn at random.

    Parameters
    ----------
    network : trained in place
    data : analogies and the classifier
    recipe : how long, and how fast
    generator : decides every random draw
    tell : called at every logging step
    """
    # NOTE[paper]: momentum 0.9 and rate 0.1 are published; only the published code tells that momentum is damped by
    # as much, without which every step is ten times as long.
    optimizer = torch.optim.SGD(
        network.parameters(),
        recipe.learning_rate,
        momentum=recipe.momentum,
        dampening=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, recipe.reduce_every, gamma=0.1)
    history = History()
    every = max(1, recipe.iterations // LOGGINGS)
    with threads_for(of_layers(recipe.batch_size, network.parameters())):
        for iteration in range(1, recipe.iterations + 1):
            drawn = _draw(len(data.quadruplets), recipe.batch_size, generator)
            terms = analogy_losses(network, data, data.quadruplets[drawn], recipe.error_weight)
            optimizer.zero_grad()
            terms["loss"].backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), LONGEST_GRADIENT)
            optimizer.step()
            schedule.step()
            history.add({name: term.detach() for name, term in terms.items()})
            if iteration % every == 0 or iteration == recipe.iterations:
                losses = history.log(iteration)
                if tell is not None:
                    tell(Progress(iteration, recipe.iterations, losses))
    return history


def _draw(number: int, wanted: int, generator: torch.Generator) -> Tensor:
    return torch.randint(number, (wanted,), generator=generator, device=generator.device)
