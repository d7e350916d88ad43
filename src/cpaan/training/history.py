"""The history of a training run: every loss term at every logging step."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class History:
    """Means of the loss terms between logging steps.

    Losses are summed where they are computed and read only when logged, so that training does not wait for them.

    >>> history = History()
    >>> history.add({"cycle": torch.tensor(1.0)}); history.add({"cycle": torch.tensor(3.0)})
    >>> history.log(episode=2)
    {'cycle': 2.0}
    >>> history.episodes, history.losses
    ([2], {'cycle': [2.0]})
    """

    episodes: list[int] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    _sums: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _steps: int = field(default=0, repr=False)

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step."""
        for name, value in losses.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += 1

    def state(self) -> dict[str, Any]:
        """Give everything as JSON can hold it, what was added since the last logging step included."""
        sums = {name: value.item() for name, value in self._sums.items()}
        return {"episodes": self.episodes, "losses": self.losses, "sums": sums, "steps": self._steps}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        """Go on from what `state` gave.

        >>> history = History()
        >>> history.add({"cycle": torch.tensor(1.0)})
        >>> History.from_state(history.state()).log(1)
        {'cycle': 1.0}
        """
        sums = {name: torch.tensor(value) for name, value in state["sums"].items()}
        return cls(list(state["episodes"]), dict(state["losses"]), sums, state["steps"])

    def log(self, episode: int) -> dict[str, float]:
        """Close a logging step and give its means."""
        means = dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self._steps).tolist(), strict=True))
        self.episodes.append(episode)
        for name, mean in means.items():
            self.losses.setdefault(name, []).append(mean)
        self._sums, self._steps = {}, 0
        return means
