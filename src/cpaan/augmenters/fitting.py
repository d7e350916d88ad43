"""From features to a trained model: scale, lay out, choose a sampler, train, summarise."""

import warnings
from collections.abc import Callable

import torch

from cpaan.augmenters.center_search import Gains, search_center_model
from cpaan.augmenters.model import Model
from cpaan.augmenters.summary import BaseSummary, class_covariances, keep_examples
from cpaan.data.feature_set import FeatureSet
from cpaan.errors import InputError
from cpaan.functional.class_center import CenterModel
from cpaan.functional.rows import is_large
from cpaan.functional.scaling import Scaling, fit_scaling
from cpaan.nn.networks import Architecture, build_networks
from cpaan.sampling.bank import ClassBank
from cpaan.sampling.episodes import DirectSampler, EpisodeSampler, EpisodicSampler, PairPlan
from cpaan.sampling.neighborhood import make_neighborhood
from cpaan.sampling.rows import ScaledRows, StoredRows
from cpaan.sampling.temperature import calibrated_temperature
from cpaan.training.device import layer_precision
from cpaan.training.history import History
from cpaan.training.recipe import Recipe
from cpaan.training.step import TrainingStep
from cpaan.training.trainer import Progress, train
from cpaan.training.variant import find_variant

FEWEST_TO_META_TRAIN = 4
# What a GPU may give of its free memory to examples; networks and episodes need the rest.
SHARE_OF_GPU = 0.4


def fit_model(
    base: FeatureSet,
    novel: FeatureSet | None,
    *,
    variant: str,
    recipe: Recipe,
    reservoir: int,
    seed: int,
    device: torch.device,
    tell: Callable[[Progress], None] | None = None,
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
    tell : called at every logging step

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
    temperature = _temperature(bank, recipe)
    gain = (2 * base.dimension) ** 0.5 / recipe.within_distance if recipe.standardize else 1.0
    architecture = Architecture(
        dimension=base.dimension,
        width=recipe.width,
        noise_dimension=recipe.noise_dimension,
        noise_components=recipe.noise_components if kind.mixture_noise else 0,
        cycle=kind.cycle,
        residual=recipe.generator == "residual",
        gain=gain,
        negative_slope=recipe.negative_slope,
    )
    networks = build_networks(architecture, seed).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    novel_bank = None if novel is None else lay_out(novel, scaling, device)
    sampler = _sampler(bank, novel_bank, recipe, temperature)
    step = TrainingStep(networks, kind, recipe, covariances.factors, layer_precision(device))
    center, gains = _center(bank, recipe, seed, direct=novel is not None)
    history = train(step, sampler, generator, tell)
    factors, tails = covariances.factors.half(), covariances.tails
    del covariances, step  # before examples are kept beside them: with many classes both are large
    kept = keep_examples(bank, reservoir, generator)
    summary = BaseSummary(base.classes, bank.counts, bank.prototypes, factors, tails, kept, scaling)
    model = Model(networks.eval().requires_grad_(False), summary, recipe, variant, temperature, center)
    return model, history, gains


def _center(bank: ClassBank, recipe: Recipe, seed: int, *, direct: bool) -> tuple[CenterModel | None, Gains]:
    # Networks that are trained on few base classes know their novel classes by the mean of their shots.
    if direct or recipe.anchor == "shots":
        return None, Gains()
    return search_center_model(bank, recipe.search_rounds, seed)


def choose_scaling(base: FeatureSet, recipe: Recipe) -> Scaling:
    """Choose the units that a recipe asks for."""
    return fit_scaling(
        StoredRows(base.features),
        torch.tensor(base.labels),
        base.n_classes,
        within_distance=recipe.within_distance,
        center=recipe.center,
    )


def lay_out(feature_set: FeatureSet, scaling: Scaling, device: torch.device) -> ClassBank:
    """Lay examples out class after class: in memory, or where they are stored if there are too many."""
    rows = ScaledRows(StoredRows(feature_set.features), scaling, device)
    labels = torch.tensor(feature_set.labels, device=device)
    return ClassBank.from_examples(rows.load() if _fits(rows, device) else rows, labels, feature_set.n_classes)


def _fits(rows: ScaledRows, device: torch.device) -> bool:
    if device.type != "cuda":
        return not is_large(rows)
    n, dimension = rows.shape
    free, _ = torch.cuda.mem_get_info(device)
    return n * dimension * torch.float32.itemsize <= SHARE_OF_GPU * free


def _temperature(bank: ClassBank, recipe: Recipe) -> float:
    # NOTE[paper]: there is no temperature in the paper, so that α depends on the units of the features.
    if isinstance(recipe.temperature, str):
        return calibrated_temperature(bank.prototypes, recipe.perplexity)
    return recipe.temperature


def _sampler(base: ClassBank, novel: ClassBank | None, recipe: Recipe, temperature: float) -> EpisodeSampler:
    neighborhood = make_neighborhood(recipe.neighborhood, temperature=temperature, neighbors=recipe.neighbors)
    wanted, shots = recipe.novel_per_episode, recipe.shots_per_episode
    base_examples = recipe.batch_size - wanted * shots
    if recipe.pairing == "drawn":
        base_examples = max(1, base_examples // wanted)
    plan = PairPlan(neighborhood, base_examples, recipe.pairing, recipe.base_draw, recipe.loss_weights)
    if novel is not None:
        return DirectSampler(base, novel, plan, min(wanted, novel.n_classes), min(shots, novel.largest))
    return EpisodicSampler(base, plan, _meta_novel(base.n_classes, wanted), shots)


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
