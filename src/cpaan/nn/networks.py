"""The networks of one variant, built together."""

from dataclasses import dataclass

from torch import nn

from cpaan.nn.discriminator import Discriminator
from cpaan.nn.generator import Generator
from cpaan.nn.initial_weights import initial_weights
from cpaan.nn.noise import GaussianNoise, MixtureNoise


@dataclass(frozen=True)
class Architecture:
    """Every number that the networks are built from.

    Attributes
    ----------
    dimension : feature dimension D
    width : of hidden layers
    noise_dimension : Z
    noise_components : C of the Gaussian mixture; 0 for a plain Gaussian
    cycle : whether there are networks of the way back, G_b and D_b
    residual, gain, negative_slope : see `Generator`
    """

    dimension: int
    width: int
    noise_dimension: int
    noise_components: int
    cycle: bool
    residual: bool
    gain: float
    negative_slope: float


class Networks(nn.Module):
    """G_n and D_n, and where the variant has a cycle also G_b, D_b and the noise.

    >>> shape = Architecture(2, 8, 4, 0, cycle=False, residual=False, gain=1.0, negative_slope=0.1)
    >>> networks = Networks(shape)
    >>> networks.base_generator is None
    True
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = a = architecture
        self.novel_generator = _generator(a, noise_dimension=0)
        self.novel_discriminator = _discriminator(a)
        self.base_generator: Generator | None = None
        self.base_discriminator: Discriminator | None = None
        self.noise: GaussianNoise | MixtureNoise | None = None
        if a.cycle:
            # NOTE[paper]: noise enters G_b alone.
            self.base_generator = _generator(a, noise_dimension=a.noise_dimension)
            self.base_discriminator = _discriminator(a)
            self.noise = (
                MixtureNoise(a.noise_dimension, a.noise_components)
                if a.noise_components
                else GaussianNoise(a.noise_dimension)
            )

    def generator_parameters(self) -> list[nn.Parameter]:
        """Parameters that minimise: the generators' and the noise's."""
        modules = (self.novel_generator, self.base_generator, self.noise)
        return [p for module in modules if module is not None for p in module.parameters()]

    def discriminator_parameters(self) -> list[nn.Parameter]:
        """Parameters that maximise: the discriminators'."""
        modules = (self.novel_discriminator, self.base_discriminator)
        return [p for module in modules if module is not None for p in module.parameters()]


def _generator(a: Architecture, noise_dimension: int) -> Generator:
    return Generator(
        a.dimension,
        a.width,
        noise_dimension=noise_dimension,
        residual=a.residual,
        gain=a.gain,
        negative_slope=a.negative_slope,
    )


def _discriminator(a: Architecture) -> Discriminator:
    return Discriminator(a.dimension, a.width, gain=a.gain, negative_slope=a.negative_slope)


def build_networks(architecture: Architecture, seed: int) -> Networks:
    """Build networks whose initial weights depend on the seed alone; the global random state is kept."""
    with initial_weights(seed):
        return Networks(architecture)
