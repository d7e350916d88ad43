"""A training of adversarial networks under way.

What is done where a training is no longer finite.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cpaan.errors import InputError
from cpaan.gan.networks import Networks
from cpaan.gan.objective import TrainingStep, part_of
from cpaan.training.progress import History

_KEPT, _PENDING = "kept.", "pending."


@runtime_checkable
class Remembering(Protocol):
    """A callback whose memory is saved with the training that it looks at."""

    def state(self) -> dict[str, Any]:
        """Give what it remembers, as JSON can hold it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""


class TrainingRun:
    """A training of adversarial networks under way, and what callbacks may ask of it.

    Attributes
    ----------
    step : holds the networks and their optimizers
    generator : decides every random draw
    history : of the losses so far
    episode : how many are done
    slowed : how often the learning rate was halved because losses were not finite
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
        """Whether base classes are held out, so that there is a score."""
        return self._score is not None

    def score(self) -> float:
        """Give the accuracy, in percent, on base classes held out as if novel; computed once a logging step."""
        if self._score is None:
            raise InputError(
                "there is no score, because no base classes are held out: ask for some with CPAAN(held_out=0.25), or "
                "watch a term of the loss; networks that are trained directly on novel classes have no score"
            )
        now = self.history.episodes[-1]
        if self._scored is None or self._scored[0] != now:
            self._scored = now, self._score(self.networks)
        return self._scored[1]

    def stop(self) -> None:
        """End training when all callbacks have been called."""
        self.stopping = True

    def keep(self) -> None:
        """Take the networks as they are now for the result, whatever they learn from now on."""
        self._kept = {name: value.clone() for name, value in self.networks.state_dict().items()}

    def finish(self) -> None:
        """Take the networks that were kept, if any were."""
        if self._kept is not None:
            self.networks.load_state_dict(self._kept)

    def trouble(self) -> str | None:
        """Say what is not finite, and since which episode; None where all is well. Waits for the device."""
        found = self.history.first_not_finite()
        since = self.history.episodes[-1] if self.history.episodes else 0
        if found is not None:
            terms, steps = found
            return f"{' and '.join(terms)} {'is' if len(terms) == 1 else 'are'} not finite in episode {since + steps}"
        # The last update may have spoilt the networks without a loss that tells of it.
        # By the extremes, which are not finite where any value is not, and take an eighth of the time.
        extremes = [extreme for value in self.step.state().values() for extreme in torch.aminmax(value)]
        if bool(torch.stack(extremes).isfinite().all()):
            return None
        return f"a weight or its gradient is not finite after one of the episodes {since + 1} to {self.episode}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Give all that the training is made of now, as tensors and as what JSON can hold."""
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
        """Go on from what `state` gave after `config["step"]` episodes."""
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


TRIES = 3


class Guard:
    """Takes a training back to its last good logging step where it is not finite, and on at half the learning rate.

    Random draws go on and are not repeated, so that the next try sees other episodes. Nothing is looked at between
    logging steps, and all is put back in place, so that a captured graph goes on as well.

    Parameters
    ----------
    run : as it is now, which is good
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self._keep()

    def passes(self, *, failed: bool = False) -> bool:
        """Tell whether the training is finite up to now; where it is not, it has gone back.

        Parameters
        ----------
        failed : whether the last episode was broken off because a covariance could not be decomposed

        Raises
        ------
        InputError
            After a few tries.
        """
        trouble = self.run.trouble()
        if trouble is None and failed:
            trouble = f"a covariance cannot be decomposed, for it is not finite, in episode {self.run.episode}"
        if trouble is None:
            self._keep()
            return True
        if self.run.slowed == TRIES:
            raise InputError(
                f"training has failed: {trouble}, also with the learning rate halved {TRIES} times; give a smaller "
                "learning_rate, smaller weights of that loss, or features without extreme values"
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
