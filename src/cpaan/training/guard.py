"""What is done where a training is no longer finite."""

import warnings

from torch import Tensor

from cpaan.errors import InputError
from cpaan.training.run import TrainingRun

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
