"""How good networks are while they train: accuracy on base classes that they are not trained on."""

import torch
from torch import Tensor

from cpaan.augmenters.model import Model
from cpaan.augmenters.summary import BaseSummary, keep_examples
from cpaan.classifiers.linear import LinearClassifier
from cpaan.errors import InputError
from cpaan.gan.networks import Networks
from cpaan.gan.recipe import Recipe
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank

SHOTS, FEWEST_QUERIES, MOST_QUERIES = 5, 5, 50
MADE, LENT = 50, 50  # examples that are made of each held-out class, and kept of each of the others to translate
FEWEST_HELD_OUT, FEWEST_REMAINING = 2, 4
AUTO, AUTO_SHARE, FEWEST_FOR_AUTO, MOST_FOR_AUTO = "auto", 0.25, 20, 50
# Numbers that are held of either kind of classes, unless there are so many classes that one example of each is more.
MOST_NUMBERS = 2**22


def share_to_hold_out(held_out: float | str, counts: Tensor, *, look: bool) -> float:
    """Give the share of classes to hold out: the one that is asked for; with ``"auto"``, a quarter of the large ones.

    Parameters
    ----------
    held_out : share, or ``"auto"``
    counts : (C,) examples of each class
    look : whether a training looks at the score by itself; ``"auto"`` holds classes out for that alone, fifty at most,
        and none where fewer than twenty have examples enough

    >>> [share_to_hold_out("auto", torch.full((n,), 30), look=True) for n in (19, 20, 1000)]
    [0.0, 0.25, 0.05]
    """
    if not isinstance(held_out, str):
        return held_out
    if held_out != AUTO:
        raise InputError(f"held_out must be a share of the base classes, or {AUTO!r}, not {held_out!r}")
    large = int((counts >= SHOTS + FEWEST_QUERIES).sum())
    return min(AUTO_SHARE * large, MOST_FOR_AUTO) / len(counts) if look and large >= FEWEST_FOR_AUTO else 0.0


def choose_held_out(counts: Tensor, share: float, seed: int, first: int = 0) -> Tensor | None:
    """Choose at random which classes to hold out; None where none are asked for.

    Parameters
    ----------
    counts : (C,) examples of each class; those with too few for shots and queries are not chosen
    share : of the classes
    seed : decides the choice
    first : classes before it are not chosen

    >>> len(choose_held_out(torch.full((12,), 30), 0.25, seed=0))
    3
    """
    if not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise InputError(f"held_out must be a share of the base classes, from 0 to below 1, not {share!r}")
    if share == 0:
        return None
    large = (counts[first:] >= SHOTS + FEWEST_QUERIES).nonzero().squeeze(1).cpu() + first
    number = max(FEWEST_HELD_OUT, round(share * (len(counts) - first)))
    if number > len(large) or len(counts) - number < FEWEST_REMAINING:
        raise InputError(
            f"held_out={share} would hold out {number} of {len(counts)} base classes; {len(large)} that may be chosen "
            f"have the {SHOTS + FEWEST_QUERIES} examples it takes, and {FEWEST_REMAINING} must remain"
        )
    order = torch.randperm(len(large), generator=torch.Generator().manual_seed(seed))
    return large[order[:number]].sort().values


class HeldOutScore:
    """Accuracy, in percent, of a linear classifier on shots of held-out classes and what networks make of them.

    Shots, queries and random numbers are the same at every call, so that networks alone make a difference. Examples are
    made about means of shots: an estimate of the centre, where a recipe has one, does not depend on the networks.

    Parameters
    ----------
    bank : all base classes
    held : Tensor of indices of the held-out classes
    recipe, variant, temperature : of the model
    seed : decides every draw

    Attributes
    ----------
    rest : Tensor of indices of the classes that are not held out
    """

    def __init__(
        self, bank: ClassBank, held: Tensor, recipe: Recipe, variant: str, temperature: float, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        is_held = torch.zeros(bank.n_classes, dtype=torch.bool).index_fill_(0, held.cpu(), True)
        self.rest = (~is_held).nonzero().squeeze(1).to(bank.device)
        self._recipe, self._variant, self._temperature, self._seed = recipe, variant, temperature, seed
        lenders = some_examples(bank, self.rest, _affordable(LENT, 1, len(self.rest), bank.dimension), generator)
        n, dimension = len(self.rest), bank.dimension
        empty, tails = bank.prototypes.new_empty((n, 0, dimension)), bank.prototypes.new_zeros(n)
        device_generator = torch.Generator(bank.device).manual_seed(seed)
        kept = keep_examples(lenders, LENT, device_generator)
        as_it_is = Scaling(torch.zeros(dimension), 1.0)
        self._base = BaseSummary(tuple(range(n)), lenders.counts, lenders.prototypes, empty, tails, kept, as_it_is)
        most = _affordable(SHOTS + MOST_QUERIES, SHOTS + FEWEST_QUERIES, len(held), bank.dimension)
        novel = some_examples(bank, held.to(bank.device), most, generator)
        parts = [novel.of_class(c).cpu().double() for c in range(len(held))]
        self._shots = torch.cat([x[:SHOTS] for x in parts])
        self._shot_labels = torch.arange(len(parts)).repeat_interleave(SHOTS)
        self._queries = torch.cat([x[SHOTS:] for x in parts])
        self._query_labels = torch.cat([torch.full((len(x) - SHOTS,), c) for c, x in enumerate(parts)])

    def __call__(self, networks: Networks) -> float:
        """Score networks as they are now."""
        n = int(self._shot_labels[-1]) + 1
        model = Model(networks, self._base, self._recipe, self._variant, self._temperature)
        generator = torch.Generator(self._base.prototypes.device).manual_seed(self._seed)
        made = model.make_from_shots(self._shots, self._shot_labels, torch.full((n,), MADE), generator)
        X = torch.cat([self._shots, *made]).numpy()
        y = torch.cat([self._shot_labels, torch.arange(n).repeat_interleave(MADE)]).numpy()
        found = LinearClassifier().fit(X, y).predict(self._queries.numpy())
        return 100 * float((found == self._query_labels.numpy()).mean())


def _affordable(wanted: int, fewest: int, n_classes: int, dimension: int) -> int:
    """Give how many examples of each class are held: so many, or fewer where classes or features are many."""
    return max(fewest, min(wanted, MOST_NUMBERS // (n_classes * dimension)))


def some_examples(bank: ClassBank, classes: Tensor, most: int, generator: torch.Generator) -> ClassBank:
    """Take up to so many random examples of some classes; prototypes stay those of all their examples."""
    parts = []
    for label in classes.tolist():
        order = torch.randperm(int(bank.counts[label]), generator=generator)[:most].to(bank.device)
        parts.append(bank.rows[bank.starts[label] + order])
    counts = bank.counts[classes].clamp_max(most)
    return ClassBank(torch.cat(parts), counts, counts.cumsum(0) - counts, bank.prototypes[classes], int(counts.max()))
