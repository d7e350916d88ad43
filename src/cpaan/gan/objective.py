"""The paper's four variants, and one training step: the discriminators' update, then the generators'.

Nothing here looks at a value on the host and every shape is fixed, so the whole step can be captured as one graph.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.gan.cuda_streams import CudaStreams
from cpaan.gan.episodes import Episode
from cpaan.gan.networks import Condition, Discriminator, Draw, Networks
from cpaan.gan.optimizer import Optimizer
from cpaan.gan.recipe import Recipe
from cpaan.math.losses import covariance_loss, cycle_loss, fake_loss, fooling_loss, heaviest_pairs, real_loss
from cpaan.training.weights import part_of


@dataclass(frozen=True)
class Variant:
    """Terms of the loss and source of the noise of one of the paper's networks."""

    cycle: bool = False  # translate back as well, with another game and cycle consistency
    mixture_noise: bool = False  # the noise of the way back is a trained Gaussian mixture
    covariance: bool = False  # preserve the covariance of related base classes
    title: str = ""  # as the paper writes its name


VARIANTS = {
    "c-gan": Variant(title="c-GAN"),
    "ccyc-gan": Variant(title="cCyc-GAN", cycle=True),
    "cdeli-gan": Variant(title="cDeLi-GAN", cycle=True, mixture_noise=True),
    "ccov-gan": Variant(title="cCov-GAN", cycle=True, covariance=True),
}


def find_variant(name: str) -> Variant:
    """Look a variant up by name."""
    if name not in VARIANTS:
        raise InputError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


Losses = dict[str, Tensor]
WAY_BACK, COVARIANCE, CYCLES = range(3)  # CUDA streams
NETWORKS = "networks."


@dataclass(frozen=True)
class Pairs:
    """An episode's table of pairs, ready to broadcast, and its translations in both directions."""

    novel: Tensor  # (N, M, D) shots, one for each pair
    novel_label: Tensor  # (N, 1)
    to_novel: Tensor  # (N, M, D), G_n(y_n; x_b, y_b)
    way_there: Condition  # of G_n, from y_b to y_n
    noise: Tensor | None  # (N, M, Z)
    to_base: Tensor | None  # (N, M, D), G_b(y_b; x_n, y_n, z)
    way_back: Condition | None  # of G_b, from y_n to y_b with z


class TrainingStep:
    """Updates networks on an episode and returns the loss terms.

    Parameters
    ----------
    networks : trained in place
    variant, recipe : terms of the loss, and their weights
    base_factors : Tensor of shape (base classes of the bank, r, D)
        Factors of the base covariances, for a variant that preserves covariance.
    precision : of the layers while they train; weights, losses and covariances stay in single precision
    """

    def __init__(
        self,
        networks: Networks,
        variant: Variant,
        recipe: Recipe,
        base_factors: Tensor,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.variant, self.recipe, self.base_factors = variant, recipe, base_factors
        self.trained = networks
        self.networks = networks if precision == torch.float32 else copy.deepcopy(networks).to(precision)
        # A tensor on the device, because a captured graph would keep a number as it was.
        self._rate: float | None = None
        self.learning_rate = torch.tensor(recipe.learning_rate, device=base_factors.device)
        self.discriminators, self.generators = (
            Optimizer(kept(networks), kept(self.networks), self.learning_rate, recipe.momentum)
            for kept in (Networks.discriminator_parameters, Networks.generator_parameters)
        )
        self.streams = CudaStreams(base_factors.device, 3)

    def set_learning_rate(self, rate: float) -> None:
        """Change the learning rate from the next step on."""
        if rate != self._rate:
            self._rate = rate
            self.learning_rate.fill_(rate)

    def __call__(self, episode: Episode, generator: torch.Generator) -> Losses:
        """Train on one episode; returns the loss terms, detached."""
        return self.train_on(episode, self.draw_noise(episode, generator))

    def state(self) -> dict[str, Tensor]:
        """Return every tensor that the next step depends on, without copies."""
        tensors = {f"{NETWORKS}{name}": value for name, value in self.trained.state_dict().items()}
        for side, optimizer in self._optimizers():
            tensors |= {f"{side}{name}": value for name, value in optimizer.state().items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore a state."""
        self.trained.load_state_dict(part_of(tensors, NETWORKS))
        for side, optimizer in self._optimizers():
            optimizer.restore(part_of(tensors, side))

    def _optimizers(self) -> tuple[tuple[str, Optimizer], ...]:
        return ("discriminators.", self.discriminators), ("generators.", self.generators)

    def draw_noise(self, episode: Episode, generator: torch.Generator) -> Draw | None:
        """Draw the noise of an episode, where the variant has any."""
        noise = self.networks.noise
        return None if noise is None else noise.draw(tuple(episode.weights.shape), generator)

    def train_on(self, episode: Episode, noise: Draw | None) -> Losses:
        """Train on one episode with given noise; nothing else is random."""
        pairs = self.translate(episode, noise)
        # Terms without discriminators are computed during the update of these.
        ahead = self.cycle_losses(episode, pairs) | self.covariance_losses(episode, pairs)
        losses = self.discriminator_losses(episode, pairs)
        self.discriminators.update(sum_of(losses))
        generator_losses = self.adversarial_losses(episode, pairs) | ahead
        self.streams.join(CYCLES, COVARIANCE)
        self.generators.update(sum_of(self._weighted(generator_losses)))
        return {name: loss.detach() for name, loss in (losses | generator_losses).items()}

    def translate(self, episode: Episode, draw: Draw | None) -> Pairs:
        """Translate every pair of the episode, in both directions where the variant has two."""
        n, k, _ = episode.novel_examples.shape
        m = episode.base_labels.shape[1]
        # Every shot starts equally many ways back; base examples are in random order already.
        novel = episode.novel_examples[:, torch.arange(m, device=episode.weights.device) % k]
        novel_prototype = episode.novel_prototypes.unsqueeze(1)
        base_prototype = episode.base_prototypes[episode.base_labels]
        networks = self.networks
        noise = to_base = way_back = None
        if networks.base_generator is not None and networks.noise is not None and draw is not None:
            with self.streams.beside(WAY_BACK):
                # NOTE[paper]: the way back takes the same (y_n, y_b) pairs, with the same weights.
                noise = networks.noise(draw)
                way_back = networks.base_generator.condition(novel_prototype, base_prototype, noise)
                to_base = networks.base_generator.translate(novel, way_back)
        way_there = networks.novel_generator.condition(base_prototype, novel_prototype)
        to_novel = networks.novel_generator.translate(episode.base_examples, way_there)
        self.streams.join(WAY_BACK)
        label = torch.arange(n, device=novel.device).unsqueeze(1)
        return Pairs(novel, label, to_novel, way_there, noise, to_base, way_back)

    def discriminator_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Compute the real and the fake terms of both games, with the translations held fixed."""
        networks, of_base = self.networks, Losses()
        if networks.base_discriminator is not None and pairs.to_base is not None:
            with self.streams.beside(WAY_BACK):
                made = pairs.to_base.detach()
                real, fake = judge(networks.base_discriminator, episode.base_examples, made, episode.base_prototypes)
                of_base["discriminator_base_real"] = real_loss(real, episode.base_labels)
                of_base["discriminator_base_fake"] = fake_loss(fake, episode.weights)
        made = pairs.to_novel.detach()
        real, fake = judge(networks.novel_discriminator, episode.novel_examples, made, episode.novel_prototypes)
        of_novel = {
            "discriminator_novel_real": real_loss(real, pairs.novel_label),
            "discriminator_novel_fake": fake_loss(fake, episode.weights),
        }
        self.streams.join(WAY_BACK)
        return of_novel | of_base

    def adversarial_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Compute what the generators pay for translations that are not taken for real."""
        networks, weights, of_base = self.networks, episode.weights, Losses()
        if networks.base_discriminator is not None and pairs.to_base is not None:
            with self.streams.beside(WAY_BACK):
                believed = networks.base_discriminator(pairs.to_base, episode.base_prototypes)
                of_base["adversarial_base"] = fooling_loss(believed, episode.base_labels, weights)
        believed = networks.novel_discriminator(pairs.to_novel, episode.novel_prototypes)
        of_novel = {"adversarial_novel": fooling_loss(believed, pairs.novel_label, weights)}
        self.streams.join(WAY_BACK)
        return of_novel | of_base

    def cycle_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Compute the cycle terms, if any, before their λ, on a stream that has yet to join."""
        networks, weights = self.networks, episode.weights
        if networks.base_generator is None or pairs.to_base is None or pairs.way_back is None:
            return {}
        with self.streams.beside(CYCLES):
            base_again = networks.base_generator.translate(pairs.to_novel, pairs.way_back)
            novel_again = networks.novel_generator.translate(pairs.to_base, pairs.way_there)
            return {
                "cycle_base": cycle_loss(base_again, episode.base_examples, weights),
                "cycle_novel": cycle_loss(novel_again, pairs.novel, weights),
            }

    def covariance_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Compute the covariance term, if any, before its λ, on a stream that has yet to join."""
        if not self.variant.covariance:
            return {}
        with self.streams.beside(COVARIANCE):
            return {"covariance": self._covariance_loss(episode, pairs)}

    def _covariance_loss(self, episode: Episode, pairs: Pairs) -> Tensor:
        counted = episode.related.gather(1, episode.base_labels.expand(len(episode.related), -1))
        n_base = len(episode.base_classes)
        wanted = self.recipe.covariance_pairs
        if isinstance(wanted, int) and wanted < n_base:
            weights, classes = heaviest_pairs(episode.class_weights, wanted)
            chosen = episode.base_classes[classes]
            factors = self.base_factors.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        else:
            weights = episode.class_weights
            factors = self.base_factors.index_select(0, episode.base_classes).unsqueeze(0)
        made = pairs.to_novel.to(factors.dtype)
        return covariance_loss(made, counted.to(made.dtype), factors, weights, self.recipe.ky_fan_rank)

    def _weighted(self, losses: Losses) -> Losses:
        """Multiply every term by the λ of its kind: adversarial, cycle or covariance."""
        recipe = self.recipe
        kinds = {"adversarial": recipe.adversarial_weight, "cycle": recipe.cycle_weight}
        kinds["covariance"] = recipe.covariance_weight
        factors = {name: kinds.get(name.partition("_")[0], 1) for name in losses}
        return {name: loss if factors[name] == 1 else factors[name] * loss for name, loss in losses.items()}


def judge(discriminator: Discriminator, real: Tensor, made: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of real and of made examples, both (…, …, D), in one pass."""
    rows = [real.flatten(0, 1), made.flatten(0, 1)]
    of_real, of_made = discriminator(torch.cat(rows), prototypes).split([len(part) for part in rows])
    return of_real.unflatten(0, real.shape[:2]), of_made.unflatten(0, made.shape[:2])


def sum_of(losses: Losses) -> Tensor:
    """Add the terms of a loss."""
    return torch.stack([*losses.values()]).sum()
