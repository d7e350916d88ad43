"""One training step: its losses against plain formulas, who is updated, and no waiting for the device."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cpaan.gan.cuda_graph import CudaGraph, DrawnAhead
from cpaan.gan.episodes import Episode, EpisodicSampler, PairPlan
from cpaan.gan.networks import Architecture, build_networks
from cpaan.gan.objective import VARIANTS, Pairs, TrainingStep
from cpaan.gan.recipe import QUICK, Recipe
from cpaan.math.covariance import covariance
from cpaan.math.ky_fan import ky_fan_norm
from cpaan.math.neighborhood import HardNeighborhood, SoftNeighborhood
from cpaan.training.bank import ClassBank
from cpaan.training.progress import History

RECIPE = replace(QUICK, width=16, covariance_pairs=2, ky_fan_rank=3, learning_rate=1e-2)


def make_sampler(
    device: str = "cpu", pairing: str = "drawn", hard: bool = False, examples: int = 10
) -> EpisodicSampler:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(8).repeat_interleave(12)
    features = 2 * torch.randn(8, 5, generator=generator)[labels] + torch.randn(96, 5, generator=generator)
    bank = ClassBank.from_examples(features.to(device), labels.to(device), 8)
    draw = "uniform" if pairing == "all" else "similarity"
    neighborhood = HardNeighborhood(2) if hard else SoftNeighborhood(3.0)
    return EpisodicSampler(bank, PairPlan(neighborhood, examples, pairing, draw, "normalized"), 3, 2)


def make_step(variant: str, sampler: EpisodicSampler, recipe: Recipe = RECIPE) -> TrainingStep:
    kind = VARIANTS[variant]
    shape = Architecture(
        dimension=5,
        width=recipe.width,
        noise_dimension=4,
        noise_components=3 if kind.mixture_noise else 0,
        cycle=kind.cycle,
        residual=False,
        gain=1.0,
        negative_slope=0.1,
    )
    bank = sampler.base
    factors = torch.stack([x - x.mean(0) for x in map(bank.of_class, range(8))]) / 12**0.5
    return TrainingStep(build_networks(shape, 0).to(bank.features.device), kind, recipe, factors)


def generator_losses(step: TrainingStep, episode: Episode, pairs: Pairs) -> dict[str, Tensor]:
    parts = (step.adversarial_losses, step.cycle_losses, step.covariance_losses)
    return {name: loss for part in parts for name, loss in part(episode, pairs).items()}


def slow_losses(step: TrainingStep, episode: Episode, noise: Tensor) -> dict[str, float]:
    """The printed objectives, pair by pair, each example on its own."""
    networks = step.networks
    assert networks.base_generator is not None
    assert networks.base_discriminator is not None
    n_novel, n_shots, _ = episode.novel_examples.shape
    n_pairs = episode.weights.shape[1]
    names = ("real", "fake", "fool", "base_real", "base_fake", "base_fool", "cycle_base", "cycle_novel")
    terms = dict.fromkeys(names, 0.0)
    n_real = episode.base_labels.numel()
    for x_b, b in zip(episode.base_examples.reshape(n_real, -1), episode.base_labels.flatten(), strict=True):
        score = networks.base_discriminator(x_b, episode.base_prototypes)
        terms["base_real"] -= float(score[b]) / n_real
    covariances = 0.0
    for n in range(n_novel):
        l_n = episode.novel_prototypes[n]
        for k in range(n_shots):
            score = networks.novel_discriminator(episode.novel_examples[n, k], episode.novel_prototypes)
            terms["real"] -= float(score[n]) / (n_novel * n_shots)
        made, kept = [], []
        for j in range(n_pairs):
            row = n if len(episode.base_examples) > 1 else 0
            x_b, b = episode.base_examples[row, j], int(episode.base_labels[row, j])
            l_b, x_n = episode.base_prototypes[b], episode.novel_examples[n, j % n_shots]
            weight = float(episode.weights[n, j]) / (n_novel * n_pairs)
            to_novel = networks.novel_generator(x_b, l_b, l_n)
            to_base = networks.base_generator(x_n, l_n, l_b, noise[n, j])
            score = networks.novel_discriminator(to_novel, episode.novel_prototypes)
            back = networks.base_discriminator(to_base, episode.base_prototypes)
            terms["fake"] -= weight * float(score[-1])
            terms["fool"] -= weight * float(score[n])
            terms["base_fake"] -= weight * float(back[-1])
            terms["base_fool"] -= weight * float(back[b])
            again = networks.base_generator(to_novel, l_n, l_b, noise[n, j])
            terms["cycle_base"] += weight * float((again - x_b).square().sum())
            again = networks.novel_generator(to_base, l_b, l_n)
            terms["cycle_novel"] += weight * float((again - x_n).square().sum())
            made.append(to_novel)
            kept.append(bool(episode.related[n, b]))
        sigma_g = covariance(torch.stack([x for x, keep in zip(made, kept, strict=True) if keep]))
        heaviest = episode.class_weights[n].argsort(descending=True)[:2]
        shares = episode.class_weights[n, heaviest] / episode.class_weights[n, heaviest].sum()
        for share, b in zip(shares, heaviest, strict=True):
            factor = step.base_factors[int(episode.base_classes[b])]
            difference = factor.T @ factor - sigma_g
            covariances += float(share * ky_fan_norm(difference, 3, "exact")) / n_novel
    return terms | {"covariance": covariances}


@pytest.mark.parametrize("pairing", ["drawn", "all"])
@pytest.mark.parametrize("hard", [False, True])
@torch.no_grad()
def test_losses_are_the_printed_ones(pairing: str, hard: bool) -> None:
    sampler = make_sampler(pairing=pairing, hard=hard)
    step = make_step("ccov-gan", sampler)
    episode = sampler.draw(torch.Generator().manual_seed(3))
    translated = step.translate(episode, step.draw_noise(episode, torch.Generator().manual_seed(4)))
    found = step.discriminator_losses(episode, translated) | generator_losses(step, episode, translated)
    assert translated.noise is not None
    slow = slow_losses(step, episode, translated.noise)
    names = {
        "discriminator_novel_real": "real",
        "discriminator_novel_fake": "fake",
        "discriminator_base_real": "base_real",
        "discriminator_base_fake": "base_fake",
        "adversarial_novel": "fool",
        "adversarial_base": "base_fool",
        "cycle_base": "cycle_base",
        "cycle_novel": "cycle_novel",
        "covariance": "covariance",
    }
    for name, printed in names.items():
        assert found[name].item() == pytest.approx(slow[printed], rel=1e-3), name


def test_each_variant_has_its_own_terms() -> None:
    sampler = make_sampler()
    generator = torch.Generator().manual_seed(0)
    terms = {v: set(make_step(v, sampler)(sampler.draw(generator), generator)) for v in VARIANTS}
    novel = {"discriminator_novel_real", "discriminator_novel_fake", "adversarial_novel"}
    base = {"discriminator_base_real", "discriminator_base_fake", "adversarial_base"}
    assert terms["c-gan"] == novel
    assert terms["ccyc-gan"] == terms["cdeli-gan"] == novel | base | {"cycle_base", "cycle_novel"}
    assert terms["ccov-gan"] == terms["ccyc-gan"] | {"covariance"}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_step_moves_every_parameter(variant: str) -> None:
    sampler = make_sampler()
    step = make_step(variant, sampler)
    before = {name: value.clone() for name, value in step.networks.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        step(sampler.draw(generator), generator)
    still = [name for name, value in step.networks.named_parameters() if torch.equal(value, before[name])]
    assert still == []


def test_the_covariance_term_brings_covariances_together() -> None:
    """From a nearly collapsed generator: with the term the distance falls, without it it stays."""
    last = {}
    for weight in (0.0, 100.0):
        sampler = make_sampler(examples=60)
        step = make_step("ccov-gan", sampler, replace(RECIPE, covariance_weight=weight, cycle_weight=0.0))
        for parameter in step.networks.novel_generator.parameters():
            parameter.data.mul_(0.1)
        generator = torch.Generator().manual_seed(0)
        losses = [float(step(sampler.draw(generator), generator)["covariance"]) for _ in range(600)]
        last[weight] = sum(losses[-50:]) / 50
    assert last[100.0] < 0.75 * last[0.0]


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
def test_the_adversarial_loss_counts_as_much_as_it_is_told_to(weight: float) -> None:
    """With nothing else to learn from, weight 0 leaves the generator as it was."""
    sampler = make_sampler()
    step = make_step("c-gan", sampler, replace(RECIPE, adversarial_weight=weight, momentum=0.0))
    before = [value.clone() for value in step.networks.generator_parameters()]
    generator = torch.Generator().manual_seed(0)
    step(sampler.draw(generator), generator)
    moved = [not torch.equal(*pair) for pair in zip(before, step.networks.generator_parameters(), strict=True)]
    assert any(moved) == (weight > 0)
    losses = {"adversarial_novel": torch.tensor(3.0), "discriminator_novel_real": torch.tensor(5.0)}
    assert float(step._weighted(losses)["adversarial_novel"]) == weight * 3
    assert float(step._weighted(losses)["discriminator_novel_real"]) == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_step_never_waits_for_the_device(variant: str) -> None:
    sampler = make_sampler("cuda")
    step = make_step(variant, sampler)
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(2):  # libraries are set up at the first use
        step(sampler.draw(generator), generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(sampler.draw(generator), generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_losses_on_the_gpu_are_those_on_the_cpu() -> None:
    sampler = make_sampler()
    step, other = make_step("ccov-gan", sampler), make_step("ccov-gan", make_sampler("cuda"))
    episode = sampler.draw(torch.Generator().manual_seed(3))
    noise = step.draw_noise(episode, torch.Generator().manual_seed(4))
    moved = Episode(**{name: value.cuda() for name, value in vars(episode).items()})
    moved_noise = None if noise is None else noise._replace(epsilon=noise.epsilon.cuda())
    here = generator_losses(step, episode, step.translate(episode, noise))
    there = generator_losses(other, moved, other.translate(moved, moved_noise))
    torch.cuda.synchronize()
    for name in here:
        assert there[name].item() == pytest.approx(here[name].item(), rel=1e-3), name


def compile_networks(step: TrainingStep) -> None:
    networks = step.networks
    assert networks.base_generator is not None
    for generator in (networks.novel_generator, networks.base_generator):
        generator.translate = torch.compile(generator.translate, dynamic=False)  # type: ignore[method-assign]


def can_compile(device: str) -> bool:
    """Tell whether torch finds what it compiles with: for a CPU a C++ compiler, and the headers of Python."""
    try:
        torch.compile(lambda x: x.sin() + 1, dynamic=False)(torch.zeros(3, device=device))
    except RuntimeError:
        return False
    return True


def trained(version: str, device: str, episodes: int = 6) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train a step in one of its versions, on the same draws."""
    sampler = make_sampler(device)
    step, generator, history = make_step("ccov-gan", sampler), torch.Generator(device).manual_seed(0), History()

    def action() -> None:
        history.add(step(sampler.draw(generator), generator))

    run: Callable[[], None] = action
    if version == "compiled":
        compile_networks(step)
    if version == "captured":
        run = CudaGraph(DrawnAhead(step, sampler, generator, history), generator)
    for _ in range(episodes):
        run()
    return {name: value.detach().clone() for name, value in step.networks.named_parameters()}, history.log(episodes)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("version", "device"),
    [
        ("compiled", "cpu"),
        pytest.param("compiled", "cuda", marks=needs_cuda),
        pytest.param("captured", "cuda", marks=needs_cuda),
    ],
)
def test_every_version_of_a_step_trains_alike(version: str, device: str) -> None:
    """Rounding cannot have grown in 6 episodes: weights that begin 1e-6 apart end within a thirtieth of the bound."""
    if version == "compiled" and not can_compile(device):
        pytest.skip("torch.compile finds no compiler here")
    weights, losses = trained("eager", device)
    others, other_losses = trained(version, device)
    for name, loss in losses.items():
        assert other_losses[name] == pytest.approx(loss, rel=1e-4), name
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4, msg=name)
