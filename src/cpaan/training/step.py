"""One training step: the discriminators' update, then the generators'.

Nothing here looks at a value on the host and every shape is fixed, so the whole step can be captured as one graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.nn.discriminator import Discriminator
from cpaan.nn.generator import Condition
from cpaan.nn.networks import Networks
from cpaan.nn.noise import Draw
from cpaan.objectives.adversarial import fake_loss, fooling_loss, real_loss
from cpaan.objectives.covariance import covariance_loss, heaviest_pairs
from cpaan.objectives.cycle import cycle_loss
from cpaan.sampling.episodes import Episode
from cpaan.training.recipe import Recipe
from cpaan.training.variant import Variant

Losses = dict[str, Tensor]


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
    """Updates networks on an episode and tells the loss terms.

    Parameters
    ----------
    networks : trained in place
    variant, recipe : which terms count, and how much
    base_factors : Tensor of shape (base classes of the bank, r, D)
        Factors of the base covariances; only looked at where the variant preserves covariance.
    """

    def __init__(self, networks: Networks, variant: Variant, recipe: Recipe, base_factors: Tensor) -> None:
        self.networks, self.variant, self.recipe, self.base_factors = networks, variant, recipe, base_factors
        self.generator_parameters = networks.generator_parameters()
        self.discriminator_parameters = networks.discriminator_parameters()
        # A tensor on the device, because a captured graph would keep a number as it was.
        self.learning_rate = torch.tensor(recipe.learning_rate, device=base_factors.device)
        betas = (recipe.momentum, 0.999)
        fused = base_factors.device.type in ("cpu", "cuda")
        self.discriminator_optimizer, self.generator_optimizer = (
            torch.optim.Adam(parameters, self.learning_rate, betas, fused=fused, capturable=base_factors.is_cuda)
            for parameters in (self.discriminator_parameters, self.generator_parameters)
        )

    def compile(self) -> None:
        """Let torch.compile fuse what lies between matrix products; worth its minute on a GPU and many episodes."""
        for name in ("translate", "discriminator_losses", "generator_losses"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))
        self._covariance_loss = torch.compiler.disable(self._covariance_loss)  # type: ignore[method-assign]

    def __call__(self, episode: Episode, generator: torch.Generator) -> Losses:
        """Train on one episode; gives the loss terms, detached."""
        return self.train_on(episode, self.draw_noise(episode, generator))

    def draw_noise(self, episode: Episode, generator: torch.Generator) -> Draw | None:
        """Draw the noise of an episode, where the variant has any."""
        noise = self.networks.noise
        return None if noise is None else noise.draw(tuple(episode.weights.shape), generator)

    def train_on(self, episode: Episode, noise: Draw | None) -> Losses:
        """Train on one episode with given noise; nothing is random any more."""
        pairs = self.translate(episode, noise)
        losses = self.discriminator_losses(episode, pairs)
        update(self.discriminator_optimizer, sum_of(losses), self.discriminator_parameters)
        generator_losses = self.generator_losses(episode, pairs)
        update(self.generator_optimizer, sum_of(self._weighted(generator_losses)), self.generator_parameters)
        return {name: loss.detach() for name, loss in (losses | generator_losses).items()}

    def translate(self, episode: Episode, draw: Draw | None) -> Pairs:
        """Translate every pair of the episode, in both directions where the variant has two."""
        n, k, _ = episode.novel_examples.shape
        m = episode.base_labels.shape[1]
        # Every shot starts as many ways back as the next; base examples are in random order already.
        novel = episode.novel_examples[:, torch.arange(m, device=episode.weights.device) % k]
        novel_prototype = episode.novel_prototypes.unsqueeze(1)
        base_prototype = episode.base_prototypes[episode.base_labels]
        networks = self.networks
        way_there = networks.novel_generator.condition(base_prototype, novel_prototype)
        to_novel = networks.novel_generator.translate(episode.base_examples, way_there)
        noise = to_base = way_back = None
        if networks.base_generator is not None and networks.noise is not None and draw is not None:
            # NOTE[paper]: the way back takes the same (y_n, y_b) pairs, with the same weights.
            noise = networks.noise(draw)
            way_back = networks.base_generator.condition(novel_prototype, base_prototype, noise)
            to_base = networks.base_generator.translate(novel, way_back)
        label = torch.arange(n, device=novel.device).unsqueeze(1)
        return Pairs(novel, label, to_novel, way_there, noise, to_base, way_back)

    def discriminator_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Give the real and the fake terms of both games, with the translations held fixed."""
        networks, made = self.networks, pairs.to_novel.detach()
        real, fake = judge(networks.novel_discriminator, episode.novel_examples, made, episode.novel_prototypes)
        losses = {
            "discriminator_novel_real": real_loss(real, pairs.novel_label),
            "discriminator_novel_fake": fake_loss(fake, episode.weights),
        }
        if networks.base_discriminator is not None and pairs.to_base is not None:
            made = pairs.to_base.detach()
            real, fake = judge(networks.base_discriminator, episode.base_examples, made, episode.base_prototypes)
            losses["discriminator_base_real"] = real_loss(real, episode.base_labels)
            losses["discriminator_base_fake"] = fake_loss(fake, episode.weights)
        return losses

    def generator_losses(self, episode: Episode, pairs: Pairs) -> Losses:
        """Give the terms that the generators minimise, each before its λ."""
        networks, weights = self.networks, episode.weights
        believed = networks.novel_discriminator(pairs.to_novel, episode.novel_prototypes)
        losses = {"adversarial_novel": fooling_loss(believed, pairs.novel_label, weights)}
        if networks.base_generator is not None and networks.base_discriminator is not None:
            assert pairs.to_base is not None
            assert pairs.way_back is not None
            believed = networks.base_discriminator(pairs.to_base, episode.base_prototypes)
            losses["adversarial_base"] = fooling_loss(believed, episode.base_labels, weights)
            base_again = networks.base_generator.translate(pairs.to_novel, pairs.way_back)
            novel_again = networks.novel_generator.translate(pairs.to_base, pairs.way_there)
            losses["cycle_base"] = cycle_loss(base_again, episode.base_examples, weights)
            losses["cycle_novel"] = cycle_loss(novel_again, pairs.novel, weights)
        if self.variant.covariance:
            losses["covariance"] = self._covariance_loss(episode, pairs)
        return losses

    def _covariance_loss(self, episode: Episode, pairs: Pairs) -> Tensor:
        counted = episode.related.gather(1, episode.base_labels.expand(len(episode.related), -1))
        n_base = len(episode.base_classes)
        wanted = self.recipe.covariance_pairs
        if isinstance(wanted, int) and wanted < n_base:
            weights, classes = heaviest_pairs(episode.class_weights, wanted)
            factors = self.base_factors[episode.base_classes[classes]]
        else:
            weights = episode.class_weights
            factors = self.base_factors[episode.base_classes].unsqueeze(0)
        counted = counted.to(pairs.to_novel.dtype)
        return covariance_loss(pairs.to_novel, counted, factors, weights, self.recipe.ky_fan_rank)

    def _weighted(self, losses: Losses) -> Losses:
        cycle, covariance = self.recipe.cycle_weight, self.recipe.covariance_weight
        factors = {"cycle_base": cycle, "cycle_novel": cycle, "covariance": covariance}
        return losses | {name: factor * losses[name] for name, factor in factors.items() if name in losses}


def judge(discriminator: Discriminator, real: Tensor, made: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Give log-probabilities of real and of made examples, both (…, …, D), from one pass over all of them."""
    rows = [real.flatten(0, 1), made.flatten(0, 1)]
    of_real, of_made = discriminator(torch.cat(rows), prototypes).split([len(part) for part in rows])
    return of_real.unflatten(0, real.shape[:2]), of_made.unflatten(0, made.shape[:2])


def update(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[torch.nn.Parameter]) -> None:
    """Take one step of these parameters; the other players' gradients are neither wanted nor computed."""
    optimizer.zero_grad()
    loss.backward(inputs=parameters)
    optimizer.step()


def sum_of(losses: Losses) -> Tensor:
    """Add the terms of a loss."""
    return torch.stack([*losses.values()]).sum()
