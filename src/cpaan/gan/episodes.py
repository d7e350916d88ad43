"""Episodes: what one training step sees, with fixed shapes and without a look at a value on the host.

The pairs of an episode are laid out as a table: a row for each (meta-)novel class, a column for each base example
that is translated to it. Weights make every expectation over pairs Σ_b α(y_b, y_n) E over x_b, however the base
examples were drawn.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.math.neighborhood import Neighborhood
from cpaan.training.bank import ClassBank, draw_categories

PAIRINGS = ("all", "drawn")
BASE_DRAWS = ("similarity", "uniform")
LOSS_WEIGHTS = ("normalized", "literal")


@dataclass(frozen=True)
class Episode:
    """One batch: N novel classes with K shots each, and M base examples for each of them."""

    novel_examples: Tensor  # (N, K, D)
    novel_prototypes: Tensor  # (N, D), the means of those shots
    base_classes: Tensor  # (C,), indices of the episode's base classes in the bank
    base_prototypes: Tensor  # (C, D)
    class_weights: Tensor  # (N, C), α(y_b, y_n), divided by #R where the paper is read literally
    related: Tensor  # (N, C), R: which base classes each novel class is paired with
    base_examples: Tensor  # (N, M, D), or (1, M, D) where all novel classes share them
    base_labels: Tensor  # (N, M) or (1, M), indices into `base_classes`
    weights: Tensor  # (N, M), of each pair in the losses


@dataclass(frozen=True)
class PairPlan:
    """How the pairs of an episode are drawn and weighed.

    Attributes
    ----------
    neighborhood : gives α and R
    examples : M, base examples for each novel class
    pairing : ``"all"`` translates the same M examples to every novel class, as the paper reads literally;
        ``"drawn"`` draws M for each of them
    base_draw : draw the base class by ``"similarity"`` α, or ``"uniform"`` over R (over the union of the
        R of all novel classes where they share the examples)
    loss_weights : ``"normalized"`` gives a novel class's pairs the weight α, ``"literal"`` α / #R
    """

    neighborhood: Neighborhood
    examples: int
    pairing: str
    base_draw: str
    loss_weights: str

    def __post_init__(self) -> None:
        for name, valid in (("pairing", PAIRINGS), ("base_draw", BASE_DRAWS), ("loss_weights", LOSS_WEIGHTS)):
            if getattr(self, name) not in valid:
                choices = " or ".join(map(repr, valid))
                raise InputError(f"{name} must be {choices}, not {getattr(self, name)!r}")
        if self.pairing == "all" and self.base_draw == "similarity":
            raise InputError(
                "pairing='all' shares base examples between novel classes, so they cannot be drawn by the "
                "similarity to one of them; use base_draw='uniform' or pairing='drawn'"
            )

    def draw_distribution(self, similarity: Tensor, related: Tensor) -> Tensor:
        """Return q, the probabilities of base classes: (N, C), or (1, C) where shared."""
        if self.base_draw == "similarity":
            return similarity
        lending = related.any(0, keepdim=True) if self.pairing == "all" else related
        return lending / lending.sum(-1, keepdim=True)

    def class_weights(self, similarity: Tensor, related: Tensor) -> Tensor:
        """Return the weights (N, C) of class pairs in the expectations of the losses."""
        # NOTE[paper]: the printed losses weigh uniform draws over R with α alone, which makes the synthetic
        # terms #R times smaller than the real ones; "literal" keeps that factor.
        if self.loss_weights == "literal":
            return similarity / related.sum(-1, keepdim=True)
        return similarity

    def episode(self, shots: Tensor, base: ClassBank, base_classes: Tensor, generator: torch.Generator) -> Episode:
        """Draw the base examples for novel classes whose shots are given."""
        novel_prototypes = shots.mean(1)
        base_prototypes = base.prototypes[base_classes]
        similarity = self.neighborhood.similarity(novel_prototypes, base_prototypes)
        related = self.neighborhood.related(similarity)
        drawn_with = self.draw_distribution(similarity, related)
        labels = draw_categories(drawn_with, self.examples, generator)
        class_weights = self.class_weights(similarity, related)
        # Weighing a draw from q by α / q makes the mean over draws Σ_b α(y_b, y_n) E over x_b.
        ratio = class_weights / drawn_with.clamp_min(torch.finfo(drawn_with.dtype).tiny)
        return Episode(
            novel_examples=shots,
            novel_prototypes=novel_prototypes,
            base_classes=base_classes,
            base_prototypes=base_prototypes,
            class_weights=class_weights,
            related=related,
            base_examples=base.draw(base_classes[labels], generator),
            base_labels=labels,
            weights=ratio.gather(1, labels.expand(len(ratio), -1)),
        )


class EpisodeSampler(Protocol):
    """Draws episodes."""

    def draw(self, generator: torch.Generator) -> Episode:
        """Draw one episode."""

    @property
    def waits(self) -> bool:
        """Whether a draw waits for the host, because examples are stored there."""


@dataclass(frozen=True)
class EpisodicSampler:
    """Meta-training: in every episode some base classes play the novel ones, the rest stay base."""

    base: ClassBank
    plan: PairPlan
    novel_classes: int  # N_b, meta-novel classes in an episode
    shots: int  # K_b, examples of each
    classes: Tensor | None = None  # indices of the base classes to use; all by default

    def draw(self, generator: torch.Generator) -> Episode:
        """Draw the classes, then the shots, then the pairs."""
        device = self.base.device
        n_classes = self.base.n_classes if self.classes is None else len(self.classes)
        order = torch.rand(n_classes, generator=generator, device=device).argsort()
        if self.classes is not None:
            order = self.classes[order]
        novel, rest = order[: self.novel_classes], order[self.novel_classes :]
        shots = self.base.draw_distinct(novel, self.shots, generator)
        return self.plan.episode(shots, self.base, rest, generator)

    @property
    def waits(self) -> bool:
        """Whether a draw waits for the host."""
        return not isinstance(self.base.rows, Tensor)


@dataclass(frozen=True)
class DirectSampler:
    """Direct training on given base and novel sets, for too few base classes to meta-train."""

    base: ClassBank
    novel: ClassBank
    plan: PairPlan
    novel_classes: int
    shots: int

    def draw(self, generator: torch.Generator) -> Episode:
        """Draw shots of (some of) the novel classes, then the pairs with all base classes."""
        device = self.base.device
        order = torch.rand(self.novel.n_classes, generator=generator, device=device).argsort()
        shots = self.novel.draw_distinct(order[: self.novel_classes], self.shots, generator)
        everything = torch.arange(self.base.n_classes, device=device)
        return self.plan.episode(shots, self.base, everything, generator)

    @property
    def waits(self) -> bool:
        """Whether a draw waits for the host."""
        return not (isinstance(self.base.rows, Tensor) and isinstance(self.novel.rows, Tensor))
