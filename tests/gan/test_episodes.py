"""Episodes: shapes, disjoint roles, and weights that make every way of drawing agree in expectation."""

import pytest
import torch

from cpaan.errors import InputError
from cpaan.gan.episodes import DirectSampler, EpisodicSampler, PairPlan
from cpaan.math.losses import cycle_loss, fake_loss
from cpaan.math.neighborhood import HardNeighborhood, Neighborhood, SoftNeighborhood, UniformNeighborhood
from cpaan.training.bank import ClassBank

PLANS = [
    ("drawn", "similarity", "normalized"),
    ("drawn", "uniform", "normalized"),
    ("all", "uniform", "normalized"),
]


def make_bank(n_classes: int = 8, per_class: int = 12, seed: int = 0) -> ClassBank:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    centers = 2 * torch.randn(n_classes, 3, generator=generator)
    features = centers[labels] + torch.randn(len(labels), 3, generator=generator)
    return ClassBank.from_examples(features, labels, n_classes)


@pytest.mark.parametrize(("pairing", "base_draw", "loss_weights"), PLANS)
def test_an_episode_keeps_roles_apart_and_shapes_fixed(pairing: str, base_draw: str, loss_weights: str) -> None:
    bank = make_bank()
    plan = PairPlan(SoftNeighborhood(1.0), 20, pairing, base_draw, loss_weights)
    episode = EpisodicSampler(bank, plan, 3, 4).draw(torch.Generator().manual_seed(0))
    assert episode.novel_examples.shape == (3, 4, 3)
    assert episode.base_examples.shape == (1 if pairing == "all" else 3, 20, 3)
    assert episode.weights.shape == (3, 20)
    assert len(set(episode.base_classes.tolist())) == 5
    rows = {tuple(x.tolist()): c for c in range(8) for x in bank.of_class(c)}
    novel = {rows[tuple(x.tolist())] for x in episode.novel_examples.flatten(0, 1)}
    assert novel.isdisjoint(episode.base_classes.tolist())
    for example, label in zip(episode.base_examples.flatten(0, 1), episode.base_labels.flatten(), strict=True):
        assert rows[tuple(example.tolist())] == episode.base_classes[label]
    torch.testing.assert_close(episode.novel_prototypes, episode.novel_examples.mean(1))
    centers = torch.stack([bank.of_class(c).mean(0) for c in episode.base_classes.tolist()])
    torch.testing.assert_close(episode.base_prototypes, centers)
    alpha = torch.softmax(-torch.cdist(episode.novel_prototypes, centers).square(), dim=-1)
    torch.testing.assert_close(episode.class_weights, alpha)
    assert torch.equal(episode.related, torch.ones(3, 5, dtype=torch.bool))


@pytest.mark.parametrize("neighborhood", [SoftNeighborhood(3.0), HardNeighborhood(2), UniformNeighborhood()])
def test_every_way_of_drawing_gives_the_same_expected_losses(neighborhood: Neighborhood) -> None:
    bank = make_bank()
    shots = make_bank(2, 4, seed=5).features.view(2, 4, 3)
    everything = torch.arange(8)

    def exact() -> tuple[float, float]:
        """Σ_b α(y_b, y_n) E over all x_b of class b, in loops."""
        alpha = neighborhood.similarity(shots.mean(1), bank.prototypes)
        adversarial = cycle = 0.0
        for n in range(2):
            for b in range(8):
                x = bank.of_class(b)
                adversarial += float(alpha[n, b] * x[:, 0].sigmoid().log().neg().mean()) / 2
                cycle += float(alpha[n, b] * (x - shots[n, 0]).square().sum(1).mean()) / 2
        return adversarial, cycle

    wanted = torch.tensor(exact())
    for pairing, base_draw, loss_weights in PLANS:
        plan = PairPlan(neighborhood, 60_000, pairing, base_draw, loss_weights)
        episode = plan.episode(shots, bank, everything, torch.Generator().manual_seed(1))
        fake = episode.base_examples[..., :1].sigmoid().log().expand(2, -1, -1)
        adversarial = fake_loss(fake, episode.weights)
        cycle = cycle_loss(episode.base_examples, shots[:, :1], episode.weights)
        torch.testing.assert_close(torch.stack([adversarial, cycle]), wanted, rtol=0.03, atol=0)


@pytest.mark.parametrize("pairing", ["all", "drawn"])
@pytest.mark.parametrize(("neighborhood", "related"), [(SoftNeighborhood(3.0), 8), (HardNeighborhood(2), 2)])
def test_the_literal_factor_is_one_over_the_size_of_the_neighborhood(
    pairing: str, neighborhood: Neighborhood, related: int
) -> None:
    bank, shots = make_bank(), make_bank(2, 4, seed=5).features.view(2, 4, 3)
    weights = [
        PairPlan(neighborhood, 500, pairing, "uniform", loss_weights)
        .episode(shots, bank, torch.arange(8), torch.Generator().manual_seed(1))
        .weights
        for loss_weights in ("normalized", "literal")
    ]
    torch.testing.assert_close(weights[0], weights[1] * related)


def test_drawing_by_similarity_needs_no_weights() -> None:
    plan = PairPlan(SoftNeighborhood(3.0), 50, "drawn", "similarity", "normalized")
    shots = make_bank(2, 4, seed=5).features.view(2, 4, 3)
    episode = plan.episode(shots, make_bank(), torch.arange(8), torch.Generator().manual_seed(1))
    torch.testing.assert_close(episode.weights, torch.ones(2, 50))


def test_hard_neighbors_alone_are_drawn() -> None:
    bank, shots = make_bank(), make_bank(2, 4, seed=5).features.view(2, 4, 3)
    plan = PairPlan(HardNeighborhood(2), 100, "drawn", "uniform", "normalized")
    episode = plan.episode(shots, bank, torch.arange(8), torch.Generator().manual_seed(1))
    for n in range(2):
        near = torch.cdist(shots[n].mean(0, keepdim=True), bank.prototypes)[0].argsort()[:2]
        assert set(episode.base_labels[n].tolist()) == set(near.tolist())


def test_direct_episodes_hold_all_base_classes_and_the_given_shots() -> None:
    base, novel = make_bank(2, 30), make_bank(2, 4, seed=5)
    plan = PairPlan(SoftNeighborhood(3.0), 10, "drawn", "similarity", "normalized")
    episode = DirectSampler(base, novel, plan, 2, 4).draw(torch.Generator().manual_seed(0))
    assert episode.base_classes.tolist() == [0, 1]
    known = {tuple(x.tolist()) for x in novel.features}
    assert {tuple(x.tolist()) for x in episode.novel_examples.flatten(0, 1)} == known


def test_episodes_of_some_base_classes_hold_no_others() -> None:
    bank, some = make_bank(), torch.tensor([7, 2, 5, 3])
    plan = PairPlan(SoftNeighborhood(3.0), 10, "drawn", "similarity", "normalized")
    rows = {tuple(x.tolist()): c for c in range(8) for x in bank.of_class(c)}
    seen = set()
    for seed in range(10):
        episode = EpisodicSampler(bank, plan, 1, 2, some).draw(torch.Generator().manual_seed(seed))
        novel = {rows[tuple(x.tolist())] for x in episode.novel_examples.flatten(0, 1)}
        assert sorted([*novel, *episode.base_classes.tolist()]) == [2, 3, 5, 7]
        seen |= novel
    assert len(seen) > 1


def test_the_same_seed_draws_the_same_episode() -> None:
    plan = PairPlan(SoftNeighborhood(3.0), 10, "drawn", "similarity", "normalized")
    episodic = EpisodicSampler(make_bank(), plan, 3, 2)
    direct = DirectSampler(make_bank(), make_bank(6, 12, seed=5), plan, 3, 2)
    for sampler in (episodic, direct):
        one, two = (sampler.draw(torch.Generator().manual_seed(7)) for _ in range(2))
        other = sampler.draw(torch.Generator().manual_seed(8))
        for name in ("novel_examples", "base_labels", "base_examples", "weights"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        for name in ("novel_examples", "base_examples"):
            assert not torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("pairing", "base_draw", "loss_weights", "message"),
    [
        ("some", "uniform", "literal", "pairing must be 'all' or 'drawn'"),
        ("all", "similarity", "literal", "use base_draw='uniform'"),
        ("all", "uniform", "none", "loss_weights must be"),
    ],
)
def test_wrong_plans_are_refused(pairing: str, base_draw: str, loss_weights: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PairPlan(UniformNeighborhood(), 1, pairing, base_draw, loss_weights)
