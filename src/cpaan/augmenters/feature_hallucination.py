"""Feature Hallucination: new examples of a novel class by analogy with what varies within base classes.

B. Hariharan and R. Girshick, *Low-shot Visual Recognition by Shrinking and Hallucinating Features*, ICCV 2017,
arXiv:1606.02819.

The network that completes analogies between examples of two classes.

Training of the hallucinator on analogies.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss, relu

from cpaan.augmenters.analogies import mine_analogies
from cpaan.augmenters.base import BaseAugmenter
from cpaan.classifiers.linear import LinearClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_arrays
from cpaan.errors import InputError
from cpaan.math.kmeans import Clusters, cluster_classes
from cpaan.math.scaling import Scaling
from cpaan.threads import of_layers, threads_for
from cpaan.training.device import choose_device
from cpaan.training.progress import LOGGINGS, History, Progress, check_count
from cpaan.training.weights import initial_weights, load_weights


class AnalogyNetwork(nn.Module):
    """G([A, C, D]) → B such that A is to B as C is to D: a three-layer MLP with ReLUs.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    floor : the last ReLU, max(output, floor), in the units of the network: 0 for features as they come from a ReLU,
        (0 − origin) · factor for scaled ones; None for features of either sign, where there is no last ReLU

    >>> network = AnalogyNetwork(dimension=2, width=8, floor=torch.zeros(2))
    >>> made = network(torch.ones(5, 2), torch.zeros(5, 2), torch.ones(5, 2))
    >>> made.shape, bool((made >= 0).all())
    (torch.Size([5, 2]), True)
    """

    floor: Tensor | None

    def __init__(self, dimension: int, width: int, floor: Tensor | None = None) -> None:
        super().__init__()
        self.input = nn.Linear(3 * dimension, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, dimension)
        self.register_buffer("floor", floor)

    def forward(self, seed: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Do to `seed` (A) what leads from `source` (C) to `target` (D)."""
        hidden = relu(self.input(torch.cat([seed, source, target], dim=-1)))
        made: Tensor = self.output(relu(self.hidden(hidden)))
        return made if self.floor is None else made.maximum(self.floor)


def build_analogy_network(dimension: int, width: int, floor: Tensor | None, seed: int) -> AnalogyNetwork:
    """Build one whose initial weights depend on the seed alone; the global random state is kept."""
    with initial_weights(seed):
        return AnalogyNetwork(dimension, width, floor)


LONGEST_GRADIENT = 5.0  # more than is seen in some hundred dimensions; in a few, steps could otherwise diverge


@dataclass(frozen=True)
class HallucinationRecipe:
    """Every number of Feature Hallucination."""

    centroids: int  # of each base class, found by k-means
    cluster_iterations: int  # of k-means
    iterations: int  # training steps
    learning_rate: float  # SGD's rate, and the iterations after which it is divided by ten
    reduce_every: int  # SGD's rate, and the iterations after which it is divided by ten
    momentum: float  # of SGD
    weight_decay: float  # of SGD
    batch_size: int  # analogies in a step
    error_weight: float  # of the mean squared error, beside the cross-entropy
    width: int  # of the hidden layers

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
    """What the hallucinator learns from."""

    centroids: Tensor  # (n, D), of all classes
    classes: Tensor  # (n,), the class of each
    quadruplets: Tensor  # (m, 4), A : B :: C : D as indices of centroids
    weight: Tensor  # of the linear classifier of the classes, of shapes (classes, D) and (classes,)
    bias: Tensor  # of the linear classifier of the classes, of shapes (classes, D) and (classes,)


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
    """Train on analogies drawn at random."""
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


# NOTE[paper]: the weight of the error means something at one feature scale only, and none is given. A coordinate of
# the features of a ResNet-10, which it was tuned on, varies by about this much.
DEVIATION = 0.6
ROWS_AT_ONCE = 16_384
_FORMS = {"centroids": "CKD float32", "sizes": "CK int64", "origin": "D float64"}


class FeatureHallucination(BaseAugmenter):
    """Apply to an example of a novel class what leads from one centroid of a base class to another.

    Each base class is clustered. For every ordered pair (A, B) of its centroids, the pair (C, D) of another base class
    with the largest cos(B − A, D − C) makes an analogy A : B :: C : D, and a network G is trained to complete it:

    L = − log P(class of A given G([A, C, D])) + λ · mean of (G([A, C, D]) − B)²

    where P is a linear classifier of the base classes. An example of a novel class is then G([x, C, D]) with a random
    real example x of it, a random base class, and two random centroids C and D of that.

    Parameters
    ----------
    recipe : {"quick", "paper"}
        Where the numbers below come from: a minute or so on two cores, or the published ones.
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size: as in imbalanced-learn, or ``"base_mean"``; see
        `cpaan.augmenters.base.BaseAugmenter`.
    fill_to : int, optional
        Number of examples, real and synthetic, that a novel class is filled up to where `per_class` is None. By default
        the average size of the base classes. Published results fill up to 20, or 5 on features that were trained with
        a squared gradient magnitude loss.
    rectify : bool or "auto"
        Whether G ends with a ReLU, as published, which suits features that are never negative. ``"auto"`` looks whether
        those of the base classes are.
    search : {"auto", "exact", "approximate"}
        How analogies are searched; ``"auto"`` is exact where that takes no more than a few minutes.
    device : {"auto", "cpu", "cuda", "mps"}
        ``"auto"`` takes a GPU that torch can use, or else the CPU.
    tell : callable, optional
        Called with a `Progress` about a hundred times during training.
    centroids, iterations, … : optional
        Any number of the recipe, by name; see `cpaan.augmenters.feature_hallucination.HallucinationRecipe`.

    Attributes
    ----------
    hallucinator_ : torch.nn.Module, G([A, C, D]), in the model's units
    centroids_ : Tensor of shape (classes, centroids, D), in the model's units
    sizes_ : integer Tensor of shape (classes, centroids), examples of each centroid; 0 where a class has fewer
    scaling_ : Scaling, to the model's units and back
    rectified_ : bool, whether examples are never negative
    n_analogies_ : int, analogies that were found
    history_ : dict, the iterations of the logging steps and the mean of every loss term at each
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.normal(size=(8, 1, 5)) * 5
    >>> X_base = (centers + rng.normal(size=(8, 30, 5))).reshape(-1, 5)
    >>> y_base = np.repeat([f"base {i}" for i in range(8)], 30)
    >>> augmenter = FeatureHallucination(iterations=20, fill_to=20, random_state=0).fit(X_base, y_base)
    >>> X_new, y_new = augmenter.augment(rng.normal(size=(2, 5)), ["new", "new"])
    >>> X_new.shape, set(y_new.tolist())
    ((18, 5), {'new'})
    """

    hallucinator_: AnalogyNetwork
    centroids_: Tensor
    sizes_: Tensor
    scaling_: Scaling
    rectified_: bool
    n_analogies_: int
    history_: dict[str, Any]

    def __init__(
        self,
        *,
        recipe: str = "quick",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
        fill_to: int | None = None,
        rectify: bool | str = "auto",
        search: str = "auto",
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        centroids: int | None = None,
        cluster_iterations: int | None = None,
        iterations: int | None = None,
        learning_rate: float | None = None,
        reduce_every: int | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        error_weight: float | None = None,
        width: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy
        self.fill_to = fill_to
        self.rectify = rectify
        self.search = search
        self.device = device
        self.tell = tell
        self.centroids = centroids
        self.cluster_iterations = cluster_iterations
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.reduce_every = reduce_every
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.error_weight = error_weight
        self.width = width

    def _learn(self, base: FeatureSet) -> None:
        recipe, device, seed = self._check(base), choose_device(self.device), self._seed(0)
        generator = torch.Generator(device).manual_seed(seed)
        self.rectified_ = bool(base.features.min() >= 0) if self.rectify == "auto" else bool(self.rectify)
        self.scaling_, features, labels = _scale(base)
        clusters = cluster_classes(
            features.to(device),
            labels.to(device),
            base.n_classes,
            recipe.centroids,
            iterations=recipe.cluster_iterations,
            generator=generator,
        )
        self.centroids_, self.sizes_ = clusters.centroids, clusters.sizes
        floor = (-self.scaling_.origin * self.scaling_.factor).float() if self.rectified_ else None
        self.hallucinator_ = build_analogy_network(base.dimension, recipe.width, floor, seed).to(device)
        data = self._analogies(clusters, *_base_classifier(features, base))
        history = train_hallucinator(self.hallucinator_, data, recipe, generator, self.tell)
        self.hallucinator_.eval().requires_grad_(False)
        self.history_ = {"episode": history.episodes, **history.losses}

    def _learn_for(self, base: FeatureSet, novel: FeatureSet) -> FeatureSet:
        if base.n_classes == 1:
            warnings.warn(
                "1 class is large enough to be a base class, and analogies are drawn between two: drawing them with "
                "the small classes, too",
                stacklevel=4,
            )
            base = base.concatenate(novel.select([name for name in novel.classes if name not in base.classes]))
        self._learn(base)
        return base

    def _check(self, base: FeatureSet) -> HallucinationRecipe:
        if self.rectify not in (True, False, "auto"):
            raise InputError(f"rectify must be True, False or 'auto', not {self.rectify!r}")
        if base.n_classes == 1:
            raise InputError("analogies are drawn between classes, and there is 1 base class; give at least 2")
        changes = {field.name: getattr(self, field.name) for field in fields(HallucinationRecipe)}
        return make_hallucination_recipe(self.recipe, **changes)

    def _analogies(self, clusters: Clusters, weight: Tensor, bias: Tensor) -> AnalogyData:
        n_classes, k, _ = clusters.centroids.shape
        device = clusters.centroids.device
        quadruplets = mine_analogies(clusters.centroids, search=self.search).quadruplets
        self.n_analogies_ = len(quadruplets)
        if not self.n_analogies_:
            warnings.warn(
                "examples of a base class do not differ, or differ in ways of their own, so there are no analogies: "
                "learning to repeat examples as they are",
                stacklevel=5,
            )
            places = torch.arange(n_classes * k, device=device)
            quadruplets = torch.stack([places, places, places.flip(0), places.flip(0)], dim=1)
        classes = torch.arange(n_classes, device=device).repeat_interleave(k)
        return AnalogyData(clusters.centroids.flatten(0, 1), classes, quadruplets, weight.to(device), bias.to(device))

    def _wanted(self, novel: FeatureSet, per_class: int | None, average: int) -> NDArray[np.int64]:
        if per_class is not None or self.fill_to is None:
            return super()._wanted(novel, per_class, average)
        check_count("fill_to", self.fill_to)
        return np.maximum(self.fill_to - novel.counts, 0)

    @torch.no_grad()
    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        device = self.centroids_.device
        generator = torch.Generator(device).manual_seed(self._seed(1))
        features, _ = novel.to_torch()
        seeds = self.scaling_.apply(features.double()).float().to(device)
        rows = _draw_seeds(novel, wanted, generator)
        source, target = self._draw_centroids(len(rows), generator)
        parts = zip(*(each.split(ROWS_AT_ONCE) for each in (rows, source, target)), strict=True)
        centroids = self.centroids_.flatten(0, 1)
        made = [self.hallucinator_(seeds[x], centroids[c], centroids[d]) for x, c, d in parts]
        found: NDArray[np.floating] = self.scaling_.undo(torch.cat(made).cpu().double()).numpy()
        # The floor is zero up to rounding.
        return np.maximum(found, 0) if self.rectified_ else found

    def _draw_centroids(self, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw a base class and two of its centroids, as often as wanted."""
        device, k = self.centroids_.device, self.centroids_.shape[1]
        classes = torch.randint(len(self.centroids_), (number,), generator=generator, device=device)
        present = (self.sizes_ > 0).sum(1)[classes]
        source = _uniform(present, generator)
        # NOTE[paper]: two distinct ones; the published code may draw the same one twice, which changes nothing in x.
        target = (source + 1 + _uniform((present - 1).clamp_min(1), generator)) % present
        return classes * k + source, classes * k + target

    def _tensors(self) -> dict[str, Tensor]:
        network = {f"hallucinator.{name}": value for name, value in self.hallucinator_.state_dict().items()}
        return {**network, "centroids": self.centroids_, "sizes": self.sizes_, "origin": self.scaling_.origin}

    def _details(self) -> dict[str, Any]:
        found = {"scale": self.scaling_.factor, "rectified": self.rectified_, "analogies": self.n_analogies_}
        return {**super()._details(), **found, "history": self.history_}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        device, prefix = choose_device(self.device), "hallucinator."
        state = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        require_arrays(tensors, _FORMS, C=len(self.classes_), D=self.n_features_in_)
        width = len(state["hidden.bias"])
        floor = torch.zeros_like(state["floor"]) if "floor" in state else None
        network = load_weights(lambda: AnalogyNetwork(self.n_features_in_, width, floor), state)
        self.hallucinator_ = network.to(device).eval().requires_grad_(False)
        self.centroids_, self.sizes_ = tensors["centroids"].to(device), tensors["sizes"].to(device)
        self.scaling_ = Scaling(tensors["origin"], positive_number(config["scale"], "scale"))
        self.rectified_, self.n_analogies_, self.history_ = (
            config[name] for name in ("rectified", "analogies", "history")
        )


def _scale(base: FeatureSet) -> tuple[Scaling, Tensor, Tensor]:
    """Bring base features about their mean and into the units where the weight of the error means something."""
    features, labels = base.to_torch()
    # In double precision up to here: features may lie far from the origin or be very large or small.
    exact = features.double()
    origin = exact.mean(0)
    deviation = float((exact - origin).square().mean().sqrt())
    scaling = Scaling(origin, DEVIATION / deviation if deviation > 0 else 1.0)
    return scaling, scaling.apply(exact).float(), labels


def _base_classifier(features: Tensor, base: FeatureSet) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        # It only says where base examples lie: close to the best is good enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LinearClassifier().fit(features.numpy(), base.labels)
    return torch.tensor(classifier.coef_).float(), torch.tensor(classifier.intercept_).float()


def _draw_seeds(novel: FeatureSet, wanted: NDArray[np.int64], generator: torch.Generator) -> Tensor:
    """Draw a real example for each one that is wanted, class by class; gives rows of the novel examples."""
    counts = torch.as_tensor(novel.counts)
    order, starts = torch.as_tensor(np.argsort(novel.labels, kind="stable")), counts.cumsum(0) - counts
    classes = torch.arange(novel.n_classes).repeat_interleave(torch.as_tensor(wanted))
    places = _uniform(counts[classes].to(generator.device), generator).cpu()
    return order[starts[classes] + places].to(generator.device)


def _uniform(numbers: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a whole number from 0 to each number less one."""
    drawn = torch.rand(numbers.shape, generator=generator, device=numbers.device)
    return (drawn * numbers).long().minimum(numbers - 1)
