"""Deviations by translation: the paper's adversarial networks.

H. Gao, Z. Shou, A. Zareian, H. Zhang, S.-F. Chang, *Low-shot Learning via Covariance-Preserving Adversarial
Augmentation Networks*, NeurIPS 2018.
"""

import copy
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpaan.centers.base import Center, choose_units
from cpaan.centers.cross_validation import (
    AUTO,
    FEWEST_QUERIES,
    STOPPING_QUERIES,
    STOPPING_SHOTS,
    choose_held_out,
    share_to_hold_out,
    shots_and_queries,
    some_examples,
)
from cpaan.classifiers.linear import LinearClassifier
from cpaan.data.feature_set import FeatureSet
from cpaan.data.untrusted import positive_number, require_arrays
from cpaan.deviations.base import Deviations, Request, shares_mean, synthesize
from cpaan.deviations.summary import BaseSummary, class_covariances, keep_examples, merge_summaries
from cpaan.deviations.translator import ResidualCovariance, Translator, add_residual
from cpaan.errors import InputError
from cpaan.gan.callbacks import EarlyStopping
from cpaan.gan.episodes import DirectSampler, EpisodeSampler, EpisodicSampler, PairPlan
from cpaan.gan.loop import Callback, train
from cpaan.gan.networks import Architecture, Networks, build_networks
from cpaan.gan.objective import TrainingStep, Variant, find_variant
from cpaan.gan.recipe import Recipe, find_recipe, make_recipe
from cpaan.math.neighborhood import calibrated_temperature, make_neighborhood
from cpaan.math.rows import row_blocks
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank
from cpaan.training.device import choose_device, layer_precision
from cpaan.training.progress import Progress, learning_rate_at
from cpaan.training.weights import load_weights, part_of

FEWEST_TO_META_TRAIN = 4
# Logging steps, of which there are about a hundred, from one look at the score to the next.
LOOK_EVERY = 5
# Early stopping: examples that are made of each held-out class, and kept of each of the others to translate.
MADE, LENT = 50, 50
# Numbers that are held of either kind of classes, unless there are so many classes that one example of each is more.
MOST_NUMBERS = 2**22
_DIGITS = 16


class Translated(Deviations):
    """Translate base examples to the novel class by adversarial networks, trained on base classes.

    In every training episode some base classes play novel classes of which a few shots are known.

    Parameters
    ----------
    variant : {"ccov-gan", "cdeli-gan", "ccyc-gan", "c-gan"}
        The paper's final network, and the ones that lead to it.
    recipe : Recipe or {"default", "quick", "paper"}
        Every number of the training.
    episodes : int, optional
        Training steps, instead of the recipe's.
    residual_covariance : bool
        Restore the within-class covariance that the generator loses, about centres that have estimated it.
    spread : float
        Factor on the deviations of examples from their mean.
    reservoir : int
        Base examples of each class to keep, in half precision; 0 keeps Gaussian summaries only.
    held_out : float or "auto"
        Share of the base classes that networks are not trained on but scored on.
    device : {"auto", "cpu", "cuda", "mps"}
    callbacks : sequence of callables
    tell : callable, optional

    Attributes
    ----------
    model_ : Translator, the networks and the summary of the base classes
    residual_ : ResidualCovariance or None
    history_ : dict, the episodes of the logging steps and the mean of every loss term at each
    """

    model_: Translator
    residual_: ResidualCovariance | None
    history_: dict[str, Any]
    _units: Scaling | None = None  # of the base examples, which a checkpoint is compared with

    def __init__(
        self,
        *,
        variant: str = "ccov-gan",
        recipe: str | Recipe = "default",
        episodes: int | None = None,
        residual_covariance: bool = True,
        spread: float = 1.0,
        reservoir: int = 100,
        held_out: float | str = AUTO,
        device: str = "auto",
        callbacks: Sequence[Callback] = (),
        tell: Callable[[Progress], None] | None = None,
    ) -> None:
        self.variant = variant
        self.recipe = recipe
        self.episodes = episodes
        self.residual_covariance = residual_covariance
        self.spread = spread
        self.reservoir = reservoir
        self.held_out = held_out
        self.device = device
        self.callbacks = callbacks
        self.tell = tell

    def resolve(self, name: str) -> Any:
        """Return the recipe that a name stands for."""
        return find_recipe(self.recipe) if name == "recipe" else getattr(self, name)

    @property
    def device_(self) -> torch.device:
        """Where to train; of a trained model, where it is."""
        return self.model_.base.prototypes.device if hasattr(self, "model_") else choose_device(self.device)

    def units(self, base: FeatureSet) -> Scaling:
        """Return the units of the recipe, in which its loss weights and its temperature mean something."""
        recipe = self.resolve("recipe")
        self._units = choose_units(base, within_distance=recipe.within_distance, centered=recipe.centered)
        return self._units

    def check(self) -> None:
        """Refuse parameters out of range."""
        find_variant(self.variant)
        self._own_recipe()
        if not isinstance(self.reservoir, int) or self.reservoir < 0:
            raise InputError(f"reservoir must be a whole number of at least 0, not {self.reservoir!r}")
        if not isinstance(self.spread, (int, float)) or isinstance(self.spread, bool) or not self.spread >= 0:
            raise InputError(f"spread must be a number of at least 0, not {self.spread!r}")
        if not isinstance(self.residual_covariance, bool):
            raise InputError(f"residual_covariance must be True or False, not {self.residual_covariance!r}")
        if callable(self.callbacks) or not all(map(callable, self.callbacks)):
            raise InputError(f"callbacks must be a list of functions of an event, not {self.callbacks!r}")

    def fit(self, bank: ClassBank, center: Center, *, seed: int = 0, novel: ClassBank | None = None) -> "Translated":
        """Train on base classes alone, or directly on given base and novel classes."""
        self.check()
        recipe, kind = self._own_recipe(), find_variant(self.variant)
        covariances = class_covariances(bank, recipe.covariance_rank)
        networks = build_networks(_architecture(bank.dimension, kind, recipe), seed).to(bank.device)
        generator = torch.Generator(bank.device).manual_seed(seed)
        callbacks = self._all_callbacks()
        # A user's EarlyStopping replaces ours.
        look = recipe.patience > 0 and not any(isinstance(callback, EarlyStopping) for callback in callbacks)
        share = share_to_hold_out(self.held_out, bank.counts, look=look)
        held = choose_held_out(bank.counts, share, seed) if novel is None else None
        if held is not None and self.held_out == AUTO:
            callbacks = [EarlyStopping(patience=recipe.patience, every=LOOK_EVERY, ties=True), *callbacks]
        temperature = _temperature(bank, recipe)
        score = None if held is None else HeldOutScore(self, center, bank, held, temperature)
        sampler = _sampler(bank, novel, recipe, temperature, None if score is None else score.rest)
        step = TrainingStep(networks, kind, recipe, covariances.factors, layer_precision(bank.device))
        identity = partial(self._checkpoint_identity, recipe, center, seed, bank, novel)
        history = train(step, sampler, generator, callbacks, score, identity)
        factors, tails = covariances.factors.half(), covariances.tails
        del covariances, step  # before examples are kept in addition: with many classes both are large
        kept = keep_examples(bank, self.reservoir, generator)
        summary = BaseSummary(bank.counts, bank.prototypes, factors, tails, kept)
        self.history_ = {"episode": history.episodes, **history.losses}
        return self._take(networks, summary, recipe, temperature, center, generator)

    def fit_further(
        self,
        bank: ClassBank,
        homes: Sequence[int],
        fit_center: Callable[[ClassBank], Center],
        *,
        episodes: int,
        seed: int,
    ) -> "tuple[Translated, Center, ClassBank]":
        """Return a copy trained further, on the classes that it knows and on further ones or further examples.

        The networks start as they are and the units stay. Of classes without new examples, episodes draw from those
        that were kept, or else from their Gaussians. Adam starts again, at the rate that the first training ended
        with. Only further classes are held out. `homes` is that of `merge_summaries`; `fit_center` fits a centre to
        all classes, which is returned too, with the bank of all classes.
        """
        self.check()
        model, recipe = self.model_, self.model_.recipe
        generator = torch.Generator(bank.device).manual_seed(seed)
        whole = merge_summaries(model.base, bank, homes, recipe.covariance_rank, generator)
        networks = copy.deepcopy(model.networks).train().requires_grad_(True)
        last_rate = learning_rate_at(recipe.episodes - 1, recipe.learning_rate, recipe.halve_every)
        rest = replace(recipe, episodes=episodes, learning_rate=last_rate, halve_every=episodes)
        temperature = _temperature(whole.bank, recipe)
        share = share_to_hold_out(self.held_out, whole.bank.counts, look=False)  # further episodes are few
        held = choose_held_out(whole.bank.counts, share, seed, first=len(model.base.counts))
        center = fit_center(whole.bank)
        found = self.but()
        score = None if held is None else HeldOutScore(found, center, whole.bank, held, temperature)
        sampler = _sampler(whole.bank, None, rest, temperature, None if score is None else score.rest)
        kind = find_variant(model.variant)
        step = TrainingStep(networks, kind, rest, whole.factors, layer_precision(bank.device))
        identity = partial(found._checkpoint_identity, rest, center, seed, bank, None, self.tensors())
        history = train(step, sampler, generator, self._all_callbacks(), score, identity)
        kept = keep_examples(whole.bank, self.reservoir, generator)
        summary = BaseSummary(whole.counts, whole.bank.prototypes, whole.factors.half(), whole.tails, kept)
        before = self.history_["episode"][-1]
        logged = {"episode": [before + episode for episode in history.episodes], **history.losses}
        found.history_ = {name: [*self.history_[name], *values] for name, values in logged.items()}
        return found._take(networks, summary, recipe, temperature, center, generator), center, whole.bank

    def draw(self, request: Request) -> Tensor:
        """Translate base examples to the classes at given centres; restore what covariance they lose."""
        device = self.model_.base.prototypes.device
        centers, number = request.centers.float().to(device), request.number.to(device)
        made = self.model_.make(centers, number, request.generator)
        if request.noise is not None:
            sizes = request.noise.sizes.repeat_interleave(request.number)
            add_residual(made, self.residual_, sizes, request.generator)
            if request.noise.axes is not None:
                made = made.cpu()
                request.add_anisotropic(made)
        return made

    def tensors(self) -> dict[str, Tensor]:
        """Return networks, the summary of base classes and the residual covariance."""
        found = {f"networks.{name}": value for name, value in self.model_.networks.state_dict().items()}
        found |= self.model_.base.tensors()
        if self.residual_ is not None:
            found["residual.factor"] = self.residual_.factor
        return found

    def details(self) -> dict[str, Any]:
        """Return every number of the training, and its history."""
        model = self.model_
        return {
            "variant": model.variant,
            "numbers": model.recipe.get_params(),
            "temperature": model.temperature,
            "residual": None if self.residual_ is None else self.residual_.tail,
            "history": self.history_,
        }

    def restore(self, tensors: Mapping[str, Tensor], details: Mapping[str, Any], **sizes: int) -> None:
        """Put the model together again, on the device."""
        self.check()
        base = BaseSummary.restored(tensors, **sizes)
        recipe, variant = Recipe(**details["numbers"]), details["variant"]
        architecture = _architecture(sizes["D"], find_variant(variant), recipe)
        networks = load_weights(lambda: Networks(architecture), part_of(dict(tensors), "networks."))
        networks.eval().requires_grad_(False)
        temperature = positive_number(details["temperature"], "temperature")
        self.model_ = Translator(networks, base, recipe, variant, temperature).to(self.device_)
        self.residual_, self.history_ = None, details["history"]
        if details["residual"] is not None:
            require_arrays(tensors, {"residual.factor": "RD float32"}, **sizes)
            tail = positive_number(details["residual"], "residual", or_zero=True)
            self.residual_ = ResidualCovariance(tensors["residual.factor"], tail)

    def probe(self, translator: Translator, center: Center, generator: torch.Generator) -> "Translated":
        """Return a copy that makes examples about a centre as this one would with other networks."""
        found = self.but()
        found.model_, found.residual_ = translator, None
        within = center.within_covariance()
        if self.residual_covariance and within is not None:
            found.residual_ = translator.residual_covariance(within, generator)
        return found

    def _take(
        self,
        networks: Networks,
        summary: BaseSummary,
        recipe: Recipe,
        temperature: float,
        center: Center,
        generator: torch.Generator,
    ) -> "Translated":
        """Keep what was trained, and find the residual covariance."""
        model = Translator(networks.eval().requires_grad_(False), summary, recipe, self.variant, temperature)
        found = self.probe(model, center, generator)
        self.model_, self.residual_ = found.model_, found.residual_
        self.callbacks, self.tell = (), None  # what was trained may go to other processes; functions stay here
        return self

    def _own_recipe(self) -> Recipe:
        return make_recipe(self.recipe, episodes=self.episodes)

    def _all_callbacks(self) -> list[Callback]:
        # Whatever shows the progress comes last, when all else is done.
        return [*self.callbacks, *(() if self.tell is None else (self.tell,))]

    def _checkpoint_identity(
        self,
        recipe: Recipe,
        center: Center,
        seed: int,
        bank: ClassBank,
        novel: ClassBank | None,
        start: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any]:
        """Return, by name, all that the bits of a training depend on."""
        return {
            "variant": self.variant,
            "seed": seed,
            "device": bank.device.type,
            "held_out": self.held_out,
            "center": repr(center),
            "residual_covariance": self.residual_covariance,
            "spread": self.spread,
            "base examples": fingerprint(bank, self._units),
            "novel examples": None if novel is None else fingerprint(novel),
            "model to train further": None if start is None else _hash(start),
            **recipe.get_params(),
        }


class HeldOutScore:
    """Accuracy, in percent, of a linear classifier on held-out base classes, from shots and the examples made of them.

    Examples are those that the augmenter would make: about its centre, fitted to the other classes, with the residual
    covariance of the networks as they are and the noise about the centre. Shots, queries and random numbers are the
    same at every call, so that networks alone make a difference.

    Parameters
    ----------
    deviations : Translated, which trains the networks
    center : Center, fitted to all base classes
    bank : all base classes
    held : Tensor of indices of the held-out classes
    temperature : of the neighbourhood

    Attributes
    ----------
    rest : Tensor of indices of the classes that are not held out
    """

    def __init__(
        self, deviations: Translated, center: Center, bank: ClassBank, held: Tensor, temperature: float, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        is_held = torch.zeros(bank.n_classes, dtype=torch.bool).index_fill_(0, held.cpu(), True)
        self.rest = (~is_held).nonzero().squeeze(1).to(bank.device)
        n, dimension = len(self.rest), bank.dimension
        lenders = some_examples(bank, self.rest, _affordable(LENT, 1, n, dimension), generator)
        kept = keep_examples(lenders, LENT, torch.Generator(bank.device).manual_seed(seed))
        empty, tails = bank.prototypes.new_empty((n, 0, dimension)), bank.prototypes.new_zeros(n)
        self._base = BaseSummary(lenders.counts, lenders.prototypes, empty, tails, kept)
        self._center, self._deviations = center.refit(lenders), deviations
        self._temperature, self._seed = temperature, seed
        fewest = STOPPING_SHOTS + FEWEST_QUERIES
        most = _affordable(STOPPING_SHOTS + STOPPING_QUERIES, fewest, len(held), dimension)
        novel = some_examples(bank, held, most, generator)
        classes = [novel.of_class(c).cpu().double() for c in range(len(held))]
        shots, self._queries, self._query_labels = shots_and_queries(classes, STOPPING_SHOTS)
        self._shots = shots.flatten(0, 1)
        self._shot_labels = torch.arange(len(held)).repeat_interleave(STOPPING_SHOTS)

    def __call__(self, networks: Networks) -> float:
        """Score networks as they are now."""
        n, owner = int(self._shot_labels[-1]) + 1, self._deviations
        generator = torch.Generator(self._base.prototypes.device).manual_seed(self._seed)
        model = Translator(networks, self._base, owner._own_recipe(), owner.variant, self._temperature)
        probe = owner.probe(model, self._center, generator)
        number, joint = torch.full((n,), MADE), shares_mean(self._center, probe)
        parts = synthesize(self._center, probe, self._shots, self._shot_labels, number, generator, joint_mean=joint)
        X = torch.cat([self._shots, *(part.double() for part in parts)]).numpy()
        y = torch.cat([self._shot_labels, torch.arange(n).repeat_interleave(MADE)]).numpy()
        found = LinearClassifier().fit(X, y).predict(self._queries.numpy())
        return 100 * float((found == self._query_labels.numpy()).mean())


def fingerprint(bank: ClassBank, units: Scaling | None = None) -> str:
    """Hash the examples of a bank and their units, in blocks: they may lie in a file that is larger than memory."""
    digest = hashlib.sha256(f"{tuple(bank.rows.shape)} {bank.counts.tolist()}".encode())
    if units is not None:
        digest.update(f"{units.factor!r} {units.origin.tolist()}".encode())
    for block in row_blocks(bank.rows):
        digest.update(bank.rows[block].cpu().contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]


def _hash(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]


def _affordable(wanted: int, fewest: int, n_classes: int, dimension: int) -> int:
    """Return how many examples of each class to hold: `wanted`, or fewer where classes or features are many."""
    return max(fewest, min(wanted, MOST_NUMBERS // (n_classes * dimension)))


def _architecture(dimension: int, kind: Variant, recipe: Recipe) -> Architecture:
    return Architecture(
        dimension=dimension,
        width=recipe.width,
        noise_dimension=recipe.noise_dimension,
        noise_components=recipe.noise_components if kind.mixture_noise else 0,
        cycle=kind.cycle,
        residual=recipe.generator == "residual",
        gain=(2 * dimension) ** 0.5 / recipe.within_distance if recipe.standardize else 1.0,
        negative_slope=recipe.negative_slope,
    )


def _temperature(bank: ClassBank, recipe: Recipe) -> float:
    # NOTE[paper]: there is no temperature in the paper, so that α depends on the units of the features.
    if isinstance(recipe.temperature, str):
        return calibrated_temperature(bank.prototypes, recipe.perplexity)
    return recipe.temperature


def _sampler(
    base: ClassBank, novel: ClassBank | None, recipe: Recipe, temperature: float, classes: Tensor | None
) -> EpisodeSampler:
    neighborhood = make_neighborhood(recipe.neighborhood, temperature=temperature, neighbors=recipe.neighbors)
    wanted, shots = recipe.novel_per_episode, recipe.shots_per_episode
    base_examples = recipe.batch_size - wanted * shots
    if recipe.pairing == "drawn":
        base_examples = max(1, base_examples // wanted)
    plan = PairPlan(neighborhood, base_examples, recipe.pairing, recipe.base_draw, recipe.loss_weights)
    if novel is not None:
        return DirectSampler(base, novel, plan, min(wanted, novel.n_classes), min(shots, novel.largest))
    n_classes = base.n_classes if classes is None else len(classes)
    return EpisodicSampler(base, plan, _meta_novel(n_classes, wanted), shots, classes)


def _meta_novel(n_base: int, wanted: int) -> int:
    if n_base < FEWEST_TO_META_TRAIN:
        raise InputError(
            f"meta-training needs at least {FEWEST_TO_META_TRAIN} base classes, and there "
            f"{'is' if n_base == 1 else 'are'} {n_base}; train directly on base and novel classes instead: "
            "CPAAN.fit_direct(X_base, y_base, X_novel, y_novel), or cpaan fit BASE --novel NOVEL"
        )
    if wanted > n_base // 2:
        warnings.warn(
            f"an episode has {n_base // 2} meta-novel classes instead of {wanted}: at most half of the "
            f"{n_base} base classes",
            stacklevel=2,
        )
    return min(wanted, n_base // 2)
