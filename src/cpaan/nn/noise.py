"""The noise that is fed to the base generator.

Gaussian mixture after Gurumurthy, Sarvadevabhatla and Babu, *DeLiGAN: Generative adversarial networks for diverse
and limited data*, CVPR 2017.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Draw(NamedTuple):
    """What is random in a batch of noise; the same draw gives the same noise, as far as μ and σ are the same."""

    epsilon: Tensor  # (…, Z), ε ~ N(0, I)
    component: Tensor | None  # (…, C), one-hot


class GaussianNoise(nn.Module):
    """z ~ N(0, I).

    >>> noise = GaussianNoise(3)
    >>> noise(noise.draw((2, 4), torch.Generator().manual_seed(0))).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        # Carries the device, which an empty module does not know.
        self.register_buffer("origin", torch.zeros(dimension), persistent=False)

    origin: Tensor

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Draw:
        """Draw for noise vectors of the given leading shape."""
        return Draw(torch.randn((*shape, self.dimension), generator=generator, device=self.origin.device), None)

    def forward(self, draw: Draw) -> Tensor:
        """Give the noise vectors of a draw."""
        return draw.epsilon


class MixtureNoise(nn.Module):
    """z = μ_i + σ_i ⊙ ε with i uniform over C components and ε ~ N(0, I); μ and σ are trained.

    >>> noise = MixtureNoise(3, components=5)
    >>> noise(noise.draw((2, 4), torch.Generator().manual_seed(0))).shape
    torch.Size([2, 4, 3])
    >>> sorted(name for name, _ in noise.named_parameters())
    ['mu', 'sigma']
    """

    def __init__(self, dimension: int, components: int) -> None:
        super().__init__()
        self.dimension = dimension
        self.mu = nn.Parameter(torch.empty(components, dimension).uniform_(-1, 1))
        # NOTE[paper]: σ ~ N(0, 0.2) can be negative, so it is no variance; it scales ε, as in DeLiGAN.
        self.sigma = nn.Parameter(torch.empty(components, dimension).normal_(0, 0.2))

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Draw:
        """Draw for noise vectors of the given leading shape."""
        device, components = self.mu.device, torch.arange(len(self.mu), device=self.mu.device)
        chosen = torch.randint(len(self.mu), (*shape, 1), generator=generator, device=device)
        epsilon = torch.randn((*shape, self.dimension), generator=generator, device=device)
        return Draw(epsilon, (chosen == components).to(epsilon.dtype))

    def forward(self, draw: Draw) -> Tensor:
        """Give the noise vectors of a draw."""
        # Products with one-hot rows: the derivative of indexing would sort its indices.
        assert draw.component is not None
        component, epsilon = (part.to(self.mu.dtype) for part in (draw.component, draw.epsilon))
        mean: Tensor = component @ self.mu
        return torch.addcmul(mean, component @ self.sigma, epsilon)
