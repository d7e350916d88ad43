import pytest
import torch
from torch.nn.functional import leaky_relu

from cpaan.gan.networks import Architecture, Discriminator, GaussianNoise, Generator, MixtureNoise, build_networks


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("noise_dimension", [0, 4])
@pytest.mark.parametrize("gain", [1.0, 7.0])
def test_the_split_input_layer_is_a_three_layer_mlp_on_the_concatenated_inputs(
    noise_dimension: int, gain: float
) -> None:
    net = Generator(3, 16, noise_dimension=noise_dimension, gain=gain)
    example, source, target = torch.randn(1, 5, 3), torch.randn(1, 5, 3), torch.randn(2, 1, 3)
    noise = torch.randn(2, 5, noise_dimension) if noise_dimension else None
    found = net(example, source, target, noise)
    assert found.shape == (2, 5, 3)
    of_noise = torch.zeros(16, 0) if net.of_noise is None else net.of_noise
    joined = torch.cat([net.of_example, net.of_source, net.of_target, of_noise], dim=1)
    for n in range(2):
        for m in range(5):
            parts = [gain * example[0, m], gain * source[0, m], gain * target[n, 0]]
            if noise is not None:
                parts.append(noise[n, m])
            hidden = leaky_relu(joined @ torch.cat(parts) + net.bias, 0.1)
            hidden = leaky_relu(net.hidden(hidden), 0.1)
            torch.testing.assert_close(found[n, m], net.output(hidden) / gain)


def test_input_weights_start_as_those_of_one_layer() -> None:
    net = Generator(100, 200, noise_dimension=50)
    assert net.of_noise is not None
    largest = 350**-0.5
    for part in (net.of_example, net.of_source, net.of_target, net.of_noise):
        assert float(part.detach().abs().max()) == pytest.approx(largest, rel=1e-2)
        assert float(part.detach().std()) == pytest.approx(largest / 3**0.5, rel=2e-2)


@pytest.mark.parametrize("residual", [False, True])
def test_a_condition_serves_any_number_of_translations(residual: bool) -> None:
    net = Generator(3, 16, noise_dimension=4, residual=residual)
    net.output.weight.data.normal_()
    source, target, noise = torch.randn(1, 5, 3), torch.randn(2, 1, 3), torch.randn(2, 5, 4)
    condition = net.condition(source, target, noise)
    for example in (torch.randn(1, 5, 3), torch.randn(2, 5, 3)):
        torch.testing.assert_close(net.translate(example, condition), net(example, source, target, noise))


def test_a_residual_generator_starts_by_keeping_the_deviation() -> None:
    net = Generator(3, 16, residual=True)
    example, source, target = torch.randn(5, 3), torch.randn(5, 3), torch.randn(1, 3)
    torch.testing.assert_close(net(example, source, target), target + example - source)
    net.output.weight.data.normal_()
    assert not torch.allclose(net(example, source, target), target + example - source)


@torch.no_grad()
def test_discriminator_logits_are_products_with_projected_prototypes() -> None:
    net = Discriminator(3, 16, gain=2.0)
    x, prototypes = torch.randn(3), torch.randn(4, 3)
    hidden = leaky_relu(net.input(2 * x), 0.1)
    hidden = leaky_relu(net.hidden(hidden), 0.1)
    logits = [float(hidden @ net.of_prototype(2 * p)) / 4.0 for p in prototypes] + [float(net.of_fake(hidden))]
    torch.testing.assert_close(net(x, prototypes), torch.tensor(logits).log_softmax(0))


def test_discriminator_follows_the_order_of_its_classes() -> None:
    net, x, prototypes = Discriminator(3, 16), torch.randn(6, 3), torch.randn(4, 3)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(net(x, prototypes[order]), net(x, prototypes)[:, [2, 0, 3, 1, 4]])


def test_gaussian_noise_is_standard_normal() -> None:
    noise = GaussianNoise(3)
    z = noise(noise.draw((20_000,), seeded()))
    torch.testing.assert_close(z.mean(0), torch.zeros(3), rtol=0, atol=0.03)
    torch.testing.assert_close(z.T.cov(), torch.eye(3), rtol=0, atol=0.03)


def test_mixture_noise_has_the_moments_of_its_components_and_trains_them() -> None:
    noise = MixtureNoise(2, components=3)
    noise.sigma.data[0] *= -1  # a negative σ is as good as a positive one
    z = noise(noise.draw((200_000,), seeded()))
    mean = noise.mu.mean(0)
    second = (noise.mu.square() + noise.sigma.square()).mean(0)
    torch.testing.assert_close(z.mean(0), mean, rtol=0, atol=0.01)
    torch.testing.assert_close(z.square().mean(0), second, rtol=0, atol=0.01)
    z.sum().backward()
    assert noise.mu.grad is not None
    assert noise.sigma.grad is not None


def test_mixture_noise_starts_as_in_the_paper() -> None:
    noise = MixtureNoise(100, components=50)
    assert noise.mu.abs().max() <= 1
    assert noise.mu.std().item() == pytest.approx(3**-0.5, abs=0.02)
    assert noise.sigma.std().item() == pytest.approx(0.2, abs=0.01)


def test_networks_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    shape = Architecture(4, 8, 3, 0, cycle=True, residual=False, gain=1.0, negative_slope=0.1)
    before = torch.random.get_rng_state()
    one = build_networks(shape, 1).state_dict()
    torch.manual_seed(5)
    two, other = build_networks(shape, 1).state_dict(), build_networks(shape, 2).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["novel_generator.of_example"], other["novel_generator.of_example"])
    torch.random.set_rng_state(before)
    build_networks(shape, 1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("cycle", [True, False])
def test_every_parameter_belongs_to_one_player(cycle: bool) -> None:
    shape = Architecture(4, 8, 3, 5, cycle=cycle, residual=True, gain=1.0, negative_slope=0.1)
    networks = build_networks(shape, 0)
    players = networks.generator_parameters() + networks.discriminator_parameters()
    assert {id(p) for p in players} == {id(p) for p in networks.parameters()}
    assert len(players) == len({id(p) for p in players})
