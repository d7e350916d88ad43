"""Feature imagination: a hallucinator that is meta-learned through the loss of the classifier that it serves.

Y.-X. Wang, R. Girshick, M. Hebert and B. Hariharan, *Low-shot learning from imaginary data*, CVPR 2018.

Hallucinator: one more example of a class, made of an example that is there and noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import skip_init

from cpaan.augmenters.base import BaseAugmenter
from cpaan.classifiers.episodic import EpisodicClassifier, plain_support
from cpaan.classifiers.matching import PrototypeMatchingNetwork
from cpaan.classifiers.meta import at_rest
from cpaan.classifiers.prototypical import PrototypicalNetwork
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import require_arrays
from cpaan.errors import InputError
from cpaan.math.scaling import fit_standardization
from cpaan.training.bank import ClassBank
from cpaan.training.device import choose_device
from cpaan.training.progress import Progress, check_count


class Hallucinator(nn.Module):
    """G(x, z): a three-layer MLP that begins as x + ε z.

    Its layers begin as blocks of identities. A hidden layer is twice as wide as the features, half of it for what is
    above zero and half for what is below, x = relu(x) − relu(−x), so that features of either sign come through:

    h₁ = relu([x + ε z, −x − ε z]),  h₂ = relu(h₁),  G = [I, −I] h₂

    NOTE[paper]: there features are non-negative and hidden layers as wide as they are, which is the upper half alone.

    Parameters
    ----------
    dimension : D, of features and of noise
    noise : ε
    floor : least value of each feature, (D,), or None; zero in the user's units where features are never negative

    >>> hallucinator = Hallucinator(2, noise=0.5)
    >>> hallucinator(torch.tensor([[1.0, -2.0]]), torch.tensor([[2.0, 0.0]])).tolist()
    [[2.0, -2.0]]
    """

    floor: Tensor | None

    def __init__(self, dimension: int, *, noise: float, floor: Tensor | None = None) -> None:
        super().__init__()
        # Without torch's initial weights, which would be drawn from the global random state.
        self.first = skip_init(nn.Linear, 2 * dimension, 2 * dimension)
        self.second = skip_init(nn.Linear, 2 * dimension, 2 * dimension)
        self.third = skip_init(nn.Linear, 2 * dimension, dimension)
        self.register_buffer("floor", floor)
        identity = torch.eye(dimension)
        with torch.no_grad():
            above = torch.cat([identity, noise * identity], dim=1)
            self.first.weight.copy_(torch.cat([above, -above]))
            self.second.weight.copy_(torch.eye(2 * dimension))
            self.third.weight.copy_(torch.cat([identity, -identity], dim=1))
            for layer in (self.first, self.second, self.third):
                layer.bias.zero_()

    def forward(self, example: Tensor, noise: Tensor) -> Tensor:
        """Make examples of (…, D) examples and (…, D) noise."""
        hidden = torch.relu(self.first(torch.cat([example, noise], dim=-1)))
        made: Tensor = self.third(torch.relu(self.second(hidden)))
        return made if self.floor is None else torch.maximum(made, self.floor.to(made.dtype))


CLASSIFIERS: dict[str, type[EpisodicClassifier]] = {
    "prototypical": PrototypicalNetwork,
    "prototype-matching": PrototypeMatchingNetwork,
}
# NOTE[paper]: how many examples are made in a task, and the size of the noise at the start, are not given there.
NOISE = 0.1  # ε of the hallucinator at the start: noise that examples can be seen through
ROWS_AT_ONCE = 16_384
_FORMS = {"first.weight": "WW float32", "second.weight": "WW float32", "third.weight": "DW float32"}


class FeatureImagination(BaseAugmenter):
    """Make examples of a class by an MLP on one of its examples and noise, trained to serve a classifier.

    x' = G(x, z),  z ~ N(0, I),  x a random shot of the class

    min over G and h of E over tasks of −Σ over queries (x, y) of log P(y given x; h, S ∪ G(S))

    In each task the supports S of the classes with few shots are filled with examples made by G, the classifier h is
    built on real and made examples alike, and the loss of its queries trains both: what is made need not look real,
    only tell classes apart. `classifier_` is the h that G was trained with, to be fitted on what `augment` gives.

    In a task the classes with all shots, as many as the recipe's largest number, stand for base classes and are not
    added to. `augment` adds to every class that it is given: in the quick recipe that number is 20, and novel classes
    with 20 shots are added to although such classes were not in training.

    G begins as the identity with a little noise, so that it starts from repeating the shots.

    Parameters
    ----------
    classifier : {"prototypical", "prototype-matching"}
        What h is.
    generated : int
        Examples that G makes for each class with few shots in a task.
    rectify : {"auto", True, False}
        Whether what is made has no negative features, as the paper's last ReLU has it; ``"auto"`` where the base
        examples have none.
    recipe : {"quick", "paper"}
        Of the classifier.
    random_state : int, RandomState or None
        Decides every random draw.
    per_class : int, optional
        Synthetic examples for each novel class; by default as many as fill it up to the average size of the base
        classes. As many as `generated`, to which the classifier is used, are better: see `cpaan.methods`.
    sampling_strategy : float, str, dict or callable
        Which classes `fit_resample` fills up, and to what size: as in imbalanced-learn, or ``"base_mean"``; see
        `cpaan.augmenters.base.BaseAugmenter`.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train.
    tell : callable, optional
        Called with a `Progress` during training.
    held_out : float
        Share of the base classes that tells for how long to train; see `PrototypicalNetwork`.
    episodes, ways, shots, queries, learning_rate, halve_every, weight_decay : optional
        Numbers of the recipe, by name; see `cpaan.classifiers.meta.MetaRecipe`.

    Attributes
    ----------
    classifier_ : PrototypicalNetwork or PrototypeMatchingNetwork
        Meta-trained, ready for `fit`.
    hallucinator_ : torch.nn.Module
        G, on standardised features.
    history_ : dict
        The episodes of the logging steps and the mean loss at each.
    classes_ : tuple, names of the base classes
    average_size_ : int, average number of examples of a base class
    n_features_in_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X_base = (4 * rng.normal(size=(10, 1, 5)) + rng.normal(size=(10, 30, 5))).reshape(-1, 5)
    >>> y_base = np.repeat([f"base {i}" for i in range(10)], 30)
    >>> augmenter = FeatureImagination(episodes=5, random_state=0).fit(X_base, y_base)
    >>> X_new, y_new = augmenter.augment(rng.normal(size=(2, 5)), ["new", "new"])
    >>> X_new.shape, set(y_new.tolist())
    ((28, 5), {'new'})
    >>> augmenter.classifier_.fit(X_new, y_new).predict(X_new[:1])
    array(['new'], dtype='<U3')
    """

    hallucinator_: Hallucinator
    classifier_: EpisodicClassifier

    def __init__(
        self,
        *,
        classifier: str = "prototypical",
        generated: int = 5,
        rectify: bool | str = "auto",
        recipe: str = "quick",
        random_state: Any = None,
        per_class: int | None = None,
        sampling_strategy: Any = "auto",
        device: str = "auto",
        tell: Callable[[Progress], None] | None = None,
        held_out: float = 0.2,
        episodes: int | None = None,
        ways: int | None = None,
        shots: tuple[int, ...] | None = None,
        queries: int | None = None,
        learning_rate: float | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
    ) -> None:
        self.classifier = classifier
        self.generated = generated
        self.rectify = rectify
        self.recipe = recipe
        self.random_state = random_state
        self.per_class = per_class
        self.sampling_strategy = sampling_strategy
        self.device = device
        self.tell = tell
        self.held_out = held_out
        self.episodes = episodes
        self.ways = ways
        self.shots = shots
        self.queries = queries
        self.learning_rate = learning_rate
        self.halve_every = halve_every
        self.weight_decay = weight_decay

    @property
    def history_(self) -> dict[str, Any]:
        """The history of G and its classifier, which were trained together."""
        return self.classifier_.history_

    def _learn(self, base: FeatureSet) -> None:
        check_count("generated", self.generated)
        classifier = self._classifier()
        seed, device = self._seed(0), choose_device(self.device)
        features, labels = base.to_torch()
        scaling = fit_standardization(features.double())
        bank = ClassBank.from_examples(scaling.apply(features.double()).float(), labels, base.n_classes).to(device)
        floor = scaling.apply(torch.zeros_like(scaling.origin)).float() if self._rectified(base.features) else None
        hallucinator = Hallucinator(base.dimension, noise=NOISE, floor=floor).to(device)
        network = classifier.untrained(base.dimension, base.n_classes, seed).to(device)
        generator = torch.Generator(device).manual_seed(seed)
        support = ImaginedSupport(hallucinator, self.generated, generator)
        training = classifier.training(network, nn.ModuleList([network, hallucinator]), support)
        history = training.train(bank, generator, self.tell)
        losses = {"episode": history.episodes, **history.losses}
        classifier.take(base, network, scaling, losses)
        classifier.tell = None  # it was told already, and may not be one that can be copied
        self.hallucinator_, self.classifier_ = at_rest(hallucinator), classifier

    def _make(self, novel: FeatureSet, wanted: NDArray[np.int64]) -> NDArray[np.floating]:
        scaling = self.classifier_.scaling_
        features, labels = novel.to_torch()
        bank = ClassBank.from_examples(scaling.apply(features.double()), labels, novel.n_classes)
        generator = torch.Generator().manual_seed(self._seed(1))
        targets = torch.arange(novel.n_classes).repeat_interleave(torch.as_tensor(wanted))
        made = [bank.features[:0]]
        for block in targets.split(ROWS_AT_ONCE):
            seeds = bank.draw(block, generator)
            noise = torch.randn(seeds.shape, generator=generator, dtype=seeds.dtype)
            made.append(self.hallucinator_(seeds, noise))
        found: NDArray[np.floating] = scaling.undo(torch.cat(made)).numpy()
        # What lies at the floor in standard units may come back a rounding error below zero.
        return found if self.hallucinator_.floor is None else np.maximum(found, 0)

    def _classifier(self) -> EpisodicClassifier:
        if self.classifier not in CLASSIFIERS:
            raise InputError(f"classifier must be one of {', '.join(CLASSIFIERS)}, not {self.classifier!r}")
        numbers = ("episodes", "ways", "shots", "queries", "learning_rate", "halve_every", "weight_decay")
        return CLASSIFIERS[self.classifier](
            recipe=self.recipe,
            random_state=self.random_state,
            device=self.device,
            tell=self.tell,
            held_out=self.held_out,
            **{name: getattr(self, name) for name in numbers},
        )

    def _rectified(self, features: NDArray[np.floating]) -> bool:
        if self.rectify == "auto":
            return bool(features.min() >= 0)
        if not isinstance(self.rectify, bool):
            raise InputError(f"rectify must be True, False or 'auto', not {self.rectify!r}")
        return self.rectify

    def _details(self) -> dict[str, Any]:
        return {**super()._details(), **self.classifier_._details()}

    def _tensors(self) -> dict[str, Tensor]:
        own = {f"hallucinator.{name}": value.float() for name, value in self.hallucinator_.state_dict().items()}
        return own | {f"classifier.{name}": value for name, value in self.classifier_._tensors().items()}

    def _restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        super()._restore(tensors, config)
        own, others = _part(tensors, "hallucinator."), _part(tensors, "classifier.")
        # Before there is a network, which would take memory for weights that are not in the file.
        require_arrays(own, _FORMS, D=self.n_features_in_, W=2 * self.n_features_in_)
        hallucinator = Hallucinator(self.n_features_in_, noise=NOISE, floor=own.get("floor"))
        hallucinator.load_state_dict(own)
        self.hallucinator_ = at_rest(hallucinator)
        self.classifier_ = self._classifier()
        self.classifier_._restore(others, config)


@dataclass(frozen=True)
class ImaginedSupport:
    """Makes the support of a task: real examples, and made ones of the classes that have few."""

    hallucinator: nn.Module  # G
    generated: int  # examples made of each class
    generator: torch.Generator  # decides which examples are taken, and the noise

    def __call__(self, examples: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
        """Take the examples that count, (N, K, D) by a mask (N, K), and add examples made of them.

        Classes of which all K examples count stand for base classes, to which nothing is added; where all do, all
        are added to.
        """
        real, labels = plain_support(examples, counting)
        few = (~counting).any(1) if (~counting).any() else counting.any(1)
        targets = torch.nonzero(few).flatten().repeat_interleave(self.generated)
        device = examples.device
        uniform = torch.rand(len(targets), generator=self.generator, device=device)
        # Those that count come first.
        numbers = counting.sum(1)[targets]
        chosen = (uniform * numbers).long().minimum(numbers - 1)
        seeds = examples[targets, chosen]
        noise = torch.randn(seeds.shape, generator=self.generator, device=device, dtype=seeds.dtype)
        return torch.cat([real, self.hallucinator(seeds, noise)]), torch.cat([labels, targets])


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
