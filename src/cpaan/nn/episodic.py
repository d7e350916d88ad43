"""What networks share that learn classes from a support."""

from torch import Tensor, nn


class EpisodicNetwork(nn.Module):
    """A network to which a support becomes a memory, with which queries are scored.

    A subclass writes `embed`, `remember` and `score`.
    """

    def embed(self, features: Tensor) -> Tensor:
        """Embed examples, (n, D), each on its own."""
        raise NotImplementedError

    def remember(self, embedded: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Give what is kept of an embedded support (n, D) with labels (n,)."""
        raise NotImplementedError

    def score(self, memory: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Score each class for each query, (n, D) to (n, classes)."""
        raise NotImplementedError

    def encode(self, support: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
        """Embed a support and give what is kept of it."""
        return self.remember(self.embed(support), labels, n_classes)
