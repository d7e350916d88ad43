"""Tasks for meta-training: N classes, K support examples of each to learn from, and queries to be classified."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.sampling.bank import ClassBank


@dataclass(frozen=True)
class Task:
    """One N-way K-shot task.

    Attributes
    ----------
    support : Tensor of shape (N, K, D)
    query : Tensor of shape (N, Q, D), other examples of the same classes where these have enough
    classes : integer Tensor of shape (N,), which classes of the bank they are
    """

    support: Tensor
    query: Tensor
    classes: Tensor

    @property
    def query_labels(self) -> Tensor:
        """The class of each query within the task, for `query.flatten(0, 1)`."""
        n_classes, n_queries = self.query.shape[:2]
        return torch.arange(n_classes, device=self.query.device).repeat_interleave(n_queries)


@dataclass(frozen=True)
class TaskSampler:
    """Draws tasks from base classes.

    Parameters
    ----------
    bank : the examples
    ways : N, at most as many as there are classes
    shots : numbers K of which each task has one, drawn at random
    queries : Q
    """

    bank: ClassBank
    ways: int
    shots: tuple[int, ...]
    queries: int

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task.

        >>> examples = torch.arange(12.0).reshape(12, 1)
        >>> bank = ClassBank.from_examples(examples, torch.arange(3).repeat_interleave(4), 3)
        >>> task = TaskSampler(bank, ways=2, shots=(1,), queries=3).draw(torch.Generator().manual_seed(0))
        >>> task.support.shape, task.query.shape, task.query_labels
        (torch.Size([2, 1, 1]), torch.Size([2, 3, 1]), tensor([0, 0, 0, 1, 1, 1]))
        """
        device = self.bank.device
        ways = min(self.ways, self.bank.n_classes)
        classes = torch.randperm(self.bank.n_classes, generator=generator, device=device)[:ways]
        shots = self.shots[0]
        if len(self.shots) > 1:
            shots = self.shots[int(torch.randint(len(self.shots), (1,), generator=generator, device=device))]
        examples = self.bank.draw_distinct(classes, shots + self.queries, generator)
        # A class with fewer examples repeats them, so a query may be a support example too.
        return Task(examples[:, :shots], examples[:, shots:], classes)
