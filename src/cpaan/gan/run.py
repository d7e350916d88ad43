"""The state of a training run, and how it recovers from losses that are not finite."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.gan.networks import Networks
from cpaan.gan.objective import TrainingStep
from cpaan.training.progress import History
from cpaan.training.weights import part_of

_KEPT, _PENDING = "kept.", "pending."
TRIES = 3


@runtime_checkable
class Remembering(Protocol):
    """A callback whose memory is saved with the training run."""

    def state(self) -> dict[str, Any]:
        """Return what it remembers, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""


class TrainingRun:
    """A training run of adversarial networks, as callbacks see it.

    Attributes
    ----------
    step : holds the networks and their optimizers
    generator : source of every random draw
    history : losses so far
    episode : number of episodes done
    slowed : number of times that the learning rate was halved because losses were not finite
    stopping : whether training ends with this logging step
    """

    def __init__(
        self,
        step: TrainingStep,
        generator: torch.Generator,
        history: History,
        score: Callable[[Networks], float] | None = None,
        callbacks: Sequence[Callable[..., None]] = (),
        plan: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.step, self.generator, self.history, self.stopping = step, generator, history, False
        self.episode = self.slowed = 0
        self.pending: list[Tensor] = []  # drawn ahead for the next episode, on a GPU
        self.plan = plan
        everyone: Sequence[object] = callbacks
        self._remembering = [callback for callback in everyone if isinstance(callback, Remembering)]
        self._score = score
        self._scored: tuple[int, float] | None = None
        self._kept: dict[str, Tensor] | None = None

    @property
    def networks(self) -> Networks:
        """The networks as they are now, in single precision."""
        return self.step.trained

    @property
    def has_score(self) -> bool:
        """Whether base classes are held out to compute a score on."""
        return self._score is not None

    def score(self) -> float:
        """Return the accuracy, in percent, on base classes held out as if novel; computed once a logging step."""
        if self._score is None:
            raise InputError(
                "there is no score, because no base classes are held out: hold some out with CPAAN(held_out=0.25), or "
                "watch a term of the loss; networks that are trained directly on novel classes have no score"
            )
        now = self.history.episodes[-1]
        if self._scored is None or self._scored[0] != now:
            self._scored = now, self._score(self.networks)
        return self._scored[1]

    def stop(self) -> None:
        """End training after this logging step."""
        self.stopping = True

    def keep(self) -> None:
        """Make the networks as they are now the result, whatever they learn later."""
        self._kept = {name: value.clone() for name, value in self.networks.state_dict().items()}

    def finish(self) -> None:
        """Restore the networks that were kept, if any."""
        if self._kept is not None:
            self.networks.load_state_dict(self._kept)

    def trouble(self) -> str | None:
        """Describe what is not finite, and since which episode; None where all is well. Waits for the device."""
        found = self.history.first_not_finite()
        since = self.history.episodes[-1] if self.history.episodes else 0
        if found is not None:
            terms, steps = found
            return f"{' and '.join(terms)} {'is' if len(terms) == 1 else 'are'} not finite in episode {since + steps}"
        # The last update may have spoilt the networks before any loss shows it. The extremes are not finite where any
        # value is not, and take an eighth of the time.
        extremes = [extreme for value in self.step.state().values() for extreme in torch.aminmax(value)]
        if bool(torch.stack(extremes).isfinite().all()):
            return None
        return f"a weight or its gradient is not finite after one of the episodes {since + 1} to {self.episode}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the whole state, as tensors and JSON values."""
        tensors = {**self.step.state(), "learning_rate": self.step.learning_rate}
        tensors["random_state"] = self.generator.get_state()
        tensors |= {f"{_PENDING}{number}": value for number, value in enumerate(self.pending)}
        tensors |= {f"{_KEPT}{name}": value for name, value in (self._kept or {}).items()}
        config = {
            "history": self.history.state(),
            "slowed": self.slowed,
            "stopping": self.stopping,
            "callbacks": [callback.state() for callback in self._remembering],
        }
        return tensors, config

    def restore(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        """Restore what `state` returned after `config["step"]` episodes."""
        self.step.restore(tensors)
        self.generator.set_state(tensors["random_state"])
        for number, value in enumerate(self.pending):
            value.copy_(tensors[f"{_PENDING}{number}"])
        kept = part_of(tensors, _KEPT)
        self._kept = {name: value.to(self.generator.device) for name, value in kept.items()} or None
        self.history.restore(config["history"])
        self.episode, self.slowed, self.stopping = config["step"], config["slowed"], config["stopping"]
        for callback, state in zip(self._remembering, config["callbacks"], strict=True):
            callback.restore(state)


class NanRecovery:
    """Returns a run that is not finite to its last good logging step, and halves the learning rate.

    Random draws are not repeated: the next try sees other episodes. Nothing is checked between logging steps, and
    tensors are restored in place, for the sake of a captured graph.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self._keep()

    def passes(self, *, failed: bool = False) -> bool:
        """Whether the run is finite up to now; where it is not, it has gone back. Raises InputError after a few tries.

        `failed` says that the last episode was interrupted because a covariance could not be decomposed.
        """
        trouble = self.run.trouble()
        if trouble is None and failed:
            trouble = f"a covariance cannot be decomposed, because it is not finite, in episode {self.run.episode}"
        if trouble is None:
            self._keep()
            return True
        if self.run.slowed == TRIES:
            raise InputError(
                f"training has failed: {trouble}, even after halving the learning rate {TRIES} times; try a smaller "
                "learning_rate, a smaller weight of that loss, or features without extreme values"
            )
        self._go_back()
        warnings.warn(
            f"{trouble}: going back to episode {self.run.episode} and on at half the learning rate "
            f"(try {self.run.slowed} of {TRIES})",
            stacklevel=2,
        )
        return False

    def _keep(self) -> None:
        self.episode = self.run.episode
        self.tensors: dict[str, Tensor] = {name: value.clone() for name, value in self.run.step.state().items()}

    def _go_back(self) -> None:
        self.run.step.restore(self.tensors)
        self.run.history.forget()
        self.run.episode = self.episode
        self.run.slowed += 1
