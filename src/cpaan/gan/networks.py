"""Generators, discriminators and noise of a variant.

Generators translate an example of a source class into a target class, both given by their prototypes. Discriminators
say which of the given classes an example belongs to, or that it is synthetic.

Reference for the Gaussian mixture: S. Gurumurthy, R. K. Sarvadevabhatla and R. V. Babu, "DeLiGAN: Generative
adversarial networks for diverse and limited data", CVPR 2017.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear, log_softmax

from cpaan.math.ky_fan_cuda import find_kernels
from cpaan.training.weights import initial_weights


def dense(values: Tensor, weight: Tensor, bias: Tensor, negative_slope: float = 1.0) -> Tensor:
    """Compute leaky_relu(W x + b) in the precision of the weights; a slope of 1 leaves the activation out."""
    values = values.to(weight.dtype)
    fuses = values.is_cuda and not torch.compiler.is_compiling() and find_kernels(values.device) is not None
    if fuses and values.numel():  # a kernel cannot be started without rows
        fused: Tensor = _Dense.apply(values, weight, bias, negative_slope)  # type: ignore[no-untyped-call]
        return fused
    flat = values.reshape(-1, values.shape[-1])  # in place on a view, as of more dimensions, would mean copies
    found = linear(flat, weight, bias)
    if negative_slope != 1:
        found = leaky_relu(found, negative_slope, inplace=True)
    return found.view(*values.shape[:-1], len(weight))  # not −1, which is ambiguous where there are no rows


class _Dense(torch.autograd.Function):
    """A layer on a GPU: what follows the matrix products takes one pass over the values, forward and backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, negative_slope: float) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])
        found = flat @ weight.T
        kernels = find_kernels(values.device)
        assert kernels is not None
        kernels.activate(found, bias, negative_slope)
        ctx.save_for_backward(flat, weight, found)
        ctx.negative_slope, ctx.shape = negative_slope, values.shape
        return found.view(*values.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight, found = ctx.saved_tensors
        kernels = find_kernels(flat.device)
        assert kernels is not None
        gradient = grad_output.reshape(found.shape).contiguous()
        wanted = ctx.needs_input_grad
        gradient, of_bias = kernels.derivative(gradient, found, ctx.negative_slope)
        of_values = (gradient @ weight).view(ctx.shape) if wanted[0] else None
        of_weight = gradient.T @ flat if wanted[1] else None
        return of_values, of_weight, of_bias, None


class Discriminator(nn.Module):
    """D(y | x) over the target classes and one more, "fake".

    The logit of a class is the product of the last hidden layer with a learned projection of the class's
    prototype, so classes may change from episode to episode and may be unseen.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    gain : features and prototypes are multiplied by it (see `Generator`)
    negative_slope : of the leaky ReLUs

    >>> discriminator = Discriminator(dimension=2, width=8)
    >>> log_probabilities = discriminator(torch.zeros(5, 2), torch.zeros(3, 2))
    >>> log_probabilities.shape, torch.allclose(log_probabilities.exp().sum(-1), torch.ones(5))
    (torch.Size([5, 4]), True)
    """

    def __init__(self, dimension: int, width: int, *, gain: float = 1.0, negative_slope: float = 0.1) -> None:
        super().__init__()
        self.gain, self.negative_slope = gain, negative_slope
        self.input = nn.Linear(dimension, width)
        self.hidden = nn.Linear(width, width)
        # NOTE[paper]: "prototypes instead of one-hot" as categorical information: the output layer's class
        # weights are a projection of the prototypes.
        self.of_prototype = nn.Linear(dimension, width)
        self.of_fake = nn.Linear(width, 1)

    def forward(self, examples: Tensor, prototypes: Tensor) -> Tensor:
        """Compute log-probabilities of shape (…, classes + 1); the last column is "fake"."""
        examples, prototypes = (features.to(self.input.weight.dtype) for features in (examples, prototypes))
        if self.gain != 1:
            examples, prototypes = examples * self.gain, prototypes * self.gain
        hidden = dense(examples, self.input.weight, self.input.bias, self.negative_slope)
        hidden = dense(hidden, self.hidden.weight, self.hidden.bias, self.negative_slope)
        # As in attention: a product of two vectors of unit entries grows with the root of their length.
        weights = self.of_prototype(prototypes) * self.of_prototype.out_features**-0.5
        # One product: the weights of the classes and of "fake" form one matrix.
        bias = torch.cat([weights.new_zeros(weights.shape[-2]), self.of_fake.bias])
        logits = linear(hidden, torch.cat([weights, self.of_fake.weight], dim=-2), bias)
        return log_softmax(logits.float(), dim=-1)


class Draw(NamedTuple):
    """The random part of a batch of noise: a function of it and of μ and σ alone."""

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
        # Carries the device, which a module without parameters does not know.
        self.register_buffer("origin", torch.zeros(dimension), persistent=False)

    origin: Tensor

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Draw:
        """Draw for noise vectors of the given leading shape."""
        return Draw(torch.randn((*shape, self.dimension), generator=generator, device=self.origin.device), None)

    def forward(self, draw: Draw) -> Tensor:
        """Compute the noise vectors of a draw."""
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
        """Compute the noise vectors of a draw."""
        # Products with one-hot rows: the derivative of indexing would sort its indices.
        assert draw.component is not None
        component, epsilon = (part.to(self.mu.dtype) for part in (draw.component, draw.epsilon))
        mean: Tensor = component @ self.mu
        return torch.addcmul(mean, component @ self.sigma, epsilon)


class Condition(NamedTuple):
    """The part of a translation that depends on its classes and noise alone."""

    hidden: Tensor  # what the prototypes and the noise add to the first hidden layer
    shift: Tensor | None  # l_target − l_source, where the generator is residual


class Generator(nn.Module):
    """G(y_target; x, y_source[, z]): a three-layer MLP on an example, two prototypes and noise.

    Inputs broadcast against each other in their leading dimensions. The first layer is linear in each input, so it is
    applied before broadcasting: a table of N target classes × M examples costs N + M first-layer products instead of
    N · M. The `Condition`, which depends on the classes alone, can be reused for the way back of a cycle.

    Parameters
    ----------
    dimension : feature dimension D
    width : of both hidden layers
    noise_dimension : 0 for a generator without noise
    residual : start from "keep the deviation", l_target + (x − l_source), and learn what to add;
        otherwise the output is the MLP's alone, as in the paper
    gain : inputs are multiplied and outputs divided by it, so that layers see values of about one
        whatever the units of the features; 1 is the paper's
    negative_slope : of the leaky ReLUs

    Layers compute in the precision of their weights. The generator of a trained model takes and returns features in the
    model's units; `PortableGenerator` takes those of the user. It can be compiled and exported by torch.

    >>> import torch
    >>> generator = Generator(dimension=2, width=8, residual=True)
    >>> generator(torch.ones(1, 5, 2), torch.zeros(1, 5, 2), torch.zeros(3, 1, 2)).shape
    torch.Size([3, 5, 2])
    """

    def __init__(
        self,
        dimension: int,
        width: int,
        *,
        noise_dimension: int = 0,
        residual: bool = False,
        gain: float = 1.0,
        negative_slope: float = 0.1,
    ) -> None:
        super().__init__()
        self.residual, self.gain, self.negative_slope = residual, gain, negative_slope
        together = nn.Linear(3 * dimension + noise_dimension, width)
        sizes = [dimension, dimension, dimension, noise_dimension]
        parts = [nn.Parameter(part.contiguous()) for part in together.weight.detach().split(sizes, dim=1)]
        self.of_example, self.of_source, self.of_target = parts[:3]
        self.of_noise = parts[3] if noise_dimension else None
        self.bias = nn.Parameter(together.bias.detach())
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, dimension)
        if residual:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, example: Tensor, source: Tensor, target: Tensor, noise: Tensor | None = None) -> Tensor:
        """Translate examples from one class to another.

        Parameters
        ----------
        example : Tensor of shape (…, D), of the source class
        source, target : Tensor of shape (…, D), prototypes of the two classes
        noise : Tensor of shape (…, Z), for a generator with noise; left out, it counts as zero

        Returns
        -------
        Tensor of shape (…, D), in the shape that the inputs broadcast to
        """
        return self.translate(example, self.condition(source, target, noise))

    def condition(self, source: Tensor, target: Tensor, noise: Tensor | None = None) -> Condition:
        """Compute once what several translations between the same classes share."""
        hidden = self.from_source(source) + self.to_target(target)
        if noise is not None and self.of_noise is not None:
            hidden = hidden + linear(noise.to(self.of_noise.dtype), self.of_noise)
        return Condition(hidden, target - source if self.residual else None)

    def from_source(self, source: Tensor) -> Tensor:
        """Compute the contribution of source classes to the first hidden layer."""
        return linear(self._gained(source), self.of_source)

    def to_target(self, target: Tensor) -> Tensor:
        """Compute the contribution of target classes to the first hidden layer."""
        return linear(self._gained(target), self.of_target, self.bias)

    def translate(self, example: Tensor, condition: Condition) -> Tensor:
        """Translate `example` between the classes of the condition."""
        hidden = linear(self._gained(example), self.of_example) + condition.hidden
        hidden = leaky_relu(hidden, self.negative_slope, inplace=True)
        hidden = dense(hidden, self.hidden.weight, self.hidden.bias, self.negative_slope)
        made = dense(hidden, self.output.weight, self.output.bias)
        if self.gain != 1:
            made = made / self.gain
        return made if condition.shift is None else made + example + condition.shift

    def _gained(self, features: Tensor) -> Tensor:
        features = features.to(self.of_example.dtype)
        return features if self.gain == 1 else features * self.gain


@dataclass(frozen=True)
class Architecture:
    """Every number that the networks are built from; see `Generator`."""

    dimension: int  # D
    width: int
    noise_dimension: int  # Z
    noise_components: int  # C of the Gaussian mixture; 0 for a plain Gaussian
    cycle: bool  # whether there are networks of the way back, G_b and D_b
    residual: bool
    gain: float
    negative_slope: float


class Networks(nn.Module):
    """G_n and D_n, and for a variant with a cycle also G_b, D_b and the noise."""

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
    """Build networks whose initial weights depend on the seed alone; the global random state is restored."""
    with initial_weights(seed):
        return Networks(architecture)
