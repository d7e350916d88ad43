"""The noise that is fed to the base generator.

Gaussian mixture after Gurumurthy, Sarvadevabhatla and Babu, *DeLiGAN: Generative adversarial networks for diverse
and limited data*, CVPR 2017.
"""

import torch
from torch import Tensor, nn


class GaussianNoise(nn.Module):
    """z ~ N(0, I).

    >>> GaussianNoise(3)((2, 4), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        # Carries the device, which an empty module does not know.
        self.register_buffer("origin", torch.zeros(dimension), persistent=False)

    origin: Tensor

    def forward(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw noise vectors of the given leading shape."""
        return torch.randn((*shape, self.dimension), generator=generator, device=self.origin.device)


class MixtureNoise(nn.Module):
    """z = μ_i + σ_i ⊙ ε with i uniform over C components and ε ~ N(0, I); μ and σ are trained.

    >>> noise = MixtureNoise(3, components=5)
    >>> noise((2, 4), torch.Generator().manual_seed(0)).shape
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

    def forward(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw noise vectors of the given leading shape."""
        device = self.mu.device
        component = torch.randint(len(self.mu), shape, generator=generator, device=device)
        epsilon = torch.randn((*shape, self.dimension), generator=generator, device=device)
        return self.mu[component] + self.sigma[component] * epsilon
