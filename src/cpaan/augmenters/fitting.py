"""From features to a trained model: scale, lay out, choose a sampler, train, summarise."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpaan.augmenters.completion import find_completion
from cpaan.augmenters.held_out_score import AUTO, HeldOutScore, choose_held_out, share_to_hold_out
from cpaan.augmenters.joining import joined
from cpaan.augmenters.model import Model
from cpaan.augmenters.plan import training_plan
from cpaan.augmenters.size_search import choose_size
from cpaan.augmenters.storage import model_tensors
from cpaan.augmenters.summary import BaseSummary, class_covariances, keep_examples
from cpaan.centers.class_center import CenterModel
from cpaan.centers.held_out import class_sample
from cpaan.centers.search import Gains, search_center_model
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.gan.callbacks import EarlyStopping
from cpaan.gan.episodes import DirectSampler, EpisodeSampler, EpisodicSampler, PairPlan
from cpaan.gan.loop import Callback, train
from cpaan.gan.networks import Architecture, Networks, build_networks
from cpaan.gan.objective import TrainingStep, Variant, find_variant
from cpaan.gan.recipe import Recipe
from cpaan.math.neighborhood import calibrated_temperature, make_neighborhood
from cpaan.math.scaling import Scaling, fit_scaling
from cpaan.training.bank import ClassBank, StoredRows, lay_out
from cpaan.training.device import layer_precision
from cpaan.training.progress import History, learning_rate_at

FEWEST_TO_META_TRAIN = 4
# Logging steps, of which there are about a hundred, from one look at the score to the next.
LOOK_EVERY = 5


def fit_model(
    base: FeatureSet,
    novel: FeatureSet | None,
    *,
    variant: str,
    recipe: Recipe,
    reservoir: int,
    seed: int,
    device: torch.device,
    callbacks: Sequence[Callback] = (),
    held_out: float | str = AUTO,
) -> tuple[Model, History, Gains]:
    """Train on base classes alone, or directly on given base and novel classes.

    Parameters
    ----------
    base, novel : FeatureSet
        With `novel` None, base classes play the novel ones, episode after episode.
    variant, recipe : what to train, and how
    reservoir : base examples kept of each class
    seed : decides every random draw
    device : where to train
    callbacks : called at every logging step
    held_out : share of the base classes that networks are not trained on but scored on; with ``"auto"`` the recipe's
        patience decides whether there are any, and when to stop

    Returns
    -------
    model : Model
    history : History, of the losses
    gains : Gains, expected of the examples; empty where they were not looked for
    """
    kind = find_variant(variant)
    scaling = choose_scaling(base, recipe)
    bank = lay_out(base, scaling, device)
    covariances = class_covariances(bank, recipe.covariance_rank)
    networks = build_networks(_architecture(base.dimension, kind, recipe), seed).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    novel_bank = None if novel is None else lay_out(novel, scaling, device)
    # Whoever brings a rule of their own for when to stop has it alone.
    look = recipe.patience > 0 and not any(isinstance(callback, EarlyStopping) for callback in callbacks)
    share = share_to_hold_out(held_out, bank.counts, look=look)
    held = choose_held_out(bank.counts, share, seed) if novel is None else None
    plan = partial(
        training_plan,
        base,
        novel,
        variant=variant,
        recipe=recipe,
        seed=seed,
        device=device,
        held_out=held_out,
    )
    if held is not None and held_out == AUTO:
        callbacks = [EarlyStopping(patience=recipe.patience, every=LOOK_EVERY, ties=True), *callbacks]
    training = _Training(bank, _temperature(bank, recipe), variant, recipe, callbacks, held, plan)
    center, gains = _center(bank, recipe, seed, direct=novel is not None)
    history = training.run(networks, covariances.factors, novel_bank, generator)
    factors, tails = covariances.factors.half(), covariances.tails
    del covariances  # before examples are kept beside them: with many classes both are large
    kept = keep_examples(bank, reservoir, generator)
    summary = BaseSummary(base.classes, bank.counts, bank.prototypes, factors, tails, kept, scaling)
    model = Model(networks.eval().requires_grad_(False), summary, recipe, variant, training.temperature, center)
    return _finished(model, bank, generator, seed), history, gains


def fit_further(
    model: Model,
    base: FeatureSet,
    *,
    episodes: int,
    reservoir: int,
    seed: int,
    callbacks: Sequence[Callback] = (),
    held_out: float | str = AUTO,
) -> tuple[Model, History, Gains]:
    """Train a model further, on the base classes that it knows and on further ones or further examples.

    The networks start as they are and the units stay. Of classes without new examples, episodes draw from those that
    the model kept, or else from their Gaussians. Adam starts anew, at the rate that the first training ended with.
    Parameters are those of `fit_model`; further classes alone are held out.
    """
    device, recipe = model.base.prototypes.device, model.recipe
    generator = torch.Generator(device).manual_seed(seed)
    whole = joined(model.base, base.classes, lay_out(base, model.base.scaling, device), recipe, generator)
    networks = copy.deepcopy(model.networks).train().requires_grad_(True)
    last_rate = learning_rate_at(recipe.episodes - 1, recipe.learning_rate, recipe.halve_every)
    rest = replace(recipe, episodes=episodes, learning_rate=last_rate, halve_every=episodes)
    temperature, known = _temperature(whole.bank, recipe), len(model.base.classes)
    share = share_to_hold_out(held_out, whole.bank.counts, look=False)  # further episodes are few, and all trained
    held = choose_held_out(whole.bank.counts, share, seed, first=known)
    plan = partial(
        training_plan,
        base,
        None,
        variant=model.variant,
        recipe=rest,
        seed=seed,
        device=device,
        held_out=held_out,
        start=model_tensors(model),
    )
    training = _Training(whole.bank, temperature, model.variant, rest, callbacks, held, plan)
    center, gains = _center(whole.bank, recipe, seed, direct=False)
    history = training.run(networks, whole.factors, None, generator)
    summary = BaseSummary(
        whole.classes,
        whole.counts,
        whole.bank.prototypes,
        whole.factors.half(),
        whole.tails,
        keep_examples(whole.bank, reservoir, generator),
        model.base.scaling,
    )
    networks.eval().requires_grad_(False)
    trained = Model(networks, summary, recipe, model.variant, temperature, center)
    return _finished(trained, whole.bank, generator, seed), history, gains


@dataclass(frozen=True)
class _Training:
    bank: ClassBank
    temperature: float
    variant: str
    recipe: Recipe
    callbacks: Sequence[Callback]
    held: Tensor | None  # classes that are scored on and not trained on
    plan: Callable[[], dict[str, Any]]

    def run(self, networks: Networks, factors: Tensor, novel: ClassBank | None, generator: torch.Generator) -> History:
        score = rest = None
        if self.held is not None:
            score = HeldOutScore(self.bank, self.held, self.recipe, self.variant, self.temperature)
            rest = score.rest
        sampler = _sampler(self.bank, novel, self.recipe, self.temperature, rest)
        step = TrainingStep(
            networks, find_variant(self.variant), self.recipe, factors, layer_precision(self.bank.device)
        )
        return train(step, sampler, generator, self.callbacks, score, self.plan)


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


def _center(bank: ClassBank, recipe: Recipe, seed: int, *, direct: bool) -> tuple[CenterModel | None, Gains]:
    # Networks that are trained on few base classes know their novel classes by the mean of their shots.
    if direct or recipe.anchor == "shots":
        return None, Gains()
    return search_center_model(bank, recipe.search_rounds, seed)


def _finished(model: Model, bank: ClassBank, generator: torch.Generator, seed: int) -> Model:
    """Add what is found when all else is known: what examples lack, and how many of them there should be."""
    if model.center is None:
        return model
    completion = find_completion(model, generator) if model.recipe.completion else None
    of_size = torch.Generator().manual_seed(seed)
    size = choose_size(
        class_sample(bank, of_size),
        model.center.constants,
        factor=model.base.scaling.factor,
        noise=model.recipe.center_noise,
        generator=of_size,
    )
    return replace(model, completion=completion, size=size)


def choose_scaling(base: FeatureSet, recipe: Recipe) -> Scaling:
    """Choose the units that a recipe asks for."""
    return fit_scaling(
        StoredRows(base.features),
        torch.tensor(base.labels),
        base.n_classes,
        within_distance=recipe.within_distance,
        center=recipe.center,
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
